"""One worker of a real gloo group: gathers rows."""

from __future__ import annotations

from unittest import mock

import torch
from torch import distributed

from raytriever.losses.distributed import current_workers, host_workers

ROWS = 5


def main() -> dict[str, object]:
    workers = current_workers()
    rank, size = workers.rank, workers.size
    out: dict[str, object] = {}
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(ROWS, 3, generator=generator).requires_grad_()
    weights = torch.randn(size * ROWS, 3, generator=generator)
    gathered = workers.all_gather(rows)
    (gathered * weights).sum().backward()
    out["rows"] = (rows.detach(), weights, gathered.detach(), rows.grad)

    messages = host_workers(workers)
    assert messages is workers
    with mock.patch.object(distributed, "get_backend", return_value="nccl"):  # then messages have a group of their own
        other = host_workers(workers)
    assert (other is workers) == (size == 1)
    assert other.all_gather(torch.tensor([rank])).tolist() == list(range(size))

    return out
