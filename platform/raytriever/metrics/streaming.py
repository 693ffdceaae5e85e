"""AUC of pools that are larger than memory, with a bound on its error.

Scores are counted in bins of bounded memory, in any order and by any number of workers. The order of scores in
different bins is known. Of the pairs that share a bin, half count as ordered.

The bits of a float32, with the sign bit inverted for positive numbers and all bits inverted for negative ones, are an
unsigned integer of the same order as the number, infinities included; -0 counts as 0. The upper 16 bits are the cell of
a score, and the lower 16 bits its position in the cell. All cells with scores are divided into the same power of two of
bins; with 65,536 bins each bin is one float32. Each bin also remembers its score as long as it has only one, so
repeated scores stay ties in bins of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from jaxtyping import Float, Int64, UInt32, UInt64
from numpy import ndarray

from raytriever.metrics.auc import check_pairs
from raytriever.metrics.inputs import MetricInputError, scores_of

CELLS = 1 << 16
# Positions in a cell.
POSITIONS = 1 << 16
# Content of a bin: 0 for no score, 1 + position for a single score, or several scores.
SEVERAL = np.uint32(POSITIONS + 1)
# Scores that are counted at once.
CHUNK = 1 << 20


@numba.njit(cache=True)
def _key(bits):  # type: ignore[no-untyped-def]
    if bits == np.uint32(0x80000000):
        return bits
    return ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)


@numba.njit(cache=True)
def mark_cells(bits, is_used):  # type: ignore[no-untyped-def]
    """Mark the cells of scores, given as their bits."""
    for index in range(len(bits)):
        is_used[_key(bits[index]) >> np.uint32(16)] = True


@numba.njit(cache=True)
def count_bins(bits, first_bins, shift, counts, seen):  # type: ignore[no-untyped-def]
    """Add scores, given as their bits, to the counts of their bins; a bin ignores `shift` bits of the position."""
    for index in range(len(bits)):
        key = _key(bits[index])
        position = key & np.uint32(0xFFFF)
        bin = first_bins[key >> np.uint32(16)] + (position >> shift)
        counts[bin] += np.uint64(1)
        if seen[bin] != position + np.uint32(1):
            seen[bin] = SEVERAL if seen[bin] else position + np.uint32(1)


@numba.njit(cache=True)
def count_pairs(counts, seen, first_bins, bins, rounded):  # type: ignore[no-untyped-def]
    """Count pairs of a positive and a negative.

    Args:
        counts: counts of both pools, one row each.
        seen: content of each bin.
        first_bins: first bin of each cell, ascending in score.
        bins: bins of a cell.
        rounded: different scores may have the same bits.

    Returns:
        Twice the number of pairs in order plus the number of ties, and the number of pairs of unknown order.
    """
    doubled, below, unknown = np.uint64(0), np.uint64(0), np.uint64(0)
    for first in first_bins:
        for bin in range(first, first + bins):
            ours, theirs = counts[0, bin], counts[1, bin]
            doubled += ours * (np.uint64(2) * below + theirs)
            below += theirs
            if rounded or seen[bin] == SEVERAL:
                unknown += ours * theirs
    return doubled, unknown


class ScoreCounts:
    """Counts of the scores of two pools in bins of bounded memory, for pools of any size and any number of workers.

    As long as memory suffices, every float32 has a bin of its own, and nothing is lost. When a new cell finds no room,
    all cells are divided into half as many bins. The order of different scores in one bin is then unknown. Counts can
    be pickled, to send them from a worker.

    Args:
        budget: most bytes of the counts, at least 4 MiB.

    Raises:
        MetricInputError: the budget is below 4 MiB.

    Examples:
        >>> counts, others = rt.metrics.ScoreCounts(), rt.metrics.ScoreCounts()
        >>> counts.add(np.array([0.9]), np.array([0.7, 0.1]))
        >>> others.add(np.array([0.5]), np.array([0.2]))
        >>> counts.merge(others)
        >>> counts.sizes
        (2, 3)
    """

    def __init__(self, budget: int = 512 * 2**20) -> None:
        self.room = budget // 20  # two counts of eight bytes and the content of four for each bin
        if self.room < 2 * CELLS:
            raise MetricInputError(f"a budget of {budget} bytes", "score counts", "give at least 4 MiB")
        self.counts: UInt64[ndarray, "pools room"] = np.zeros((2, self.room), np.uint64)
        self.seen: UInt32[ndarray, " room"] = np.zeros(self.room, np.uint32)
        self.cells: Int64[ndarray, " cells"] = np.zeros(0, np.int64)  # in the order of the memory
        self.bins = POSITIONS  # of each cell
        self.rounded = False
        self._sizes = (0, 0)

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of counted positives and negatives."""
        return self._sizes

    def add(self, positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"]) -> None:
        """Count more scores.

        Args:
            positives: scores of relevant pairs, `[positives]`, of any range; infinities are allowed. Scores of float64
                are rounded to float32, and the error bound of the AUC includes the rounding.
            negatives: scores of other pairs, `[negatives]`.

        Raises:
            MetricInputError: a score is NaN, or there would be 2^63 pairs or more. No score is counted then.
        """
        pools = scores_of(positives, "scores of positives"), scores_of(negatives, "scores of negatives")
        self._add_sizes(len(pools[0]), len(pools[1]))
        is_used = np.zeros(CELLS, bool)
        for scores in pools:
            for start in range(0, len(scores), CHUNK):
                mark_cells(self._bits(scores[start : start + CHUNK]), is_used)
        self._make_room(np.flatnonzero(is_used))
        first_bins, shift = np.full(CELLS, -1), np.uint32(np.log2(POSITIONS // self.bins))
        first_bins[self.cells] = self.bins * np.arange(len(self.cells))
        for counts, scores in zip(self.counts, pools, strict=True):
            for start in range(0, len(scores), CHUNK):
                count_bins(self._bits(scores[start : start + CHUNK]), first_bins, shift, counts, self.seen)

    def merge(self, other: ScoreCounts) -> None:
        """Add the counts of another worker.

        Args:
            other: counts of other scores; it does not change.

        Raises:
            MetricInputError: there would be 2^63 pairs or more.
        """
        self._add_sizes(*other.sizes)
        self.rounded |= other.rounded
        while self.bins > other.bins:
            self._halve_bins()
        self._make_room(other.cells)
        used, row = len(other.cells) * other.bins, {cell: row for row, cell in enumerate(self.cells.tolist())}
        rows = np.array([row[cell] for cell in other.cells.tolist()], np.int64)
        counts, seen = other.counts[:, :used], other.seen[:used]
        for _ in range(int(np.log2(other.bins // self.bins))):
            counts, seen = counts[:, ::2] + counts[:, 1::2], _join(seen[::2], seen[1::2])
        for place, first in enumerate(rows * self.bins):
            ours, theirs = slice(first, first + self.bins), slice(place * self.bins, (place + 1) * self.bins)
            self.counts[:, ours] += counts[:, theirs]
            self.seen[ours] = _join(self.seen[ours], seen[theirs])

    def _add_sizes(self, positives: int, negatives: int) -> None:
        ours, theirs = self._sizes
        check_pairs(ours + positives, theirs + negatives)
        self._sizes = ours + positives, theirs + negatives

    def _bits(self, scores: ndarray) -> UInt32[ndarray, " scores"]:
        if scores.dtype != np.float32:
            with np.errstate(over="ignore"):  # beyond float32 is infinite
                single = scores.astype(np.float32)
            self.rounded |= bool((single != scores).any())
            scores = single
        return scores.view(np.uint32)

    def _make_room(self, cells: Int64[ndarray, " cells"]) -> None:
        """Give each of these cells its bins; all cells have fewer if memory does not suffice."""
        self.cells = np.append(self.cells, np.setdiff1d(cells, self.cells))
        while len(self.cells) * self.bins > self.room:
            self._halve_bins()

    def _halve_bins(self) -> None:
        """Join two neighbouring bins each."""
        for values in (*self.counts, self.seen):
            joined = values[0 : self.room // 2 * 2 : 2], values[1::2][: self.room // 2]
            whole = _join(*joined) if values is self.seen else joined[0] + joined[1]
            values[: len(whole)] = whole
            values[len(whole) :] = 0
        self.bins //= 2

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the used bins only."""
        used = len(self.cells) * self.bins
        return self.__dict__ | {"counts": self.counts[:, :used].copy(), "seen": self.seen[:used].copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        used = len(state["seen"])
        self.counts, self.seen = np.zeros((2, self.room), np.uint64), np.zeros(self.room, np.uint32)
        self.counts[:, :used], self.seen[:used] = state["counts"], state["seen"]


def _join(ours: UInt32[ndarray, " bins"], theirs: UInt32[ndarray, " bins"]) -> UInt32[ndarray, " bins"]:
    """Return the joint content of bins."""
    return np.where(ours == 0, theirs, np.where((theirs == 0) | (ours == theirs), ours, SEVERAL))


@dataclass(frozen=True)
class BoundedAuc:
    """AUC with a bound on its error.

    Args:
        value: AUC, 0 to 1; NaN if a pool is empty.
        error_bound: largest possible difference from the exact AUC of all added scores; NaN if a pool is empty.
        positives: size of the pool of positives.
        negatives: size of the pool of negatives.

    Examples:
        >>> rt.metrics.BoundedAuc(0.75, 0.0, positives=2, negatives=2).value
        0.75
    """

    value: float
    error_bound: float
    positives: int
    negatives: int


def streaming_auc(counts: ScoreCounts) -> BoundedAuc:
    """Compute the AUC of all scores counted so far, with a bound on its error.

    Pairs in different bins have a known order. Pairs that share a bin count one half: if a bin holds one distinct score
    they are ties, so the value is exact if all bins do. Otherwise each of them is wrong by at most one half:

        |AUC - value| <= Σ_{bins of different scores} P_b N_b / (2 |P||N|)

    The error is far below the bound if both pools are smooth, because both orders are then about equally frequent
    within a bin.

    Args:
        counts: scores of both pools, see `ScoreCounts`.

    Returns:
        The AUC, 0 to 1, its error bound and the sizes of the pools. AUC and bound are NaN while a pool is empty.

    Examples:
        >>> counts = rt.metrics.ScoreCounts()
        >>> counts.add(np.array([0.9, 0.5]), np.array([0.7, 0.1]))
        >>> rt.metrics.streaming_auc(counts).value
        0.75
    """
    positives, negatives = counts.sizes
    if not positives or not negatives:
        return BoundedAuc(float("nan"), float("nan"), positives, negatives)
    first_bins = counts.bins * np.argsort(counts.cells)
    doubled, unknown = count_pairs(counts.counts, counts.seen, first_bins, counts.bins, counts.rounded)
    pairs = 2 * positives * negatives
    return BoundedAuc(int(doubled) / pairs, int(unknown) / pairs, positives, negatives)
