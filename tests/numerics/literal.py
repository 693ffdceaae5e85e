"""The losses as their papers print them, in double precision, one query and one document at a time: the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from raytriever.losses.config import LossConfig
from raytriever.losses.engine.batch import BatchIds, TeacherScores


@dataclass
class Example:
    """Embeddings and ids of a batch, and what to expect of it."""

    queries: Tensor
    passages: Tensor
    ids: BatchIds


def example(
    seed: int,
    batch: int = 5,
    hard: int = 2,
    positives: int = 3,
    width: int = 6,
    levels: int = 0,
    repeats: bool = True,
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
    queries = make(batch, width, generator=generator).double()
    documents = make(len(passages), width, generator=generator).double()
    teacher = taught(torch.tensor(groups), passages[-batch * hard :].reshape(batch, hard), seed)
    ids = BatchIds(torch.arange(batch) + 100, torch.tensor(groups), passages, known, seed=seed, step=3, teacher=teacher)
    return Example(queries.requires_grad_(), documents.requires_grad_(), ids)


def taught(positives: Tensor, hard: Tensor, seed: int) -> TeacherScores:
    """Groups in which the first hard negative stands twice, two documents are other queries', of which one is known to
    be relevant to the first; some pairs have no score, and one query has none at all."""
    others = hard.flatten()[[0, -3]].expand(len(hard), 2)
    documents = torch.cat([positives, hard, hard[:, :1], others], 1)
    of_all = torch.randn(len(hard), 1000, generator=torch.Generator().manual_seed(seed + 77), dtype=torch.float64) * 2
    of_all[-1][hard[-1]] = of_all[1, positives[1, 0]] = of_all[len(hard) // 2] = torch.nan
    scores = of_all.gather(1, documents.clamp(min=0))
    return TeacherScores(documents, scores)


def own_groups(queries: Tensor, passages: Tensor, ids: BatchIds) -> Iterator[dict[int, tuple[Tensor, float]]]:
    """For each query its own group's distinct documents that the teacher has scored: our score, and the teacher's."""
    assert ids.teacher is not None
    row_of = {document: row for row, document in reversed(list(enumerate(ids.passages.tolist())))}
    for query, documents, scores in zip(queries, ids.teacher.documents.tolist(), ids.teacher.scores, strict=True):
        yield {
            document: (passages[row_of[document]] @ query, float(score))
            for document, score in zip(documents, scores, strict=True)
            if document >= 0 and not torch.isnan(score)
        }


def sets(queries: Tensor, passages: Tensor, ids: BatchIds) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """Scores of each query's positives, of its negatives, and the documents of its positives."""
    row_of: dict[int, int] = {}
    for row, document in enumerate(ids.passages.tolist()):
        row_of.setdefault(document, row)
    for i, query in enumerate(queries):
        mine = [d for d in dict.fromkeys(ids.positives[i].tolist()) if d >= 0]
        known = set(ids.known[i].tolist()) if ids.known is not None else set()
        others = [row for document, row in row_of.items() if document not in mine and document not in known]
        yield passages[[row_of[d] for d in mine]] @ query, passages[others] @ query, mine


def lse(*parts: Tensor) -> Tensor:
    joined = torch.cat([part.reshape(-1) for part in parts])
    return torch.logsumexp(joined, 0) if len(joined) else torch.tensor(-torch.inf, dtype=torch.float64)


def softplus(value: Tensor) -> Tensor:
    return torch.logaddexp(value, torch.zeros_like(value))


def scrambled(state: int) -> int:
    full = (1 << 64) - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & full
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & full
    return state ^ (state >> 31)


def draw(seed: int, step: int, query: int, count: int) -> int:
    full, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15
    state = seed
    for word in (step, query):
        state = scrambled((state + golden) & full) ^ word
    return ((scrambled((state + golden) & full) >> 33) * count) >> 31


def kl(queries: Tensor, passages: Tensor, ids: BatchIds, config: LossConfig) -> Tensor:
    """The mean over the queries with two scored passages or more."""
    values = []
    for group in own_groups(queries, passages, ids):
        if len(group) > 1:
            student = torch.stack([ours for ours, _ in group.values()]) / config.temperature
            teacher = torch.tensor([theirs for _, theirs in group.values()], dtype=torch.float64)
            p = (teacher / config.teacher_temperature).softmax(0)
            values.append((p * (p.log() - student + lse(student))).sum())
    return torch.stack(values).mean() if values else 0 * queries.sum()


def margin_mse(queries: Tensor, passages: Tensor, ids: BatchIds, config: LossConfig) -> Tensor:
    """The mean over all pairs of a positive and a negative of one group."""
    errors = []
    for i, group in enumerate(own_groups(queries, passages, ids)):
        mine = set(ids.positives[i].tolist())
        known = set(ids.known[i].tolist()) if ids.known is not None else set()
        for p in group.keys() & mine:
            for n in group.keys() - mine - known:
                ours = (group[p][0] - group[n][0]) / config.temperature
                errors.append((ours - (group[p][1] - group[n][1]) / config.teacher_temperature) ** 2)
    return torch.stack(errors).mean() if errors else 0 * queries.sum()


