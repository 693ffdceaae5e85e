"""Triplet loss over all pairs of a query (handbook chapter, 'Triplet Loss').

    value = mean over P_i x N_i of max(0, margin - s+ + s-);  0 for a query without negatives

A panel is read once for each positive, in blocks that stay in the processor's cache. The cost is linear in the number
of scores, and each further positive adds a few percent. Scores are not divided by a temperature.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.losses.batch import PAD, BatchIds, Candidates
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.rows import write_positives
from raytriever.losses.scores import LossShare, Panel, Sparse, reduce_scores

# A block and its two workspaces fit into the last-level cache. Smaller blocks spend their time on starting threads.
BLOCK_SCORES = {"cpu": 1 << 20, "cuda": 1 << 24}


def triplet(config: LossConfig, batch: Candidates, ids: BatchIds, workers: WorkerGroup) -> LossShare:
    """Compute the hinge over all pairs of a query."""
    reduction = TripletReduction(batch.relevance.positives, config.margin, batch.relevance.rows)
    batch = replace(batch, log_temperature=torch.zeros_like(batch.log_temperature))
    return LossShare(reduce_scores(reduction, batch, config.loss_precision), {})


class TripletReduction:
    """Reduction of the panels of one batch by the triplet loss."""

    dense = True

    def __init__(self, columns: Int64[Tensor, "rows positives"], margin: float, rows: int) -> None:
        self._columns, self._margin, self._rows = columns, margin, rows
        self._values: list[Tensor] = []
        self.sparse: list[Sparse] = []

    def start(self, queries: Tensor, embeddings: Tensor) -> None:
        """Do nothing: no row is needed before its panel."""

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add the panel's rows to the value, and write the derivatives of its scores."""
        columns = self._columns[panel.rows]
        is_positive = columns != PAD
        # No score exceeds the bar of a padded slot.
        bars = (panel.scores.gather(1, columns.clamp(min=0)) - self._margin).masked_fill(~is_positive, torch.inf)
        panel.exclude(-torch.inf)
        excluded = torch.zeros(len(columns), dtype=torch.int64, device=columns.device)
        excluded.index_add_(0, panel.excluded[0], torch.ones_like(panel.excluded[0]))
        pairs = is_positive.sum(1) * (panel.scores.shape[1] - excluded)
        weight = (pairs.clamp(min=1) * self._rows).to(panel.scores.dtype).reciprocal()
        sums, exceeded = torch.zeros_like(bars), torch.zeros_like(bars)
        width = panel.scores.shape[1]
        height = max(1, BLOCK_SCORES.get(panel.scores.device.type, BLOCK_SCORES["cpu"]) // width)
        for start in range(0, len(columns), height):
            block = slice(start, start + height)
            derivatives = panel.derivatives[block]
            self._walk(panel.scores[block], derivatives, bars[block], sums[block], exceeded[block], weight[block])
        self._values.append((sums.sum(1, dtype=torch.float64) * weight).sum())
        write_positives(panel.derivatives, columns, -(exceeded * weight[:, None]))

    def finish(self) -> Float[Tensor, ""]:
        """Return this worker's share of the mean over all rows."""
        return torch.stack(self._values).sum()

    def _walk(
        self,
        scores: Float[Tensor, "rows candidates"],
        derivatives: Float[Tensor, "rows candidates"],
        bars: Float[Tensor, "rows positives"],
        sums: Float[Tensor, "rows positives"],
        exceeded: Float[Tensor, "rows positives"],
        weight: Float[Tensor, " rows"],
    ) -> None:
        """Write the sum and number of the excesses over each bar, and the derivatives, which may replace the scores."""
        over = torch.empty_like(scores)
        counts = torch.zeros_like(scores)
        for slot in range(bars.shape[1]):
            torch.sub(scores, bars[:, slot, None], out=over).clamp_(min=0)
            torch.sum(over, 1, out=sums[:, slot])
            over.sign_()
            torch.sum(over, 1, out=exceeded[:, slot])
            counts += over
        torch.mul(counts, weight[:, None], out=derivatives)
