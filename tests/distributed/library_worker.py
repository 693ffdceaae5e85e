"""One worker of a gloo group: every loss for sentence-transformers on its fraction of a batch, under DDP.

The result is each loss's value and its gradients after the average of DDP."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))
from library_losses import CASES, ROWS, columns, gradients, labels_of, load, loss_of
from torch.nn.parallel import DistributedDataParallel

from raytriever.core.errors import LossInputError
from raytriever.losses.distributed import current_workers


def main(folder: Path) -> dict[str, tuple[float, list[torch.Tensor]]]:
    workers = current_workers()
    fraction = ROWS // workers.size
    rows = slice(workers.rank * fraction, (workers.rank + 1) * fraction)
    results = {}
    for case in CASES:
        for cached in (False, True):
            model = load(folder)
            loss = loss_of(case, model, cached, gather_across_devices=True).double()
            if workers.size > 1:
                # As the trainer does; the pooler has no gradients.
                loss.model = DistributedDataParallel(model, find_unused_parameters=True)
            value = loss(columns(model, rows), labels_of(case, rows))
            value.backward()
            results[f"{case} {'cached' if cached else 'plain'}"] = (value.item(), gradients(loss))
    if workers.size > 1:
        try:
            loss(columns(model, slice(0, 2 + workers.rank)), labels_of(case, slice(0, 2 + workers.rank)))
        except LossInputError as error:
            results["unequal"] = (0.0, [torch.tensor(list(str(error).encode()))])
    return results
