"""Batches for the tests of the losses; `reference_losses` is the oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from batch_ids import BatchIds, TeacherScores, build_loss
from reference_losses import reference_loss
from torch import Tensor

from raytriever.losses.batch_and_temperature import Candidates
from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.losses.false_negative_mask import GuideEmbeddings
from raytriever.losses.loss_settings import LossConfig


@dataclass
class Example:
    """Embeddings and ids of a batch, and what to expect of it."""

    queries: Tensor
    passages: Tensor
    ids: BatchIds


def example(
    seed: int, batch: int = 5, hard: int = 2, positives: int = 3, dim: int = 6, levels: int = 0, repeats: bool = True
) -> Example:
    """A batch with mixed numbers of positives, repeated documents, known positives and, if asked, tied scores; a
    teacher's scores of each query's positives and its own hard negatives, some of which are missing."""
    generator = torch.Generator().manual_seed(seed)

    def whole(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    held = whole(positives, batch) + 1
    rows, groups, at = [], [], 0
    for count in held.tolist():
        groups.append(list(range(at, at + count)) + [-1] * (positives - count))
        at += count
    rows = list(range(at + batch * hard))
    passages = torch.tensor(rows)
    if repeats:
        # A hard negative that is another query's positive, a positive twice in its group, a document twice.
        passages[-1], passages[-2] = groups[0][0], rows[-3]
        groups[-1][-1] = groups[-1][0]
        groups[1] = [*groups[1][:-1], groups[0][0]]
    known = torch.full((batch, 2), -1)
    known[0, 0], known[1, 1] = rows[-3], 10**6
    make = torch.randn if not levels else lambda *s, **k: (torch.rand(*s, **k) * levels).floor() / 2
    queries = make(batch, dim, generator=generator).double()
    documents = make(len(passages), dim, generator=generator).double()
    teacher = taught(torch.tensor(groups), passages[-batch * hard :].reshape(batch, hard), seed)
    ids = BatchIds(torch.arange(batch) + 100, torch.tensor(groups), passages, known, seed=seed, step=3, teacher=teacher)
    return Example(queries.requires_grad_(), documents.requires_grad_(), ids)


def taught(positives: Tensor, hard: Tensor, seed: int) -> TeacherScores:
    """Groups in which the first hard negative occurs twice, two documents are other queries', of which one is known to
    be relevant to the first; some pairs have no score, and one query has none at all."""
    others = hard.flatten()[[0, -3]].expand(len(hard), 2)
    documents = torch.cat([positives, hard, hard[:, :1], others], 1)
    of_all = torch.randn(len(hard), 1000, generator=torch.Generator().manual_seed(seed + 77), dtype=torch.float64) * 2
    of_all[-1][hard[-1]] = of_all[1, positives[1, 0]] = of_all[len(hard) // 2] = torch.nan
    scores = of_all.gather(1, documents.clamp(min=0))
    return TeacherScores(documents, scores)


def graded(batch: Example) -> Example:
    """The same batch with labels 0 to 1, in quarters, of the documents that the teacher has scored."""
    teacher = batch.ids.teacher
    labels = TeacherScores(teacher.documents, (torch.sigmoid(teacher.scores) * 4).round() / 4)
    return replace(batch, ids=replace(batch.ids, labels=labels))


def gradients(value: Tensor, batch: Example) -> list[Tensor]:
    """Return a loss and its gradients by queries and passages."""
    return [value.detach(), *torch.autograd.grad(value, (batch.queries, batch.passages))]


def computed(
    config: LossConfig, batch: Example, unit_length: bool = False, guide: GuideEmbeddings | None = None
) -> list[Tensor]:
    """Return the loss of training and its gradients."""
    return gradients(
        build_loss(config, unit_length)(batch.queries, batch.passages, batch.ids, guide=guide).value, batch
    )


def literal(config: LossConfig, batch: Example) -> list[Tensor]:
    """Return the loss as its paper prints it, and its gradients."""
    return gradients(reference_loss(config, batch.queries, batch.passages, batch.ids), batch)


def assert_near(ours: list[Tensor], oracle: list[Tensor]) -> None:
    """Compare a loss and gradients in double precision."""
    for value, other in zip(ours, oracle, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-9, atol=1e-11)


def gathered_candidates(
    queries: Tensor, passages: Tensor, ids: BatchIds, workers: WorkerGroup = ALONE, temperature: float = 1.0
) -> Candidates:
    """Return the global batch from one worker's partial loss, as the loss gathers it."""
    relevance = ids.relevance(workers, queries.device)
    embeddings = relevance.keep(workers.all_gather(passages))
    return Candidates(queries, embeddings, relevance, torch.tensor(temperature).log().to(queries))


def double_sum(scores: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The literal double sum over the table of pairs, and its gradient."""
    scores = scores.detach().double().requires_grad_()
    batch = len(scores)
    positive = torch.zeros_like(scores, dtype=torch.bool)
    positive.diagonal()[:batch] = True
    p, n = scores[positive], scores[~positive]
    total = torch.zeros((), dtype=torch.float64)
    grad = torch.zeros_like(scores)
    for part in p.split(16):
        z = (n[None] - part[:, None]) / temperature
        value = torch.logaddexp(z, torch.zeros_like(z)).sum() / (len(p) * len(n))
        grad += torch.autograd.grad(value, scores, retain_graph=True)[0]
        total += value.detach()
    return total, grad
