"""Every loss as its paper prints it: a few lines each, in double precision, differentiable, and slow.

Read these first. The losses of training are faster forms of them, and tests compare value and gradients of both. For
one query, `p` are the scores of its positives, `n` those of its negatives, and `tau` is the temperature. `s` and `t`
are a student's and a teacher's scores of one query's own group of passages.

Examples:
    >>> p, n = torch.tensor([0.9, 0.7]).double(), torch.tensor([0.2, 0.1, 0.4]).double()
    >>> f"{infonce(p, n, tau=0.1):.4f}", f"{mann_whitney(p, n, tau=0.1):.4f}"
    ('0.0080', '0.0110')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from batch_ids import BatchIds
from torch import Tensor
from torch.nn import functional

from raytriever.losses.loss_settings import LossConfig

__all__ = [
    "bce",
    "cosent",
    "distribution_distance",
    "infonce",
    "joint",
    "kl",
    "lsepair",
    "lsepair_maxn",
    "lsepair_maxp",
    "lsepair_minp",
    "lsepair_minp_maxn",
    "mann_whitney",
    "margin_mse",
    "reference_loss",
    "summarg",
    "triplet",
]


def mann_whitney(p: Tensor, n: Tensor, tau: float) -> Tensor:
    """Mean over all pairs of a positive and a negative of the batch, across queries (AUC paper, Eq. 2)."""
    return _softplus((n[None, :] - p[:, None]) / tau).mean()


def cosent(s: Tensor, y: Tensor, tau: float) -> Tensor:
    """log(1 + the sum of exp((s_i - s_j) / tau) over all scores of the batch with labels y_i < y_j) (CoSENT, 2024)."""
    return _softplus(_lse(((s[:, None] - s[None, :]) / tau)[y[:, None] < y[None, :]]))


def bce(s: Tensor, y: Tensor, tau: float, threshold: float, positive_weight: float, queries: int) -> Tensor:
    """Sigmoid loss of all pairs of the batch, divided by the number of queries (SigLIP, 2023; BiXSE, 2025)."""
    weight = torch.tensor(positive_weight, dtype=torch.float64)
    logits = (s - threshold) / tau
    return functional.binary_cross_entropy_with_logits(logits, y, reduction="sum", pos_weight=weight) / queries


def infonce(p: Tensor, n: Tensor, tau: float) -> Tensor:
    """InfoNCE, or SingleLH: of the first positive (multi-positive paper, Eq. 3), or of a sampled one (Eq. 5)."""
    return _lse(p[:1] / tau, n / tau) - p[0] / tau


def joint(p: Tensor, n: Tensor, tau: float) -> Tensor:
    """JointLH: the mean negative log-likelihood of the positives (multi-positive paper, Eq. 6)."""
    return torch.stack([_lse(p / tau, n / tau) - item / tau for item in p]).mean()


def summarg(p: Tensor, n: Tensor, tau: float) -> Tensor:
    """SumMargLH: the negative log of the positives' summed likelihood (multi-positive paper, Eq. 7)."""
    return _lse(p / tau, n / tau) - _lse(p / tau)


def lsepair(p: Tensor, n: Tensor, tau: float) -> Tensor:
    """LSEPair: log(1 + the sum of exp((n - p) / tau) over all pairs) (multi-positive paper, Eq. 9)."""
    return _softplus(_lse((n[None, :] - p[:, None]) / tau))


def lsepair_maxp(p: Tensor, n: Tensor, tau: float) -> Tensor:
    """LSEPair of the highest positive (multi-positive paper, section 6.2)."""
    return lsepair(p[p.argmax()][None], n, tau)


def lsepair_minp(p: Tensor, n: Tensor, tau: float) -> Tensor:
    """LSEPair of the lowest positive (multi-positive paper, section 6.2)."""
    return lsepair(p[p.argmin()][None], n, tau)


def lsepair_maxn(p: Tensor, n: Tensor, tau: float) -> Tensor:
    """LSEPair of the highest negative (multi-positive paper, section 6.2)."""
    return lsepair(p, n[n.argmax()][None], tau)


def lsepair_minp_maxn(p: Tensor, n: Tensor, tau: float) -> Tensor:
    """LSEPair of the lowest positive and the highest negative (multi-positive paper, section 6.2)."""
    return lsepair(p[p.argmin()][None], n[n.argmax()][None], tau)


