"""Float32 scores as integers in the same order, counted by cells and by bins of cells; compiled.

The bits of a float32, with the sign bit turned for positive numbers and all bits for negative ones, are an unsigned
integer that orders as the number does, infinities included; -0 is taken as 0. Its upper 16 bits are a score's cell, the
lower ones its place in the cell. A cell is cut into a power of two of bins: with all 65,536 of them a bin is one
float32. Beside its counts each bin remembers its score as long as it has seen one only, so that scores that repeat
stay ties however coarse their bin.
"""

from __future__ import annotations

import numba
import numpy as np

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
