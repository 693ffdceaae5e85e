"""Losses by row: means over queries of a small function of a query's positives and negatives.

The function gets small tensors: the scores of the positives, and one number per query that summarizes the negatives.
Autograd differentiates it. `RowReduction` does the rest, for a panel of whole rows i with negatives N_i:

    statistic_i = LSE (or max) over N_i of s / tau
    value       = mean over rows of f(statistic_i, positives_i)
    d value / d n = f'_statistic softmax_{N_i}(n)        (for max: only at the first maximum)

The equations are those of the multi-positive paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from raytriever.losses.batch_and_temperature import PAD, Candidates, RowRelevance, first_positive
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.score_matrix import Panel, PartialLoss, Reduction, ScoreLoss, reduce_scores

RowValue = Callable[
    [Float[Tensor, " rows"], Float[Tensor, "rows positives"], Bool[Tensor, "rows positives"]],
    Float[Tensor, " rows"],
]


def all_positives(relevance: RowRelevance) -> Int64[Tensor, "rows positives"]:
    """Return the columns of all positives of each query."""
    return relevance.positives


@dataclass(frozen=True)
class RowLoss:
    """Definition of a loss that is a mean over queries.

    A loss with hyperparameters is a function that returns this definition for a `LossConfig`; see `by_row`."""

    # How the negatives of a query are reduced to one number. A query without negatives gets -inf.
    negatives: Literal["logsumexp", "maximum"]
    # Function that returns the loss of each query [rows]. Its arguments are the reduced negatives [rows], the
    # positives' scores [rows, positives], and True in the slots that hold a positive [rows, positives]. Scores are in
    # units of the temperature.
    value: RowValue
    # Function that returns the columns of the positives that the loss uses. A query's other positives are never its
    # negatives.
    positives: Callable[[RowRelevance], Tensor] = all_positives


def softplus(difference: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """Return log(1 + exp(difference)), accurate for small and large values (PyTorch's softplus is linear above 20)."""
    return torch.logaddexp(difference, torch.zeros_like(difference))


# ----------------------------------------------------------------------------------------------------------- the losses


def infonce(negatives: Tensor, positives: Tensor, is_positive: Tensor) -> Tensor:
    """InfoNCE, or SingleLH: the first positive against its negatives (Eq. 3-4 and 8).

    LSE({s+} u N_i) - s+ = log(1 + sum_{n in N_i} exp(n - s+))"""
    return softplus(negatives - positives[:, 0])


INFONCE = RowLoss("logsumexp", infonce, first_positive)


def joint(negatives: Tensor, positives: Tensor, is_positive: Tensor) -> Tensor:
    """JointLH: every positive must be likely (Eq. 6; its gradient pulls each probability to 1/|P_i|, Eq. 10).

    LSE(P_i u N_i) - mean of P_i = a + softplus(LSE(N_i) - mean of P_i - a),  a = LSE(P_i) - mean of P_i"""
    mean = positives.masked_fill(~is_positive, 0).sum(1) / is_positive.sum(1)
    own = (positives - mean[:, None]).masked_fill(~is_positive, -torch.inf).logsumexp(1)
    # The difference of two large numbers would make a small loss inaccurate.
    return own + softplus(negatives - mean - own)


JOINT = RowLoss("logsumexp", joint)


def summarg(negatives: Tensor, positives: Tensor, is_positive: Tensor) -> Tensor:
    """SumMargLH: the positives together must be likely (Eq. 7; the best positive has most weight, Eq. 11).

    LSE(P_i u N_i) - LSE(P_i) = softplus(LSE(N_i) - LSE(P_i))"""
    return softplus(negatives - positives.masked_fill(~is_positive, -torch.inf).logsumexp(1))


SUMMARG = RowLoss("logsumexp", summarg)


def lsepair(negatives: Tensor, positives: Tensor, is_positive: Tensor) -> Tensor:
    """LSEPair: every positive should score above every negative (Eq. 9; low positives have most weight, Eq. 12).

    log(1 + sum_{p in P_i} sum_{n in N_i} exp(n - p)) = softplus(LSE(N_i) + LSE(-P_i)), so no P x N table is built."""
    return softplus(negatives + (-positives).masked_fill(~is_positive, -torch.inf).logsumexp(1))


LSEPAIR, LSEPAIR_MAXN = RowLoss("logsumexp", lsepair), RowLoss("maximum", lsepair)


def lsepair_maxp(negatives: Tensor, positives: Tensor, is_positive: Tensor) -> Tensor:
    """LSEPair of the highest positive only (section 6.2)."""
    return softplus(negatives - positives.masked_fill(~is_positive, -torch.inf).max(1).values)


LSEPAIR_MAXP = RowLoss("logsumexp", lsepair_maxp)


def lsepair_minp(negatives: Tensor, positives: Tensor, is_positive: Tensor) -> Tensor:
    """LSEPair of the lowest positive only (section 6.2)."""
    return softplus(negatives - positives.masked_fill(~is_positive, torch.inf).min(1).values)


LSEPAIR_MINP, LSEPAIR_MINP_MAXN = RowLoss("logsumexp", lsepair_minp), RowLoss("maximum", lsepair_minp)


# Constants of the random number generator SplitMix64, as signed 64-bit integers.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def sample_positive(relevance: RowRelevance) -> Int64[Tensor, "rows one"]:
    """Sample one positive of each query uniformly, again in every step: Rand1LH (Eq. 5).

    The sample is a function of (seed, step, query id). It does not depend on the number of workers, on the position
    of the query in the batch, or on earlier samples."""
    columns, is_positive, queries = relevance.positives, relevance.is_positive, relevance.queries
    state = torch.full_like(queries, relevance.seed)
    for word in (torch.full_like(queries, relevance.step), queries):
        state = _mix(state + _GOLDEN) ^ word
    # The product of a number of 31 bits and a number of positives of at most 2^31 has at most 62 bits.
    uniform = (_mix(state + _GOLDEN) >> 33) & 0x7FFFFFFF
    choice = (uniform * is_positive.sum(1)) >> 31
    slot = (is_positive & (is_positive.cumsum(1) == choice[:, None] + 1)).int().argmax(1, keepdim=True)
    return columns.gather(1, slot)


def _mix(state: Int64[Tensor, " rows"]) -> Int64[Tensor, " rows"]:
    """Apply the finalizer of SplitMix64. It needs products that wrap around, as int64 products do."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        state = (state ^ _shift_right(state, shift)) * factor
    return state ^ _shift_right(state, 31)


def _shift_right(state: Int64[Tensor, " rows"], by: int) -> Int64[Tensor, " rows"]:
    # PyTorch's right shift of an int64 repeats the sign bit. The mask makes it a shift of an unsigned number.
    return (state >> by) & ((1 << (64 - by)) - 1)


RAND1 = RowLoss("logsumexp", infonce, sample_positive)


# ------------------------------------------------------------------------------------------- over the score matrix


def by_row(loss: RowLoss | Callable[[LossConfig], RowLoss]) -> ScoreLoss:
    """Return the score loss for a row loss, or for a function that returns a row loss for the settings."""

    def reduce(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> PartialLoss:
        row_loss = loss if isinstance(loss, RowLoss) else loss(config)
        columns = row_loss.positives(batch.relevance)
        return reduce_scores(RowReduction(row_loss, columns, batch.relevance.rows), batch, config.loss_precision)

    return reduce


def symmetric(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> PartialLoss:
    """Compute the mean of two InfoNCE losses: query to passage, and passage to query (handbook, 'Symmetric')."""
    both = batch, batch.exchange_roles(workers)
    forward, backward = (by_row(INFONCE)(config, batch, workers) for batch in both)
    return PartialLoss((forward.partial + backward.partial) / 2, {})


def write_positives(
    derivatives: Float[Tensor, "rows candidates"],
    columns: Int64[Tensor, "rows positives"],
    by_positive: Float[Tensor, "rows positives"],
) -> None:
    """Write the derivatives with respect to the positives' scores to their columns. `PAD` marks an empty slot.

    For an empty slot, the first positive of its row is written again. Skipping it would make the CPU wait for a GPU."""
    is_positive = columns != PAD
    first = is_positive.int().argmax(1, keepdim=True)
    slots = torch.where(is_positive, torch.arange(columns.shape[1], device=columns.device), first)
    derivatives.scatter_(1, columns.gather(1, slots), by_positive.gather(1, slots).to(derivatives.dtype))


class RowReduction(Reduction):
    """Reduction of one batch, panel by panel, to the mean of a row loss over all rows."""

    def __init__(self, loss: RowLoss, columns: Int64[Tensor, "rows positives"], rows: int) -> None:
        super().__init__()
        self._loss, self._columns, self._rows = loss, columns, rows
        self.dense = loss.negatives == "logsumexp"

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel's rows to the value, and write the derivatives of its scores."""
        columns = self._columns[panel.rows]
        is_positive = columns != PAD
        positives = panel.scores.gather(1, columns.clamp(min=0))
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
            # The derivative of an empty slot is 0, so any column is valid for it.
            every_row = rows[:, None].expand_as(columns).flatten()
            by_slot = by_positive.masked_fill(~is_positive, 0).flatten()
            self.sparse.append((every_row, columns.clamp(min=0).flatten(), by_slot))
            self.sparse.append((rows, peak_columns, by_statistic))

    def _differentiate(self, statistic: Tensor, positives: Tensor, is_positive: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            statistic = statistic.detach().requires_grad_()
            positives = positives.detach().requires_grad_()
            value = self._loss.value(statistic, positives, is_positive).sum(dtype=torch.float64) / self._rows
            self.values.append(value.detach())
            by_statistic, by_positive = torch.autograd.grad(value, (statistic, positives))
        return by_statistic, by_positive


# -------------------------------------------------------------------------------------------------------------- triplet


# Number of scores of a block. On a CPU, a block and its two workspaces fit into the last-level cache. With smaller
# blocks, starting threads takes most of the time.
BLOCK_SCORES = {"cpu": 1 << 20, "cuda": 1 << 24}


def triplet(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> PartialLoss:
    """Compute the mean hinge loss over all pairs of a positive and a negative of a query."""
    reduction = TripletReduction(batch.relevance.positives, config.margin, batch.relevance.rows)
    batch = replace(batch, log_temperature=torch.zeros_like(batch.log_temperature))
    return reduce_scores(reduction, batch, config.loss_precision)


class TripletReduction(Reduction):
    """Reduction of one batch, panel by panel, to the triplet loss (handbook chapter, 'Triplet Loss').

        value = mean over P_i x N_i of max(0, margin - s+ + s-);  0 for a query without negatives

    The panel is read once for each positive slot, in blocks that stay in the CPU's cache. So the cost is linear in the
    number of scores, and each further positive adds a few percent. Scores are not divided by a temperature."""

    def __init__(self, columns: Int64[Tensor, "rows positives"], margin: float, rows: int) -> None:
        super().__init__()
        self._columns, self._margin, self._rows = columns, margin, rows

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel's rows to the value, and write the derivatives of its scores."""
        columns = self._columns[panel.rows]
        is_positive = columns != PAD
        # The bound of an empty slot is infinite, so no score exceeds it.
        bars = (panel.scores.gather(1, columns.clamp(min=0)) - self._margin).masked_fill(~is_positive, torch.inf)
        panel.exclude(-torch.inf)
        excluded = torch.zeros(len(columns), dtype=torch.int64, device=columns.device)
        excluded.index_add_(0, panel.excluded[0], torch.ones_like(panel.excluded[0]))
        pairs = is_positive.sum(1) * (panel.scores.shape[1] - excluded)
        weight = (pairs.clamp(min=1) * self._rows).to(panel.scores.dtype).reciprocal()
        sums, exceeded = torch.zeros_like(bars), torch.zeros_like(bars)
        height = max(1, BLOCK_SCORES.get(panel.scores.device.type, BLOCK_SCORES["cpu"]) // panel.scores.shape[1])
        for start in range(0, len(columns), height):
            block = slice(start, start + height)
            scores = panel.scores[block]
            over, counts = torch.empty_like(scores), torch.zeros_like(scores)
            for slot in range(bars.shape[1]):
                torch.sub(scores, bars[block, slot, None], out=over).clamp_(min=0)
                torch.sum(over, 1, out=sums[block, slot])
                torch.sum(over.sign_(), 1, out=exceeded[block, slot])
                counts += over
            torch.mul(counts, weight[block, None], out=panel.derivatives[block])  # may overwrite the scores
        self.values.append((sums.sum(1, dtype=torch.float64) * weight).sum())
        write_positives(panel.derivatives, columns, -(exceeded * weight[:, None]))