def softened(queries: Tensor, passages: Tensor, ids: BatchIds, config: LossConfig) -> list[Tensor]:
    """What each query's negatives are to be raised by so that they count 1 - sigmoid(teacher) times."""
    row_of: dict[int, int] = {}
    for row, document in enumerate(ids.passages.tolist()):
        row_of.setdefault(document, row)
    raised = []
    for i, group in enumerate(own_groups(queries, passages, ids)):
        mine = set(ids.positives[i].tolist())
        known = set(ids.known[i].tolist()) if ids.known is not None else set()
        others = [document for document in row_of if document not in mine and document not in known]
        weights = [
            1 - torch.tensor(group[n][1] / config.teacher_temperature, dtype=torch.float64).sigmoid()
            if n in group
            else torch.ones((), dtype=torch.float64)
            for n in others
        ]
        raised.append(torch.stack(weights).log() * config.temperature if weights else queries.new_zeros(0))
    return raised


def by_query(name: str, p: Tensor, n: Tensor, config: LossConfig, drawn: int) -> Tensor:
    t = config.temperature
    table = (n[None, :] - p[:, None]) / t
    if name == "infonce":
        return lse(p[:1] / t, n / t) - p[0] / t
    if name == "rand1":
        return lse(p[drawn] / t, n / t) - p[drawn] / t
    if name == "joint":
        return torch.stack([lse(p / t, n / t) - one / t for one in p]).mean()
    if name == "summarg":
        return lse(p / t, n / t) - lse(p / t)
    if name == "lsepair":
        return softplus(lse(table))
    highest, lowest = p.argmax(), p.argmin()
    if name == "lsepair-maxp":
        return softplus(lse(table[highest]))
    if name == "lsepair-minp":
        return softplus(lse(table[lowest]))
    if name == "lsepair-maxn":
        return softplus(lse(table[:, n.argmax()]))
    if name == "lsepair-minp-maxn":
        return softplus(table[lowest, n.argmax()])
    assert name == "triplet"
    return torch.relu(config.margin - p[:, None] + n[None, :]).mean()


def backwards(queries: Tensor, passages: Tensor, ids: BatchIds, t: Tensor | float) -> Tensor:
    """InfoNCE from each first positive to its query, among the distinct queries it is no positive of."""
    row_of: dict[int, int] = {}
    for row, document in enumerate(ids.passages.tolist()):
        row_of.setdefault(document, row)
    known = ids.known if ids.known is not None else ids.positives
    values = []
    for i in range(len(queries)):
        document = int(ids.positives[i][0])
        passage = passages[row_of[document]]
        others = [
            j
            for j in range(len(queries))
            if document not in ids.positives[j].tolist() and document not in known[j].tolist()
        ]
        own = queries[i] @ passage / t
        values.append(lse(own, queries[others] @ passage / t) - own)
    return torch.stack(values).mean()


def literal(config: LossConfig, queries: Tensor, passages: Tensor, ids: BatchIds) -> Tensor:
    """The loss of `config` over a whole batch."""
    every = list(sets(queries, passages, ids))
    if config.loss == "mw":
        positives = torch.cat([p for p, _, _ in every])
        negatives = torch.cat([n for _, n, _ in every])
        pairs = softplus((negatives[None, :] - positives[:, None]) / config.temperature)
        value = pairs.mean() if config.reduction == "mean" else pairs.sum() / len(queries)
    elif config.loss in ("kl", "margin-mse") and ids.teacher is not None:
        value = (kl if config.loss == "kl" else margin_mse)(queries, passages, ids, config)
    elif config.loss == "infonce-symmetric":
        there = torch.stack([by_query("infonce", p, n, config, 0) for p, n, _ in every]).mean()
        value = (there + backwards(queries, passages, ids, config.temperature)) / 2
    else:
        values = []
        if config.soft_labels:
            raised = softened(queries, passages, ids, config)
            every = [(p, n + more, mine) for (p, n, mine), more in zip(every, raised, strict=True)]
        for query, (p, n, _) in zip(ids.queries.tolist(), every, strict=True):
            values.append(by_query(config.loss, p, n, config, draw(ids.seed, ids.step, query, len(p))))
        value = torch.stack(values).mean()
    if config.distribution_weight:
        distinct = list({d: i for i, d in reversed(list(enumerate(ids.passages.tolist())))}.values())
        apart = [(q - passages[row]).square().sum() for q in queries for row in distinct]
        value = value + config.distribution_weight * torch.stack(apart).mean()
    return value


def auc(queries: Tensor, passages: Tensor, ids: BatchIds) -> float:
    """The share of pairs in the right order, ties counted half."""
    every = list(sets(queries.detach(), passages.detach(), ids))
    positives, negatives = torch.cat([p for p, _, _ in every]), torch.cat([n for _, n, _ in every])
    apart = positives[:, None] - negatives[None, :]
    return float(((apart > 0).double() + (apart == 0).double() / 2).mean())
