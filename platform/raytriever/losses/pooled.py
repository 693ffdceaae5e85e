"""Losses over all pairs of a query and a document of the batch: `cosent` and `bce`.

Both compare scores of different queries, as `mw` does, and both take graded relevance. A pair has a label from 0 to 1:
its grade in the data, otherwise 1 for a positive and 0 for a negative. The labeled pairs are few (`labeled_pairs`); all
others have label 0 and are read once, panel by panel:

1. `cosent` is one log-sum-exp over the negatives of the whole batch. The highest score so far is subtracted. If a panel
   has a higher score, the derivatives of earlier panels are rescaled, as in an online softmax.
2. `bce` is a sum over pairs. Its derivative for the bias is the sum of its derivatives for all scores."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from raytriever.losses.batch_and_temperature import PAD, Candidates
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.row_losses import BLOCK_SCORES, write_positives
from raytriever.losses.score_matrix import Panel, PartialLoss, Reduction, reduce_scores

# For x of at least this value, softplus(x) equals x, even in double precision.
LINEAR_FROM = 40.0


def labeled_pairs(batch: Candidates) -> tuple[Int64[Tensor, "rows pairs"], Float[Tensor, "rows pairs"]]:
    """Return the columns of each row's positives and graded passages, `PAD` in empty slots, and the labels, 0 to 1.

    A positive without a grade has label 1. Labels of empty slots may be NaN."""
    columns, group = batch.relevance.positives, batch.relevance.labels
    ones = torch.ones_like(columns, dtype=batch.queries.dtype)
    if group is None:
        return columns, ones
    has_grade = (columns[:, :, None] == group.columns[:, None, :]).any(2)
    columns = torch.cat([columns.masked_fill(has_grade, PAD), group.columns], 1)
    return columns, torch.cat([ones, group.scores.to(ones.dtype)], 1)


class _PooledReduction(Reduction):
    """Reduction that reads the labeled pairs of a panel separately from the other pairs."""

    def __init__(self, candidates: Candidates) -> None:
        super().__init__()
        self._columns, self._labels = labeled_pairs(candidates)
        self._is_pair = self._columns != PAD

    def _take_labeled(self, panel: Panel) -> Float[Tensor, "rows pairs"]:
        """Return the scores of the panel's labeled pairs. In the panel, only unlabeled negatives keep their scores."""
        columns = self._columns[panel.rows]
        scores = panel.scores.gather(1, columns.clamp(min=0))
        panel.exclude(-torch.inf)
        write_positives(panel.scores, columns, torch.full_like(scores, -torch.inf))
        return scores


