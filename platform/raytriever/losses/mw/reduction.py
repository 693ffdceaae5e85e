"""Reduction of the engine by the Mann-Whitney loss, over the global batch of all workers.

Workers exchange the positives' scores, one bound on all scores, and one grid of sums whose size does not depend on the
batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.engine.batch import Candidates
from raytriever.losses.engine.sweep import Panel, Sparse
from raytriever.losses.engine.workers import Workers
from raytriever.losses.mw.pairwise import PairwiseSums, Walk

PairReduction = Literal["mean", "sum"]


def pair_weight(
    reduction: PairReduction, positives: int | Float[Tensor, ""], negatives: int, queries: int
) -> float | Float[Tensor, ""]:
    """Return the weight of one pair: for the mean over pairs (Eq. 2), or the sum over the number of queries (Eq. 3)."""
    return 1 / (positives * negatives) if reduction == "mean" else 1 / queries


class MWReduction:
    """Reduction of the panels of one batch by the Mann-Whitney loss."""

    tempered = True
    dense = True

    def __init__(self, candidates: Candidates, workers: Workers, reduction: PairReduction) -> None:
        self._candidates, self._workers, self._reduction = candidates, workers, reduction
        self.sparse: list[Sparse] = []
        self.statistics: dict[str, Tensor] = {}
        self._sums: PairwiseSums
        self._walk: Walk

    def start(self, queries: Tensor, embeddings: Tensor) -> None:
        """Tabulate the positives' side of the kernel sums."""
        own = positive_scores(queries, embeddings, self._candidates)
        positives = self._workers.gather_values(own.flatten()).double()
        # Operands in bf16 are longer than their embeddings by a factor of 1 + 2^-9 at most.
        bound = self._candidates.largest_score * (1 + 2**-7)
        count = (~positives.isnan()).sum(dtype=torch.float64)
        relevance = self._candidates.relevance
        weight = pair_weight(self._reduction, count, relevance.negatives, relevance.rows)
        self._sums = PairwiseSums(positives, -bound, bound, weight, own.dtype)
        self._walk = self._sums.walk()

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Sum the panel's negatives, and write the derivatives of its scores."""
        self._walk.add(panel.scores, panel.derivatives, *panel.excluded)

    def finish(self) -> Float[Tensor, ""]:
        """Return this worker's share of the mean over all pairs."""
        own = self._walk.sums()
        result = self._sums.result(own, self._workers.sum(own))
        columns = self._candidates.relevance.positives
        first = self._workers.rank * columns.numel()
        by_score = result.by_positive[first : first + columns.numel()].to(self._candidates.queries.dtype)
        rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)
        # The derivative of an empty slot is 0, and its column any.
        self.sparse.append((rows.flatten(), columns.clamp(min=0).flatten(), by_score))
        self.statistics["batch_auc"] = result.auc.to(torch.float32)
        return result.share


def positive_scores(
    queries: Float[Tensor, "rows width"], embeddings: Float[Tensor, "candidates width"], candidates: Candidates
) -> Float[Tensor, "rows positives"]:
    """Return the scores of this worker's positives, NaN in empty slots."""
    columns, precise = candidates.relevance.positives.clamp(min=0), queries.to(candidates.queries.dtype)
    scores = torch.stack([(precise * embeddings[column]).sum(1) for column in columns.T], 1)
    return scores.masked_fill(~candidates.relevance.is_positive, torch.nan)
