"""Row losses: a small function of one query's negatives, reduced to one number, and of its positives' scores.

A file that defines a row loss sees only tiny tensors, in units of the temperature, and autograd
differentiates them. What they share is here: for a panel of whole rows,

    statistic_i = LSE (or max) over N_i of s / tau,      value = mean over rows of f(statistic_i,
    positives_i) d value / d n = f'_statistic softmax_{N_i}(n)        (at the first maximum alone for max)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from raytriever.losses.engine.batch import PAD, BatchIds
from raytriever.losses.engine.soft_labels import SoftLabels
from raytriever.losses.engine.sweep import Panel, Sparse

RowValue = Callable[
    [Float[Tensor, " rows"], Float[Tensor, "rows positives"], Bool[Tensor, "rows positives"]],
    Float[Tensor, " rows"],
]


def all_positives(columns: Int64[Tensor, "rows positives"], ids: BatchIds) -> Int64[Tensor, "rows positives"]:
    """Every positive of a query."""
    return columns


def first_positive(columns: Int64[Tensor, "rows positives"], ids: BatchIds) -> Int64[Tensor, "rows one"]:
    """The positive that stands first in the query's group."""
    first = (columns != PAD).int().argmax(1, keepdim=True)
    return columns.gather(1, first)


@dataclass(frozen=True)
class RowLoss:
    """What there is to know of a loss that is a mean over queries.

    Args:
        negatives: how a query's negatives are reduced, to -inf when it has none.
        value: (that number, the positives' scores, where they hold) -> the query's loss.
        positives: which of a query's positives the loss compares; the others still are no negatives.
    """

    negatives: Literal["logsumexp", "maximum"]
    value: RowValue
    positives: Callable[[Tensor, BatchIds], Tensor] = all_positives


def softplus(difference: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """log(1 + exp(difference)), exact at both ends (PyTorch's own turns linear at 20)."""
    return torch.logaddexp(difference, torch.zeros_like(difference))


class RowReduction:
    """A row loss at work on the panels of one batch."""

    tempered = True

    def __init__(
        self,
        loss: RowLoss,
        columns: Int64[Tensor, "rows positives"],
        rows: int,
        soft_labels: SoftLabels | None = None,
    ) -> None:
        self._loss, self._columns, self._rows, self._soft_labels = loss, columns, rows, soft_labels
        self._values: list[Tensor] = []
        self.dense = loss.negatives == "logsumexp"
        self.sparse: list[Sparse] = []

    def start(self, queries: Tensor, embeddings: Tensor) -> None:
        """Nothing of a row is needed before its panel."""

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel's rows to the value; turn its scores into derivatives."""
        columns = self._columns[panel.rows]
        held = columns != PAD
        local = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)
        positives = panel.scores.gather(1, columns.clamp(min=0))
        if self._soft_labels is not None:
            self._soft_labels.weigh(panel)
        panel.exclude(-torch.inf)
        peak, at = panel.scores.max(1)
        none = peak == -torch.inf
        statistic = peak
        if self.dense:
            panel.scores.sub_(peak.masked_fill(none, 0)[:, None]).exp_()
            mass = panel.scores.sum(1)
            statistic = peak + mass.log()
        by_statistic, by_positive = self._differentiate(statistic, positives, held)
        if not differentiate:
            return
        if self.dense:
            panel.scores.mul_((by_statistic / mass.masked_fill(none, 1))[:, None])
            panel.scores[local[held], columns[held]] = by_positive[held]
        else:
            rows = local + panel.rows.start
            self.sparse.append((rows[held], columns[held], by_positive[held]))
            self.sparse.append((rows[:, 0], at, by_statistic))

    def finish(self) -> Float[Tensor, ""]:
        """This worker's share of the mean over all rows."""
        return torch.stack(self._values).sum()

    def _differentiate(self, statistic: Tensor, positives: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            statistic = statistic.detach().requires_grad_()
            positives = positives.detach().requires_grad_()
            value = self._loss.value(statistic, positives, held).sum(dtype=torch.float64) / self._rows
            self._values.append(value.detach())
            by_statistic, by_positive = torch.autograd.grad(value, (statistic, positives))
        return by_statistic, by_positive