def cosent(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> PartialLoss:
    """Compute CoSENT: one log-sum-exp over all pairs of two scores of the batch whose labels differ."""
    return reduce_scores(CosentReduction(batch, workers), batch, config.loss_precision)


class CosentReduction(_PooledReduction):
    """Reduction of one batch, panel by panel, to CoSENT (Huang et al., 2024).

        value = log(1 + sum over all i, j with label_i < label_j of exp(s_i - s_j))

    With binary relevance it is softplus(LSE(n) + LSE(-p)). The unlabeled negatives enter as their log-sum-exp, like one
    score of label 0. The labeled scores of all workers are sorted by label; cumulative log-sum-exps from both ends then
    give the value and all derivatives. The batch has one value. Each worker's partial loss is an equal part of it."""

    def __init__(self, candidates: Candidates, workers: WorkerGroup) -> None:
        super().__init__(candidates)
        self._workers, self._scores = workers, list[Tensor]()
        like = candidates.queries
        self._peak, self._mass = like.new_full((), -torch.inf), like.new_zeros((), dtype=torch.float64)

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel's negatives to the sum, and write exp(n - peak) for each. `finish` scales these values."""
        self._scores.append(self._take_labeled(panel))
        peak = torch.maximum(self._peak, panel.scores.max())
        # A guide may have masked every negative. Then `peak` is -inf.
        unit = peak.masked_fill(peak == -torch.inf, 0)
        self.factor = torch.exp(self._peak - unit)
        self._peak = peak
        panel.scores.sub_(unit).exp_()
        self._mass = self._mass * self.factor + panel.scores.sum(1).sum(dtype=torch.float64)
        if panel.derivatives.dtype != panel.scores.dtype:
            panel.derivatives.copy_(panel.scores)

    def finish(self) -> Float[Tensor, ""]:
        """Return an equal part of the loss, and set the derivatives from the labeled scores of all workers."""
        scores = torch.cat(self._scores).double().masked_fill(~self._is_pair, -torch.inf)
        labels = self._labels.double().masked_fill(~self._is_pair, 0)
        own = torch.stack([scores, labels], 2).reshape(-1, 2)
        # The first score of each worker is the log-sum-exp of its negatives.
        negatives = functional.pad((self._mass.log() + self._peak).reshape(1, 1), (0, 1))
        everyones = self._workers.all_gather(torch.cat([negatives, own]))
        order = everyones[:, 1].argsort(stable=True)
        scores, labels = everyones[order].T.contiguous()
        lowered = torch.where(scores == -torch.inf, scores, -scores)
        # Use two rows, because a GPU scans a single row in no fixed order.
        sums = torch.stack([scores, lowered.flip(0)]).logcumsumexp(1)
        of_lower, of_higher = functional.pad(sums, (1, 0), value=-torch.inf)
        of_lower = of_lower[torch.searchsorted(labels, labels)]
        of_higher = of_higher[len(labels) - torch.searchsorted(labels, labels, right=True)]
        value = functional.softplus((lowered + of_lower).logsumexp(0), threshold=LINEAR_FROM)
        slopes = torch.exp(scores + of_higher - value) - torch.exp(lowered + of_lower - value)
        slopes = slopes[order.argsort()].reshape(self._workers.size, -1)[self._workers.rank]
        self.factor = (slopes[0] / self._mass.clamp(min=torch.finfo(torch.float64).tiny)).to(self._peak.dtype)
        rows = torch.arange(len(self._columns), device=scores.device).repeat_interleave(self._columns.shape[1])
        columns = self._columns.clamp(min=0).flatten()
        self.sparse.append((rows, columns, slopes[1:].to(self._peak.dtype)))
        return value / self._workers.size


def bce(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> PartialLoss:
    """Compute the binary cross-entropy of the labels over all pairs of a query and a document of the batch."""
    assert batch.bias is not None
    reduction = BceReduction(batch, config.positive_weight)
    reduced = reduce_scores(reduction, batch, config.loss_precision)
    by_bias = reduction.by_bias.to(batch.bias.dtype)
    partial = reduced.partial + (batch.bias - batch.bias.detach()) * by_bias
    return PartialLoss(partial, {"bce_threshold": (-batch.bias * batch.log_temperature.exp()).detach()})


class BceReduction(_PooledReduction):
    """Reduction of one batch, panel by panel, to the sigmoid loss (SigLIP; Zhai et al., 2023, arXiv:2303.15343).

        value = sum over all pairs of (w y softplus(-(s + b)) + (1 - y) softplus(s + b)) / number of queries

    y is the label (BiXSE; Tsirigotis et al., 2025, arXiv:2508.06781), b the bias in units of tau, and w the weight of a
    positive.

    Attributes:
        by_bias: derivative of this worker's partial loss with respect to the bias.
    """

    def __init__(self, candidates: Candidates, positive_weight: float) -> None:
        super().__init__(candidates)
        assert candidates.bias is not None
        self._bias, self._weight = candidates.bias.detach(), positive_weight
        self._rows = candidates.relevance.rows
        self.by_bias = candidates.queries.new_zeros((), dtype=torch.float64)

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel's pairs, and write the derivatives of the loss. `finish` scales these derivatives."""
        is_pair, labels = self._is_pair[panel.rows], self._labels[panel.rows]
        labeled = self._take_labeled(panel).add_(self._bias)
        of_one, of_zero = labels * _softplus(-labeled), (1 - labels) * _softplus(labeled)
        by_label = (1 - labels) * torch.sigmoid(labeled) - self._weight * labels * torch.sigmoid(-labeled)
        by_label.masked_fill_(~is_pair, 0)
        of_one, of_zero = (term.masked_fill_(~is_pair, 0).sum(dtype=torch.float64) for term in (of_one, of_zero))
        sums, slopes = [self._weight * of_one, of_zero], [by_label.sum(dtype=torch.float64)]
        height = max(1, BLOCK_SCORES.get(panel.scores.device.type, BLOCK_SCORES["cpu"]) // panel.scores.shape[1])
        for start in range(0, len(labels), height):
            scores = panel.scores[start : start + height].add_(self._bias)
            sums.append(_softplus(scores).sum(1).sum(dtype=torch.float64))
            if differentiate:
                slopes.append(scores.sigmoid_().sum(1).sum(dtype=torch.float64))
                if panel.derivatives.dtype != scores.dtype:
                    panel.derivatives[start : start + height] = scores
        self.values.append(torch.stack(sums).sum() / self._rows)
        write_positives(panel.derivatives, self._columns[panel.rows], by_label)
        self.by_bias += torch.stack(slopes).sum() / self._rows

    def finish(self) -> Float[Tensor, ""]:
        """Return this worker's partial loss, and divide the derivatives by the number of queries."""
        self.factor = self._columns.new_full((), 1, dtype=self._bias.dtype) / self._rows
        return super().finish()


def _softplus(scores: Tensor) -> Tensor:
    return functional.softplus(scores, threshold=LINEAR_FROM)
