"""Row losses: a small function of one query's negatives, reduced to one number, and of its positives' scores.

A file that defines a row loss sees only small tensors, in units of the temperature, and autograd differentiates them.
This file contains the rest. For a panel of whole rows,

    statistic_i = LSE (or max) over N_i of s / tau
    value       = mean over rows of f(statistic_i, positives_i)
    d value / d n = f'_statistic softmax_{N_i}(n)        (for max: at the first maximum only)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from raytriever.losses.engine.batch import BatchIds
from raytriever.losses.engine.relevance import PAD
from raytriever.losses.engine.sweep import Panel, Sparse
from raytriever.losses.engine.teacher import SoftLabels

RowValue = Callable[
    [Float[Tensor, " rows"], Float[Tensor, "rows positives"], Bool[Tensor, "rows positives"]],
    Float[Tensor, " rows"],
]


def all_positives(columns: Int64[Tensor, "rows positives"], ids: BatchIds) -> Int64[Tensor, "rows positives"]:
    """Return every positive of each query."""
    return columns


def first_positive(columns: Int64[Tensor, "rows positives"], ids: BatchIds) -> Int64[Tensor, "rows one"]:
    """Return the first positive of each query's group."""
    first = (columns != PAD).int().argmax(1, keepdim=True)
    return columns.gather(1, first)


@dataclass(frozen=True)
class RowLoss:
    """Definition of a loss that is a mean over queries.

    A loss with constants is a function that makes this definition from the `LossConfig`; see `registry.by_row`.

    Args:
        negatives: reduction of a query's negatives to one number, -inf for a query without negatives.
        value: function of (the reduced negatives [rows], the positives' scores [rows, positives], True in the slots
            that hold a positive [rows, positives]) that returns the loss of each query [rows]. Scores are in units of
            the temperature.
        positives: function that selects the positives that the loss compares. The others are no negatives either.
    """

    negatives: Literal["logsumexp", "maximum"]
    value: RowValue
    positives: Callable[[Tensor, BatchIds], Tensor] = all_positives


def softplus(difference: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """Return log(1 + exp(difference)), exact at both ends (PyTorch's softplus is linear from 20)."""
    return torch.logaddexp(difference, torch.zeros_like(difference))


def write_positives(
    derivatives: Float[Tensor, "rows candidates"],
    columns: Int64[Tensor, "rows positives"],
    by_positive: Float[Tensor, "rows positives"],
) -> None:
    """Write the derivatives by the positives' scores to their columns, `PAD` in empty slots.

    An empty slot repeats the first positive of its row: to leave it out, the processor would wait for the GPU.
    """
    is_positive = columns != PAD
    first = is_positive.int().argmax(1, keepdim=True)
    slots = torch.where(is_positive, torch.arange(columns.shape[1], device=columns.device), first)
    derivatives.scatter_(1, columns.gather(1, slots), by_positive.gather(1, slots).to(derivatives.dtype))


class RowReduction:
    """Reduction of the panels of one batch by a row loss."""

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
        """Do nothing: no row is needed before its panel."""

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel's rows to the value, and write the derivatives of its scores."""
        columns = self._columns[panel.rows]
        is_positive = columns != PAD
        positives = panel.scores.gather(1, columns.clamp(min=0))
        if self._soft_labels is not None:
            self._soft_labels.weigh(panel)
        panel.exclude(-torch.inf)
        peak, peak_columns = panel.scores.max(1)
        is_empty = peak == -torch.inf
        statistic = peak
        if self.dense:
            panel.scores.sub_(peak.masked_fill(is_empty, 0)[:, None]).exp_()
            mass = panel.scores.sum(1)
            statistic = peak + mass.log()
        by_statistic, by_positive = self._differentiate(statistic, positives, is_positive)
        if not differentiate:
            return
        if self.dense:
            by_score = by_statistic / mass.masked_fill(is_empty, 1)
            torch.mul(panel.scores, by_score[:, None], out=panel.derivatives)
            write_positives(panel.derivatives, columns, by_positive)
        else:
            rows = torch.arange(panel.rows.start, panel.rows.stop, device=columns.device)
            # The derivative of an empty slot is 0, and its column any.
            every_row = rows[:, None].expand_as(columns).flatten()
            by_slot = by_positive.masked_fill(~is_positive, 0).flatten()
            self.sparse.append((every_row, columns.clamp(min=0).flatten(), by_slot))
            self.sparse.append((rows, peak_columns, by_statistic))

    def finish(self) -> Float[Tensor, ""]:
        """Return this worker's share of the mean over all rows."""
        return torch.stack(self._values).sum()

    def _differentiate(self, statistic: Tensor, positives: Tensor, is_positive: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            statistic = statistic.detach().requires_grad_()
            positives = positives.detach().requires_grad_()
            value = self._loss.value(statistic, positives, is_positive).sum(dtype=torch.float64) / self._rows
            self._values.append(value.detach())
            by_statistic, by_positive = torch.autograd.grad(value, (statistic, positives))
        return by_statistic, by_positive