def triplet(p: Tensor, n: Tensor, margin: float) -> Tensor:
    """Hinge over all pairs of a query (handbook chapter, 'Triplet Loss')."""
    return torch.relu(margin - p[:, None] + n[None, :]).mean()


def kl(s: Tensor, t: Tensor, tau: float, teacher_tau: float) -> Tensor:
    """KL divergence from the teacher's distribution over a query's group (ColBERTv2, section 3.2)."""
    teacher = (t / teacher_tau).softmax(0)
    return (teacher * (teacher.log() - s / tau + _lse(s / tau))).sum()


def margin_mse(s_p: Tensor, s_n: Tensor, t_p: Tensor, t_n: Tensor, tau: float, teacher_tau: float) -> Tensor:
    """Squared difference of the student's and the teacher's margin of one pair (Hofstätter et al., 2020)."""
    return ((s_p - s_n) / tau - (t_p - t_n) / teacher_tau) ** 2


def distribution_distance(queries: Tensor, documents: Tensor) -> Tensor:
    """Mean squared distance of queries from the distinct documents of a batch (out-of-distribution paper, Eq. 3)."""
    return (queries[:, None, :] - documents[None, :, :]).square().sum(2).mean()


def _lse(*parts: Tensor) -> Tensor:
    joined = torch.cat([part.reshape(-1) for part in parts])
    return torch.logsumexp(joined, 0) if len(joined) else torch.tensor(-torch.inf, dtype=torch.float64)


def _softplus(value: Tensor) -> Tensor:
    return torch.logaddexp(value, torch.zeros_like(value))


# -------------------------------------------------------------------------------------------------------------- a batch


def reference_loss(config: LossConfig, queries: Tensor, passages: Tensor, ids: BatchIds) -> Tensor:
    """Return the loss of a whole batch by loops over its queries.

    Args:
        config: settings of the loss; `guide` and `matryoshka_dims` are not applied.
        queries, passages: embeddings in float64.
        ids: Ids of the queries and passages of the whole batch.
    """
    if len(config.terms) > 1:
        value = queries.new_zeros(())
        for weight, name in zip(config.weights, config.terms, strict=True):
            term = replace(config, loss=name, loss_weights=None, distribution_weight=0)
            value = value + weight * reference_loss(term, queries, passages, ids)
        return _regularized(value, config, queries, passages, ids)
    rows = list(query_scores(queries, passages, ids, config))
    tau = config.temperature
    p, n = torch.cat([row.positives for row in rows]), torch.cat([row.negatives for row in rows])
    if config.loss == "cosent":
        value = cosent(*labeled(rows), tau)
    elif config.loss == "bce":
        value = bce(*labeled(rows), tau, config.threshold, config.positive_weight, len(queries))
    elif config.loss == "mw":
        value = mann_whitney(p, n, tau)
        value = value if config.reduction == "mean" else value * len(p) * len(n) / len(queries)
    elif config.loss == "infonce-symmetric":
        values = [infonce(row.positives, row.negatives, tau) for row in rows]
        value = torch.stack([*values, *backward_values(queries, passages, ids, tau)]).mean()
    elif config.loss in ("kl", "margin-mse") and ids.teacher is not None:
        distilled = list(_distilled(config, rows))
        value = torch.stack(distilled).mean() if distilled else 0 * queries.sum()
    else:
        value = torch.stack([_of_query(config, row, ids, index) for index, row in enumerate(rows)]).mean()
    return _regularized(value, config, queries, passages, ids)


def _regularized(value: Tensor, config: LossConfig, queries: Tensor, passages: Tensor, ids: BatchIds) -> Tensor:
    if config.distribution_weight:
        documents = passages[list(_first_rows(ids).values())]
        value = value + config.distribution_weight * distribution_distance(queries, documents)
    return value


@dataclass
class QueryScores:
    """Scores of a query. `group`: (student, teacher, is positive, is negative) of documents that a teacher scored;
    `labeled`: the score and the label of each document that has one, 1 for positives and 0 for negatives by default."""

    positives: Tensor
    negatives: Tensor
    group: dict[int, tuple[Tensor, Tensor, bool, bool]]
    labeled: dict[int, tuple[Tensor, float]]


def labeled(rows: list[QueryScores]) -> tuple[Tensor, Tensor]:
    """Return the scores and the labels of all pairs of a batch that have one."""
    pairs = [pair for row in rows for pair in row.labeled.values()]
    return torch.stack([score for score, _ in pairs]), torch.tensor([label for _, label in pairs], dtype=torch.float64)


