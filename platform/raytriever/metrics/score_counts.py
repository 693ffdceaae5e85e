"""Scores of two pools, counted in bins of bounded memory: a pool of any size, in any order, from any number of workers.

1. A score's cell is given by the upper half of its bits (`score_bits.py`). A cell gets bins when the first score falls
   into it; as long as there is room every float32 has a bin of its own, and nothing is lost.
2. When room runs out, cells are cut into fewer bins. What is not known then is the order of different scores in one
   bin: a cell with P positives, N negatives and b bins has about PN / b such pairs, so the least for a given total is
   at b ~ sqrt(PN). Cells into which few scores fall, as those around zero, have few bins then.
3. Counts of other workers are added cell by cell, at the coarser of the two cuts.

What a cell has lost does not come back: pools whose first scores are unlike the rest are counted less finely.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64, UInt32, UInt64
from numpy import ndarray

from raytriever.metrics.auc import check_pairs
from raytriever.metrics.inputs import MetricInputError, scores_of
from raytriever.metrics.score_bits import CELLS, PLACES, add_cells, count_bins, count_cells, shrink

POSITIVES, NEGATIVES = 0, 1
CHUNK = 1 << 20
# Cells are cut to this share of the room, so that those to come find some.
FILLED = 0.75


class ScoreCounts:
    """Counts of the scores of positives and negatives; only the memory of used bins is taken."""

    def __init__(self, budget: int = 512 * 2**20) -> None:
        """No scores yet.

        Args:
            budget: bytes the counts may take, at least 4 MiB.
        """
        self.room = budget // 20  # two counts of eight bytes a bin, and what it has seen
        if self.room < 2 * CELLS:
            raise MetricInputError(f"a budget of {budget} bytes", "score counts", "give at least 4 MiB")
        self.counts: UInt64[ndarray, "pools room"] = np.zeros((2, self.room), np.uint64)
        self.seen: UInt32[ndarray, " room"] = np.zeros(self.room, np.uint32)
        self.mass: UInt64[ndarray, "pools cells"] = np.zeros((2, CELLS), np.uint64)
        self.bins: Int64[ndarray, " cells"] = np.zeros(CELLS, np.int64)
        self.bases: Int64[ndarray, " cells"] = np.zeros(CELLS, np.int64)
        self.rounded = False
        self._used = 0
        self._fineness = np.inf

    @property
    def sizes(self) -> tuple[int, int]:
        """How many positives and negatives were counted."""
        return int(self.mass[POSITIVES].sum()), int(self.mass[NEGATIVES].sum())

    def add(self, positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"]) -> None:
        """Count more scores, of any range, infinities allowed; float64 is rounded to float32, which is remembered.

        Raises:
            MetricInputError: a score is NaN, or there would be 2^63 pairs or more. Nothing is counted then.
        """
        pools = scores_of(positives, "scores of positives"), scores_of(negatives, "scores of negatives")
        ours, theirs = self.sizes
        check_pairs(ours + len(pools[0]), theirs + len(pools[1]))
        for pool, scores in enumerate(pools):
            for start in range(0, len(scores), CHUNK):
                count_cells(self._bits(scores[start : start + CHUNK]), self.mass[pool])
        fresh = np.where(self.mass.any(0), self._wanted(), 0)
        self._arrange(np.where(self.bins > 0, self.bins, fresh))
        shifts = np.log2(PLACES // np.maximum(self.bins, 1)).astype(np.uint32)
        for pool, scores in enumerate(pools):
            for start in range(0, len(scores), CHUNK):
                count_bins(self._bits(scores[start : start + CHUNK]), self.bases, shifts, self.counts[pool], self.seen)

    def merge(self, other: ScoreCounts) -> None:
        """Count the scores of another too; `other` stays as it is.

        Raises:
            MetricInputError: there would be 2^63 pairs or more.
        """
        check_pairs(*(mine + its for mine, its in zip(self.sizes, other.sizes, strict=True)))
        self.mass += other.mass
        self.rounded |= other.rounded
        both = (self.bins > 0) & (other.bins > 0)
        self._arrange(np.where(both, np.minimum(self.bins, other.bins), np.maximum(self.bins, other.bins)))
        cells = np.flatnonzero(other.bins)
        its = other.counts, other.seen, other.bases[cells], other.bins[cells]
        add_cells(*its, self.counts, self.seen, self.bases[cells], self.bins[cells])

    def _bits(self, scores: ndarray) -> UInt32[ndarray, " scores"]:
        if scores.dtype != np.float32:
            with np.errstate(over="ignore"):  # beyond float32 is infinite
                single = scores.astype(np.float32)
            self.rounded |= bool((single != scores).any())
            scores = single
        return scores.view(np.uint32)

    def _wanted(self) -> Int64[ndarray, " cells"]:
        """The number of bins of each cell as fine as it was last settled on."""
        if np.isinf(self._fineness):
            return np.full(CELLS, PLACES)
        return _power(self._fineness + self._weights())

    def _weights(self) -> Float64[ndarray, " cells"]:
        """The binary logarithm of sqrt(PN), P and N as shares of the pools."""
        shares = (self.mass + 1.0) / (self.mass.sum(1, keepdims=True) + 1.0)
        return np.log2(shares).sum(0) / 2

    def _arrange(self, most: Int64[ndarray, " cells"]) -> None:
        """Give each cell as many bins as `most` says, 0 for none; fewer where room does not suffice."""
        if most.sum() > self.room:
            weights, coarse, fine = self._weights(), -1.0, 64.0
            for _ in range(20):
                middle = (coarse + fine) / 2
                fits = np.minimum(most, _power(middle + weights)).sum() <= FILLED * self.room
                coarse, fine = (middle, fine) if fits else (coarse, middle)
            self._fineness = coarse
            most = np.minimum(most, _power(coarse + weights))
        there = np.flatnonzero(self.bins)
        there = there[np.argsort(self.bases[there])]
        if (most[there] < self.bins[there]).any():
            self._used = shrink(self.counts, self.seen, self.bases[there], self.bins[there], most[there])
            self.bases[there] = np.cumsum(most[there]) - most[there]
        new = np.flatnonzero((self.bins == 0) & (most > 0))
        self.bases[new] = self._used + np.cumsum(most[new]) - most[new]
        self._used += int(most[new].sum())
        self.bins = most

    def __getstate__(self) -> dict[str, Any]:
        """Only used bins travel between workers."""
        used = {"counts": self.counts[:, : self._used].copy(), "seen": self.seen[: self._used].copy()}
        return self.__dict__ | used

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.counts = np.zeros((2, self.room), np.uint64)
        self.counts[:, : self._used] = state["counts"]
        self.seen = np.zeros(self.room, np.uint32)
        self.seen[: self._used] = state["seen"]


def _power(exponents: Float64[ndarray, " cells"]) -> Int64[ndarray, " cells"]:
    """Powers of two of the exponents' floors, from one bin to one for every place."""
    return 2 ** np.clip(np.floor(exponents), 0, 16).astype(np.int64)
