"""One worker of a real gloo group: every loss on its fraction of one global batch, through a two-tower encoder.

The result is each loss's value, statistics and averaged parameter gradients, and rows that were gathered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from batch_ids import BatchIds, TeacherScores, build_loss
from torch import distributed

from raytriever.losses.distributed import WorkerGroup, current_workers, host_workers
from raytriever.losses.false_negative_mask import GuideEmbeddings
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES

QUERIES, PASSAGES, DIM, ROWS = 8, 28, 6, 5
# Two losses of a user.
OWN_LOSSES = tuple(f"{Path(__file__).parents[1] / 'support' / 'own_losses.py'}:{name}" for name in ("joint", "auc"))
# Of each kind of loss one: dimensions, a guide and gathering are the same for all of a kind.
KINDS = ("infonce", "infonce-symmetric", "lsepair-maxn", "triplet", "mw", "cosent", "bce", "kl")
SUMS = ("mw+bce", f"kl+lsepair-maxn+{OWN_LOSSES[1]}", "triplet+infonce-symmetric+mw")
NESTED, GUIDED, GRADED = " nested", " guided", " graded"  # behind the name of a loss
CASES = (
    *(*LOSS_NAMES, *OWN_LOSSES, *SUMS),
    *(f"{name}{NESTED}" for name in (*KINDS, OWN_LOSSES[0], SUMS[0])),
    *(f"{name}{GUIDED}" for name in (*KINDS, OWN_LOSSES[0])),
    *(f"{name}{GRADED}" for name in ("cosent", "bce", "kl+cosent+bce")),
)


def global_batch() -> tuple[torch.Tensor, torch.Tensor, BatchIds]:
    """Repeats across workers, positives in other workers' parts, known positives, a query twice; a teacher that has
    scored some of each query's positives and three more passages, and nothing of one query."""
    generator = torch.Generator().manual_seed(5)
    queries = torch.randn(QUERIES, DIM, generator=generator, dtype=torch.float64)
    passages = torch.randn(PASSAGES, DIM, generator=generator, dtype=torch.float64)
    documents = torch.arange(PASSAGES)
    documents[27], documents[13], documents[20] = 0, 1, 26
    positives = torch.full((QUERIES, 3), -1)
    positives[:, 0] = torch.tensor([0, 4, 8, 12, 14, 18, 21, 25])
    positives[1, 1], positives[2, 1:], positives[6, 2] = 0, torch.tensor([1, 22]), 3
    known = torch.full((QUERIES, 1), -1)
    known[3], known[7] = 24, 0
    query_ids = torch.arange(QUERIES)
    query_ids[7] = 0
    queries[7] = queries[0]
    asked = torch.cat([positives, (torch.arange(QUERIES)[:, None] * 5 + torch.tensor([2, 9, 15])) % 26], 1)
    scores = torch.randn(asked.shape, generator=generator, dtype=torch.float64)
    scores[5], scores[1, 3] = torch.nan, torch.nan
    teacher = TeacherScores(asked, scores)
    return queries, passages, BatchIds(query_ids, positives, documents, known, seed=4, step=9, teacher=teacher)


def gathered(workers: WorkerGroup) -> list[torch.Tensor]:
    """Gather rows; return them, the weights of all rows in what is differentiated, all rows, and the gradient."""
    generator = torch.Generator().manual_seed(workers.rank)
    rows = torch.randn(ROWS, 3, generator=generator).requires_grad_()
    weights = torch.randn(workers.size * ROWS, 3, generator=generator)
    everything = workers.all_gather(rows)
    (everything * weights).sum().backward()
    messages = host_workers(workers)
    assert messages is workers
    with mock.patch.object(distributed, "get_backend", return_value="nccl"):  # then messages have a group of their own
        other = host_workers(workers)
    assert (other is workers) == (workers.size == 1)
    assert other.all_gather(torch.tensor([workers.rank])).tolist() == list(range(workers.size))
    return [rows.detach(), weights, everything.detach(), rows.grad]


def main() -> dict[str, Any]:
    workers = current_workers()
    rank, size = workers.rank, workers.size
    queries, passages, ids = global_batch()
    b, n = QUERIES // size, PASSAGES // size
    mine, texts = slice(rank * b, (rank + 1) * b), slice(rank * n, (rank + 1) * n)
    teacher = TeacherScores(ids.teacher.documents[mine], ids.teacher.scores[mine])
    own = BatchIds(
        ids.queries[mine], ids.positives[mine], ids.passages[texts], ids.known[mine], ids.seed, ids.step, teacher
    )
    out: dict[str, Any] = {"gathered": gathered(workers)}
    for name in CASES:
        torch.manual_seed(0)
        encoders = [torch.nn.Linear(DIM, DIM, dtype=torch.float64) for _ in range(2)]
        plain = name.removesuffix(NESTED).removesuffix(GUIDED).removesuffix(GRADED)
        labels = TeacherScores(teacher.documents, (torch.sigmoid(teacher.scores) * 4).round() / 4)
        batch = replace(own, labels=labels) if name.endswith(GRADED) else own
        settings = LossConfig(
            loss=plain, temperature=0.6, distribution_weight=0.2, learn_temperature=plain != "triplet", margin=0.5
        )
        if plain in SUMS:
            settings = replace(settings, loss_weights=",".join("123"[: len(settings.terms)]))
        nested = name.endswith(NESTED)
        settings = replace(settings, matryoshka_dims="4,2" if nested else "")
        guide = None
        if name.endswith(GUIDED):
            settings = replace(settings, guide="minilm", guide_margin=0.1)
            guide = GuideEmbeddings(queries[mine, :3], passages[texts, :3])
        loss = build_loss(settings, nested)
        result = loss(encoders[0](queries[mine]), encoders[1](passages[texts]), batch, workers, guide)
        result.value.backward()
        out[f"{name}/value"] = result.value.detach()
        for key, number in result.statistics.items():
            out[f"{name}/{key}"] = number
        parameters = [p for module in (*encoders, loss) for p in module.parameters()]
        for number, parameter in enumerate(parameters):
            # What data-parallel averaging does.
            out[f"{name}/gradient {number}"] = workers.all_reduce(parameter.grad) / size
    return out