_BY_QUERY: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "infonce": infonce,
    "rand1": infonce,
    "joint": joint,
    "summarg": summarg,
    "lsepair": lsepair,
    "lsepair-maxp": lsepair_maxp,
    "lsepair-minp": lsepair_minp,
    "lsepair-maxn": lsepair_maxn,
    "lsepair-minp-maxn": lsepair_minp_maxn,
}


def _of_query(config: LossConfig, row: QueryScores, ids: BatchIds, index: int) -> Tensor:
    p, n = row.positives, row.negatives
    if config.loss == "triplet":
        return triplet(p, n, config.margin)
    if config.loss == "rand1":
        p = p[_sample(ids.seed, ids.step, int(ids.queries[index]), len(p))][None]
    return _BY_QUERY[config.loss](p, n, config.temperature)


def _distilled(config: LossConfig, rows: list[QueryScores]) -> Iterator[Tensor]:
    """Yield the values whose mean is the loss: of queries with two scored passages, or of pairs."""
    taus = config.temperature, config.teacher_temperature
    for row in rows:
        group = row.group.values()
        if config.loss == "kl" and len(group) > 1:
            yield kl(torch.stack([s for s, *_ in group]), torch.stack([t for _, t, *_ in group]), *taus)
        if config.loss == "margin-mse":
            for s_p, t_p, is_positive, _ in group:
                for s_n, t_n, _, is_negative in group:
                    if is_positive and is_negative:
                        yield margin_mse(s_p, s_n, t_p, t_n, *taus)


def query_scores(queries: Tensor, passages: Tensor, ids: BatchIds, config: LossConfig) -> Iterator[QueryScores]:
    """Yield the scores of each query. A document counts once; neither it nor a known positive is a negative."""
    row_of = _first_rows(ids)
    for i, query in enumerate(queries):
        positives = [d for d in dict.fromkeys(ids.positives[i].tolist()) if d >= 0]
        known = set(ids.known[i].tolist()) if ids.known is not None else set()
        negatives = [d for d in row_of if d not in positives and d not in known]
        group = dict[int, tuple[Tensor, Tensor, bool, bool]]()
        if ids.teacher is not None:
            for d, score in zip(ids.teacher.documents[i].tolist(), ids.teacher.scores[i].double(), strict=True):
                if d >= 0 and not torch.isnan(score):
                    group[d] = passages[row_of[d]] @ query, score, d in positives, d in negatives
        p, n = (passages[[row_of[d] for d in documents]] @ query for documents in (positives, negatives))
        labels = dict.fromkeys(positives, 1.0) | dict.fromkeys(negatives, 0.0)
        if ids.labels is not None:
            pairs = zip(ids.labels.documents[i].tolist(), ids.labels.scores[i].tolist(), strict=True)
            labels |= {d: label for d, label in pairs if d >= 0 and label == label}
        yield QueryScores(p, n, group, {d: (passages[row_of[d]] @ query, label) for d, label in labels.items()})


def _first_rows(ids: BatchIds) -> dict[int, int]:
    """Return the first row of each distinct document."""
    row_of = dict[int, int]()
    for row, document in enumerate(ids.passages.tolist()):
        row_of.setdefault(document, row)
    return row_of


def backward_values(queries: Tensor, passages: Tensor, ids: BatchIds, tau: float) -> Iterator[Tensor]:
    """Yield InfoNCE from each first positive to its query, among the distinct queries that it is no positive of."""
    row_of, known = _first_rows(ids), ids.positives if ids.known is None else ids.known
    for i in range(len(queries)):
        document = int(ids.positives[i][0])
        of_others = [
            j
            for j in range(len(queries))
            if document not in ids.positives[j].tolist() and document not in known[j].tolist()
        ]
        passage = passages[row_of[document]]
        yield infonce((queries[i] @ passage)[None], queries[of_others] @ passage, tau)


def _sample(seed: int, step: int, query: int, count: int) -> int:
    """Return the slot that `rand1` samples: the upper bits of SplitMix64 of (seed, step, query)."""
    state = seed
    for word in (step, query):
        state = _scramble(state) ^ word
    return ((_scramble(state) >> 33) * count) >> 31


def _scramble(state: int) -> int:
    full = (1 << 64) - 1
    state = (state + 0x9E3779B97F4A7C15) & full
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & full
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & full
    return state ^ (state >> 31)
