"""One worker of a real gloo group: gathers rows, exactly and in bf16, and computes a loss."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import torch
from loss_worker import PASSAGES, QUERIES, WIDTH, global_batch
from torch import distributed

from raytriever.losses.batch import BatchIds
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import current_workers, host_workers
from raytriever.losses.registry import build_loss
from raytriever.losses.relevance import gather_relevance

CPU = torch.device("cpu")
ROWS = 5


def main() -> dict[str, object]:
    workers = current_workers()
    rank, size = workers.rank, workers.size
    out: dict[str, object] = {}
    for sent in (None, torch.bfloat16):
        generator = torch.Generator().manual_seed(rank)
        rows = torch.randn(ROWS, 3, generator=generator).requires_grad_()
        weights = torch.randn(size * ROWS, 3, generator=generator)
        gathered = workers.all_gather(rows, sent)
        (gathered * weights).sum().backward()
        out[f"{sent}"] = (rows.detach(), weights, gathered.detach(), rows.grad)

    messages = host_workers(workers)
    assert messages is workers
    with mock.patch.object(distributed, "get_backend", return_value="nccl"):  # then messages have a group of their own
        other = host_workers(workers)
    assert (other is workers) == (size == 1)
    assert other.all_gather(torch.tensor([rank])).tolist() == list(range(size))

    queries, passages, ids = global_batch()
    b, n = QUERIES // size, PASSAGES // size
    mine, texts = slice(rank * b, (rank + 1) * b), slice(rank * n, (rank + 1) * n)
    own = BatchIds(ids.queries[mine], ids.positives[mine], ids.passages[texts], ids.known[mine])
    own = replace(own, relevance=gather_relevance(own, workers, CPU))
    for precision in ("fp32", "bf16"):
        inputs = [x.float().requires_grad_() for x in (queries[mine], passages[texts])]
        loss = build_loss(LossConfig("mw", temperature=0.6, gather_precision=precision))
        result = loss(*inputs, own, workers)
        result.value.backward()
        out[f"loss {precision}"] = (result.value.detach(), *(x.grad for x in inputs))
    assert passages.shape[1] == WIDTH
    return out
