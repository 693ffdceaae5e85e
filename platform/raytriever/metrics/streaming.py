"""AUC of pools that are larger than memory, with a bound on its error.

Scores are counted in bins of bounded memory, in any order and by any number of workers. The order of scores in
different bins is known. Of the pairs that share a bin, half count as ordered.

The bits of a float32, with the sign bit inverted for positive numbers and all bits inverted for negative ones, are an
unsigned integer of the same order as the number, infinities included; -0 counts as 0. The upper 16 bits are the cell of
a score, and the lower 16 bits its position in the cell. A cell is divided into a power of two of bins; with 65,536 bins
each bin is one float32. Each bin also remembers its score as long as it has only one, so repeated scores stay ties in
bins of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from jaxtyping import Float, Float64, Int64, UInt32, UInt64
from numpy import ndarray

from raytriever.metrics.auc import check_pairs
from raytriever.metrics.inputs import MetricInputError, scores_of

POSITIVES, NEGATIVES = 0, 1
CELLS = 1 << 16
# Positions in a cell.
POSITIONS = 1 << 16
# Content of a bin: 0 for no score, 1 + position for a single score, or several scores.
SEVERAL = np.uint32(POSITIONS + 1)
# Scores that are counted at once.
CHUNK = 1 << 20
# Cells are divided to fill this share of the memory, so that new cells find some.
FILLED = 0.75


@numba.njit(cache=True)
def _key(bits):  # type: ignore[no-untyped-def]
    if bits == np.uint32(0x80000000):
        return bits
    return ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)


@numba.njit(cache=True)
def count_cells(bits, mass):  # type: ignore[no-untyped-def]
    """Add scores, given as their bits, to the counts of their cells."""
    for index in range(len(bits)):
        mass[_key(bits[index]) >> np.uint32(16)] += np.uint64(1)


@numba.njit(cache=True)
def count_bins(bits, bases, shifts, counts, seen):  # type: ignore[no-untyped-def]
    """Add scores, given as their bits, to the counts of their bins.

    Args:
        bits: bits of float32 scores without NaN.
        bases: first bin of each cell.
        shifts: number of the lower 16 bits that the bins of each cell ignore.
        counts: counts of all bins.
        seen: content of each bin.
    """
    for index in range(len(bits)):
        key = _key(bits[index])
        cell, position = key >> np.uint32(16), key & np.uint32(0xFFFF)
        bin = bases[cell] + (position >> shifts[cell])
        counts[bin] += np.uint64(1)
        if seen[bin] != position + np.uint32(1):
            seen[bin] = SEVERAL if seen[bin] else position + np.uint32(1)


@numba.njit(cache=True)
def _join(one, other):  # type: ignore[no-untyped-def]
    """Return the joint content of two bins."""
    if one == 0 or one == other:
        return other
    return one if other == 0 else SEVERAL


@numba.njit(cache=True)
def shrink(counts, seen, bases, bins, fewer):  # type: ignore[no-untyped-def]
    """Divide cells into fewer bins, move the bins together in place, and return their number.

    Args:
        counts: counts of both pools, one row each; free bins become 0.
        seen: content of each bin.
        bases, bins: first bin and number of bins of each cell, in the order of the memory.
        fewer: new number of bins of each cell, a divisor of the old one.
    """
    end = 0
    for cell in range(len(bases)):
        step = bins[cell] // fewer[cell]
        for bin in range(end, end + fewer[cell]):
            ours, theirs, scores = np.uint64(0), np.uint64(0), np.uint32(0)
            first = bases[cell] + (bin - end) * step
            for old in range(first, first + step):
                ours += counts[0, old]
                theirs += counts[1, old]
                scores = _join(scores, seen[old])
                counts[0, old] = counts[1, old] = seen[old] = 0
            counts[0, bin], counts[1, bin], seen[bin] = ours, theirs, scores
        end += fewer[cell]
    return end


@numba.njit(cache=True)
def add_cells(  # type: ignore[no-untyped-def]
    source, source_seen, source_bases, source_bins, target, target_seen, target_bases, target_bins
):
    """Add the counts of cells to the same cells in other arrays, which have as many bins or fewer."""
    for cell in range(len(source_bases)):
        step = source_bins[cell] // target_bins[cell]
        for bin in range(source_bins[cell]):
            here, there = source_bases[cell] + bin, target_bases[cell] + bin // step
            target[0, there] += source[0, here]
            target[1, there] += source[1, here]
            target_seen[there] = _join(target_seen[there], source_seen[here])


@numba.njit(cache=True)
def count_pairs(counts, seen, bases, bins, rounded):  # type: ignore[no-untyped-def]
    """Count pairs of a positive and a negative.

    Args:
        counts: counts of both pools, one row each.
        seen: content of each bin.
        bases, bins: first bin and number of bins of each cell, ascending in score.
        rounded: different scores may have the same bits.

    Returns:
        Twice the number of ordered pairs, in which a pair within a bin counts 1; and the number of pairs within a bin
        that may not be ties.
    """
    doubled, unknown, below = np.uint64(0), np.uint64(0), np.uint64(0)
    for cell in range(len(bases)):
        for bin in range(bases[cell], bases[cell] + bins[cell]):
            ours, theirs = counts[0, bin], counts[1, bin]
            doubled += ours * (below + below + theirs)
            below += theirs
            if rounded or seen[bin] == SEVERAL:
                unknown += ours * theirs
    return doubled, unknown


class ScoreCounts:
    """Counts of the scores of two pools in bins of bounded memory, for pools of any size and any number of workers.

    1. The upper half of a score's bits is its cell. A cell gets bins when the first score falls into it. As long as
       memory suffices, every float32 has a bin of its own, and nothing is lost.
    2. Otherwise cells are divided into fewer bins. The order of different scores in one bin is then unknown. A cell
       with P positives, N negatives and b bins has about PN / b such pairs, so their total is lowest for b ~ sqrt(PN).
       Cells with few scores, such as those around 0, then have few bins.
    3. Counts of other workers are added cell by cell, at the coarser of both divisions.

    A cell cannot be divided again into more bins. So pools whose first scores differ from the rest are counted less
    exactly. Only used bins take memory. Counts can be pickled, to send them from a worker.

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
        self.mass: UInt64[ndarray, "pools cells"] = np.zeros((2, CELLS), np.uint64)
        self.bins: Int64[ndarray, " cells"] = np.zeros(CELLS, np.int64)
        self.bases: Int64[ndarray, " cells"] = np.zeros(CELLS, np.int64)
        self.rounded = False
        self._used = 0
        self._fineness = np.inf

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of counted positives and negatives."""
        return int(self.mass[POSITIVES].sum()), int(self.mass[NEGATIVES].sum())

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
        ours, theirs = self.sizes
        check_pairs(ours + len(pools[0]), theirs + len(pools[1]))
        for pool, scores in enumerate(pools):
            for start in range(0, len(scores), CHUNK):
                count_cells(self._bits(scores[start : start + CHUNK]), self.mass[pool])
        fresh = np.where(self.mass.any(0), self._wanted(), 0)
        self._arrange(np.where(self.bins > 0, self.bins, fresh))
        shifts = np.log2(POSITIONS // np.maximum(self.bins, 1)).astype(np.uint32)
        for pool, scores in enumerate(pools):
            for start in range(0, len(scores), CHUNK):
                count_bins(self._bits(scores[start : start + CHUNK]), self.bases, shifts, self.counts[pool], self.seen)

    def merge(self, other: ScoreCounts) -> None:
        """Add the counts of another worker.

        Args:
            other: counts of other scores; it does not change.

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
        """Return the number of bins of each cell at the current fineness."""
        if np.isinf(self._fineness):
            return np.full(CELLS, POSITIONS)
        return _power(self._fineness + self._weights())

    def _weights(self) -> Float64[ndarray, " cells"]:
        """Return the binary logarithm of sqrt(PN) of each cell, with P and N as shares of the pools."""
        shares = (self.mass + 1.0) / (self.mass.sum(1, keepdims=True) + 1.0)
        return np.log2(shares).sum(0) / 2

    def _arrange(self, most: Int64[ndarray, " cells"]) -> None:
        """Give each cell `most` bins, or fewer if memory does not suffice; 0 for no bins."""
        if most.sum() > self.room:
            weights, coarse, fine = self._weights(), -1.0, 64.0
            for _ in range(20):
                middle = (coarse + fine) / 2
                fits = np.minimum(most, _power(middle + weights)).sum() <= FILLED * self.room
                coarse, fine = (middle, fine) if fits else (coarse, middle)
            self._fineness = coarse
            most = np.minimum(most, _power(coarse + weights))
        used = np.flatnonzero(self.bins)
        used = used[np.argsort(self.bases[used])]
        if (most[used] < self.bins[used]).any():
            self._used = shrink(self.counts, self.seen, self.bases[used], self.bins[used], most[used])
            self.bases[used] = np.cumsum(most[used]) - most[used]
        new = np.flatnonzero((self.bins == 0) & (most > 0))
        self.bases[new] = self._used + np.cumsum(most[new]) - most[new]
        self._used += int(most[new].sum())
        self.bins = most

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the used bins only."""
        used = {"counts": self.counts[:, : self._used].copy(), "seen": self.seen[: self._used].copy()}
        return self.__dict__ | used

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.counts = np.zeros((2, self.room), np.uint64)
        self.counts[:, : self._used] = state["counts"]
        self.seen = np.zeros(self.room, np.uint32)
        self.seen[: self._used] = state["seen"]


def _power(exponents: Float64[ndarray, " cells"]) -> Int64[ndarray, " cells"]:
    """Return 2 to the floor of each exponent, from 1 bin to one bin for each position."""
    return 2 ** np.clip(np.floor(exponents), 0, 16).astype(np.int64)


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
    cells = np.flatnonzero(counts.bins)
    doubled, unknown = count_pairs(counts.counts, counts.seen, counts.bases[cells], counts.bins[cells], counts.rounded)
    pairs = 2 * positives * negatives
    return BoundedAuc(int(doubled) / pairs, int(unknown) / pairs, positives, negatives)
