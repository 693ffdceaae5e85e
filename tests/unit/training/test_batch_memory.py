"""The planned bytes of embeddings and scores, compared with those that the losses allocate on a CPU and a sham GPU."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raytriever.losses import scores as panels
from raytriever.losses import triplet
from raytriever.losses.batch import BatchIds
from raytriever.losses.config import LossConfig
from raytriever.losses.registry import build_loss
from raytriever.training.memory.arithmetic import WorkerTexts, batch_bytes

sys.path.append(str(Path(__file__).parents[2] / "support"))
from allocations import CPU, allocated_peak
from sham_device import CUDA, sham_device

ROW_LOSSES = ("infonce", "infonce-symmetric", "triplet", "lsepair")  # the kernel of mw needs a real GPU


@pytest.mark.fast_every(6)
@pytest.mark.parametrize(("loss", "device"), [*product((*ROW_LOSSES, "mw"), [CPU]), *product(ROW_LOSSES, [CUDA])])
@pytest.mark.parametrize(("queries", "group", "width"), [(128, 8, 512), (1024, 4, 16)])
def test_the_bytes_of_the_batch_are_an_upper_bound_of_the_loss(
    loss: str, queries: int, group: int, width: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == CUDA:
        # As on a GPU: a panel is larger than those of a CPU, and has many blocks.
        monkeypatch.setattr(panels, "PANEL_BYTES", 1 << 20)
        monkeypatch.setitem(triplet.BLOCK_SCORES, "cuda", 1 << 18)
    torch.manual_seed(0)
    passages = queries * group
    with sham_device() if device.type == "cuda" else nullcontext() as counts:
        reduce = build_loss(LossConfig(loss=loss), unit_length=True).to(device)
        embeddings = torch.randn(2, queries + passages, width)
        chunks = list(torch.nn.functional.normalize(embeddings, dim=2).to(device).unbind())
        positives = torch.arange(passages, device=device).view(queries, group)[:, :1].contiguous()
        rows, columns = torch.arange(queries, device=device), torch.arange(passages, device=device)
        ids = BatchIds(rows, positives, columns, known=positives)

        def step() -> Tensor:
            embeddings = torch.cat([chunks[0][:queries], chunks[0][queries:]]).requires_grad_()
            sides = embeddings.split([queries, passages])
            output = reduce(sides[0][rows], sides[1][columns], ids)
            gradient: Tensor = torch.autograd.grad(output.value, [embeddings])[0]
            return gradient

        if counts is None:
            measured = allocated_peak(step)
        else:
            before = counts.memory
            torch.cuda.reset_peak_memory_stats()
            step()
            measured = counts.peak - before
    measured += chunks[0].nbytes  # the embeddings of each chunk, which exist before the loss
    planned = batch_bytes(WorkerTexts(queries, passages, 1, 32, width), device.type)
    assert measured <= planned * 1.02
    assert planned <= 2.5 * measured
