"""Losses over all pairs of a query and a document of the batch: `cosent` and `bce`.

Both compare scores of different queries, as `mw` does. They read each panel of scores once:

1. `cosent` is one log-sum-exp over the negatives of the whole batch. It subtracts the highest score so far. If a panel
   raises that score, the derivatives of earlier panels are rescaled, as in an online softmax.
2. `bce` is a sum over pairs. Its derivative by the bias is the sum of its derivatives by the scores.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from raytriever.losses.batch_and_temperature import PAD, Candidates
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.mw.mann_whitney import positive_scores
from raytriever.losses.row_losses import BLOCK_SCORES, write_positives
from raytriever.losses.score_matrix import LossShare, Panel, Reduction, reduce_scores

# From here on softplus(x) equals x, in double precision too.
LINEAR_FROM = 40.0


def cosent(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> LossShare:
    """Compute CoSENT: one log-sum-exp over all pairs of a positive and a negative of the batch."""
    return reduce_scores(CosentReduction(batch, workers), batch, config.loss_precision)


class CosentReduction(Reduction):
    """Reduction of one batch, panel by panel, to CoSENT (Huang et al., 2024).

        value = log(1 + sum over all p and all n of exp(n - p)) = softplus(LSE(n) + LSE(-p))

    The batch has one value, of which each worker's share is an equal part.
    """

    def __init__(self, candidates: Candidates, workers: WorkerGroup) -> None:
        super().__init__()
        self._candidates, self._workers = candidates, workers
        like = candidates.queries
        self._peak, self._mass = like.new_full((), -torch.inf), like.new_zeros((), dtype=torch.float64)
        self._positives: Tensor

    def start(self, queries: Tensor, embeddings: Tensor) -> None:
        """Compute the positives' scores."""
        self._positives = positive_scores(queries, embeddings, self._candidates)

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel's negatives to the sum, and write exp(n - peak) for each; `finish` scales these."""
        panel.exclude(-torch.inf)
        peak = torch.maximum(self._peak, panel.scores.max())
        # A guide may have masked every negative.
        unit = peak.masked_fill(peak == -torch.inf, 0)
        self.factor = torch.exp(self._peak - unit)
        self._peak = peak
        panel.scores.sub_(unit).exp_()
        self._mass = self._mass * self.factor + panel.scores.sum(1).sum(dtype=torch.float64)
        if panel.derivatives.dtype != panel.scores.dtype:
            panel.derivatives.copy_(panel.scores)

    def finish(self) -> Float[Tensor, ""]:
        """Return an equal part of the loss, and set the scale of the derivatives from the sums of all workers."""
        lowered = (-self._positives.double()).nan_to_num(nan=-torch.inf)
        peaks = self._workers.all_reduce(torch.stack([self._peak.double(), lowered.max()]), "max")
        units = peaks.masked_fill(peaks == -torch.inf, 0)
        by_positive = torch.exp(lowered - units[1])
        own = torch.stack([self._mass * torch.exp(self._peak.double() - units[0]), by_positive.sum()])
        masses = self._workers.all_reduce(own)
        sums = (masses.log() + units).sum()
        slope = torch.sigmoid(sums) / masses.clamp(min=torch.finfo(torch.float64).tiny)
        self.factor = (slope[0] * torch.exp(self._peak.double() - units[0])).to(self._peak.dtype)
        columns = self._candidates.relevance.slots
        rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)
        by_score = (-slope[1] * by_positive).to(self._peak.dtype)
        self.sparse.append((rows.flatten(), columns.flatten(), by_score.flatten()))
        return torch.logaddexp(sums, torch.zeros_like(sums)) / self._workers.size


def bce(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> LossShare:
    """Compute the binary cross-entropy of every pair of the batch: is the document relevant to the query?"""
    assert batch.bias is not None
    reduction = BceReduction(batch, config.positive_weight)
    reduced = reduce_scores(reduction, batch, config.loss_precision)
    by_bias = reduction.by_bias.to(batch.bias.dtype)
    share = reduced.share + (batch.bias - batch.bias.detach()) * by_bias
    return LossShare(share, {"bce_threshold": (-batch.bias * batch.log_temperature.exp()).detach()})


class BceReduction(Reduction):
    """Reduction of one batch, panel by panel, to the sigmoid loss (SigLIP; Zhai et al., 2023, arXiv:2303.15343).

        value = (w sum over all p of softplus(-(p + b)) + sum over all n of softplus(n + b)) / number of queries

    b is the bias, in units of tau, and w the weight of a positive.

    Attributes:
        by_bias: derivative of this worker's share by the bias.
    """

    def __init__(self, candidates: Candidates, positive_weight: float) -> None:
        super().__init__()
        assert candidates.bias is not None
        self._bias, self._weight = candidates.bias.detach(), positive_weight
        self._columns, self._rows = candidates.relevance.positives, candidates.relevance.rows
        self.by_bias = candidates.queries.new_zeros((), dtype=torch.float64)

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel's pairs, and write the derivatives by their scores; `finish` divides these by the queries."""
        columns = self._columns[panel.rows]
        is_positive = columns != PAD
        positives = panel.scores.gather(1, columns.clamp(min=0)).add_(self._bias)
        panel.exclude(-torch.inf)
        by_positive = -self._weight * torch.sigmoid(-positives).masked_fill_(~is_positive, 0)
        own = _softplus(-positives).masked_fill_(~is_positive, 0)
        sums = [self._weight * own.sum(dtype=torch.float64)]
        slopes = [by_positive.sum(dtype=torch.float64)]
        height = max(1, BLOCK_SCORES.get(panel.scores.device.type, BLOCK_SCORES["cpu"]) // panel.scores.shape[1])
        for start in range(0, len(columns), height):
            scores = panel.scores[start : start + height].add_(self._bias)
            sums.append(_softplus(scores).sum(1).sum(dtype=torch.float64))
            if differentiate:
                slopes.append(scores.sigmoid_().sum(1).sum(dtype=torch.float64))
                if panel.derivatives.dtype != scores.dtype:
                    panel.derivatives[start : start + height] = scores
        self.values.append(torch.stack(sums).sum() / self._rows)
        write_positives(panel.derivatives, columns, by_positive)
        self.by_bias += torch.stack(slopes).sum() / self._rows

    def finish(self) -> Float[Tensor, ""]:
        """Return this worker's share of the loss, and divide the derivatives by the number of queries."""
        self.factor = self._columns.new_full((), 1, dtype=self._bias.dtype) / self._rows
        return super().finish()


def _softplus(scores: Tensor) -> Tensor:
    return functional.softplus(scores, threshold=LINEAR_FROM)
