"""Weighted sum of losses of one batch.

    L = sum over k of w_k L_k

All losses have the same candidates, temperature, nested widths and regulariser. Losses that read the score matrix in
panels share one pass: the scores are computed once, and the sum of the derivatives is multiplied once, so a further
loss costs no matrix product. The other losses compute their own share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.batch import BatchIds, Candidates
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.scores import LossShare, Panel, PanelLoss, Reduction, ScoreLoss, reduce_scores


def weighted_sum(losses: Sequence[ScoreLoss], weights: Sequence[float], titles: Sequence[str]) -> ScoreLoss:
    """Return the weighted sum of losses, which also logs each without its weight as `loss_TITLE`."""

    def reduce(config: LossConfig, batch: Candidates, ids: BatchIds, workers: WorkerGroup) -> LossShare:
        shares, statistics, total = dict[int, Tensor](), dict[str, Tensor](), list[Tensor]()
        built = {
            number: loss.build(config, batch, ids, workers)
            for number, loss in enumerate(losses)
            if isinstance(loss, PanelLoss)
        }
        for number, loss in enumerate(losses):
            if number not in built:
                own = loss(config, batch, ids, workers)
                shares[number] = own.share.detach()
                statistics |= own.statistics
                total.append(weights[number] * own.share)
        if built:
            reduction = SumReduction([(weights[number], each) for number, each in built.items()])
            total.append(reduce_scores(reduction, batch, config.loss_precision))
            shares |= dict(zip(built, reduction.shares, strict=True))
            statistics |= reduction.statistics
        values = workers.all_reduce(torch.stack([shares[number].to(total[0].dtype) for number in range(len(losses))]))
        statistics |= {f"loss_{title}": value for title, value in zip(titles, values, strict=True)}
        return LossShare(torch.stack(total).sum(), statistics)

    return reduce


class SumReduction(Reduction):
    """Reduction of the panels of one batch by a weighted sum; `terms` are the weight and reduction of each loss."""

    def __init__(self, terms: Sequence[tuple[float, Reduction]]) -> None:
        super().__init__()
        self._terms = terms
        # The last one may overwrite the scores, and its derivatives are the sum's if any are dense.
        self._ordered = sorted(terms, key=lambda term: term[1].dense)
        self._copies: list[Tensor] = []
        self.dense = self._ordered[-1][1].dense
        self.shares: list[Tensor] = []

    def start(self, queries: Tensor, embeddings: Tensor) -> None:
        """Prepare every loss for the first panel."""
        for _, reduction in self._terms:
            reduction.start(queries, embeddings)

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel to every loss, and write the sum of the derivatives of its scores."""
        if not self._copies:  # of the first panel, which is the highest
            self._copies = [torch.empty_like(panel.scores) for _ in self._ordered[1:]]
        # Copied before any loss overwrites the scores.
        scores = [copy[: len(panel.scores)].copy_(panel.scores) for copy in self._copies] + [panel.scores]
        for (_, reduction), own in zip(self._ordered, scores, strict=True):
            reduction.reduce(replace(panel, scores=own, derivatives=own), differentiate)
        if not (self.dense and differentiate):
            return
        total = scores[-1].mul_(self._ordered[-1][0])
        for (weight, reduction), own in zip(self._ordered[:-1], scores, strict=False):
            if reduction.dense:
                total.add_(own, alpha=weight)
        if total is not panel.derivatives:
            panel.derivatives.copy_(total)

    def finish(self) -> Float[Tensor, ""]:
        """Return this worker's share of the sum, in double precision."""
        self.shares = [reduction.finish().detach() for _, reduction in self._terms]
        for weight, reduction in self._terms:
            self.sparse += [(rows, columns, weight * by_score) for rows, columns, by_score in reduction.sparse]
            self.statistics |= reduction.statistics
        return torch.stack([weight * share for (weight, _), share in zip(self._terms, self.shares, strict=True)]).sum()
