"""AUC of pools beyond memory, with a bound on its error.

Scores are counted in bins of bounded memory, in any order and by any number of workers. The order of scores in
different bins is known; of scores that share a bin half are taken as in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from jaxtyping import Float, Float64, Int64, UInt32, UInt64
from numpy import ndarray

from raytriever.metrics.auc import check_pairs
from raytriever.metrics.inputs import MetricInputError, scores_of

CELLS = 1 << 16
PLACES = 1 << 16
# What a bin has seen: nothing, one score (1 + its place in the cell), or several.
SEVERAL = np.uint32(PLACES + 1)


@numba.njit(cache=True)
def _key(bits):  # type: ignore[no-untyped-def]
    if bits == np.uint32(0x80000000):
        return bits
    return ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)


@numba.njit(cache=True)
def count_cells(bits, mass):  # type: ignore[no-untyped-def]
    """Add to each cell how many of the scores, given as their bits, lie in it."""
    for place in range(len(bits)):
        mass[_key(bits[place]) >> np.uint32(16)] += np.uint64(1)


@numba.njit(cache=True)
def count_bins(bits, bases, shifts, counts, seen):  # type: ignore[no-untyped-def]
    """Add the scores, given as their bits, to the counts of their bins.

    Args:
        bits: of float32 scores, none NaN.
        bases: the first bin of each cell.
        shifts: how many of the lower 16 bits a cell's bins do not tell apart.
        counts: of all bins.
        seen: what each bin has seen.
    """
    for number in range(len(bits)):
        key = _key(bits[number])
        cell, place = key >> np.uint32(16), key & np.uint32(0xFFFF)
        bin = bases[cell] + (place >> shifts[cell])
        counts[bin] += np.uint64(1)
        if seen[bin] != place + np.uint32(1):
            seen[bin] = SEVERAL if seen[bin] else place + np.uint32(1)


@numba.njit(cache=True)
def _together(one, other):  # type: ignore[no-untyped-def]
    """What two bins have seen."""
    if one == 0 or one == other:
        return other
    return one if other == 0 else SEVERAL


@numba.njit(cache=True)
def shrink(counts, seen, bases, bins, fewer):  # type: ignore[no-untyped-def]
    """Cut cells into fewer bins and move them together, in place; how many bins there are then.

    Args:
        counts: of both pools, a row each; what is freed becomes 0.
        seen: what each bin has seen.
        bases, bins: the cells' first bins and numbers of bins, in the order in which they lie.
        fewer: the new number of bins of each cell, a divisor of the old.
    """
    end = 0
    for cell in range(len(bases)):
        step = bins[cell] // fewer[cell]
        for bin in range(end, end + fewer[cell]):
            ours, theirs, scores = np.uint64(0), np.uint64(0), np.uint32(0)
            first = bases[cell] + (bin - end) * step
            for place in range(first, first + step):
                ours += counts[0, place]
                theirs += counts[1, place]
                scores = _together(scores, seen[place])
                counts[0, place] = counts[1, place] = seen[place] = 0
            counts[0, bin], counts[1, bin], seen[bin] = ours, theirs, scores
        end += fewer[cell]
    return end


@numba.njit(cache=True)
def add_cells(  # type: ignore[no-untyped-def]
    source, source_seen, source_bases, source_bins, target, target_seen, target_bases, target_bins
):
    """Add the counts of cells to those of the same cells in other arrays, which have as many bins or fewer."""
    for cell in range(len(source_bases)):
        step = source_bins[cell] // target_bins[cell]
        for bin in range(source_bins[cell]):
            here, there = source_bases[cell] + bin, target_bases[cell] + bin // step
            target[0, there] += source[0, here]
            target[1, there] += source[1, here]
            target_seen[there] = _together(target_seen[there], source_seen[here])


@numba.njit(cache=True)
def count_pairs(counts, seen, bases, bins, rounded):  # type: ignore[no-untyped-def]
    """Twice the pairs in order, pairs that share a bin counting one; and the pairs of these that may be no ties.

    Args:
        counts: of both pools, a row each.
        seen: what each bin has seen.
        bases, bins: the cells' first bins and numbers of bins, ascending in score.
        rounded: whether different scores may have the same bits.
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


POSITIVES, NEGATIVES = 0, 1
CHUNK = 1 << 20
# Cells are cut to this share of the room, so that those to come find some.
FILLED = 0.75


class ScoreCounts:
    """Counts of the scores of positives and negatives in bins, for `streaming_auc`. Unused bins take no memory.

    Args:
        budget: memory of the counts in bytes, at least 4 MiB.

    Raises:
        MetricInputError: the budget is too small.

    Example:
        >>> counts, others = rt.metrics.ScoreCounts(), rt.metrics.ScoreCounts()
        >>> counts.add(np.array([0.9]), np.array([0.7, 0.1]))
        >>> others.add(np.array([0.5]), np.array([0.2]))
        >>> counts.merge(others)
        >>> counts.sizes
        (2, 3)
    """

    def __init__(self, budget: int = 512 * 2**20) -> None:
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

        Args:
            positives: scores of relevant pairs.
            negatives: scores of other pairs.

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
        """Count the scores of another too.

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


@dataclass(frozen=True)
class BoundedAuc:
    """AUC with a bound on its error, returned by `streaming_auc`.

    Attributes:
        value: the AUC, 0 to 1.
        error_bound: largest possible distance from the exact AUC of the scores.
        positives: number of scores of positives.
        negatives: number of scores of negatives.

    Example:
        >>> rt.metrics.BoundedAuc(0.75, 0.0, positives=2, negatives=2).value
        0.75
    """

    value: float
    error_bound: float
    positives: int
    negatives: int


def streaming_auc(counts: ScoreCounts) -> BoundedAuc:
    """Compute the AUC of all scores counted so far, in bounded memory.

    Args:
        counts: counts of the scores. Several workers may count, and one may `merge` the counts.

    Returns:
        The AUC and a bound on its error; both NaN while a pool is empty.

    Example:
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
