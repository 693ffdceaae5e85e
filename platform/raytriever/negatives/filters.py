"""Which candidates of a query become its negatives, and why the others do not: pure functions of arrays.

A candidate is judged once, by the first of `REASONS` that holds; so candidates are those kept and those removed for
each reason, added up. Thresholds are those of NV-Retriever (Moreira et al. 2024, arXiv:2407.15831, section 3.1).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float32, Int8, Int64, UInt64
from numpy import ndarray

# Why a candidate is no negative; a verdict is a place here. The first three are those of `negatives.known`.
REASONS = (
    "kept",
    "relevant",
    "same text as a positive",
    "the query's own id",
    "before the range",
    "has no embedding",
    "holds an answer",
    "above max_score",
    "within absolute_margin",
    "within relative_margin",
    "not chosen",
)
KEPT = 0
RANGE, NO_EMBEDDING, ANSWER, MAX_SCORE, ABSOLUTE, RELATIVE, NOT_CHOSEN = range(4, 11)
NO_CANDIDATE = -1

Verdicts = Int8[ndarray, "queries ranks"]


def open_verdicts(
    found: Int64[ndarray, "queries places"],
    known: tuple[Int64[ndarray, "queries most"], Int8[ndarray, "queries most"]],
    first: int,
    end: int,
) -> tuple[Verdicts, Int64[ndarray, "queries places"]]:
    """The verdicts that need no scores, and the rank of every document.

    A rank counts the documents before it that are not known; candidates are what stands before rank `end` is reached.

    Args:
        found: documents of each query, best first, -1 for none.
        known: documents that must not be negatives and why, filled up with -1; see `Known.padded`.
        first: ranks before it are passed over.
        end: the rank at which the ranking ends.
    """
    reasons = np.zeros(found.shape, dtype=np.int8)
    for documents, why in zip(known[0].T, known[1].T, strict=True):
        hit = found == np.where(documents < 0, -2, documents)[:, None]
        np.copyto(reasons, why[:, None], where=hit)
    running = (reasons == KEPT) & (found >= 0)
    ranks = np.cumsum(running, axis=1) - running
    reasons[running & (ranks < first)] = RANGE
    reasons[(found < 0) | (ranks >= end)] = NO_CANDIDATE
    return reasons, ranks


def hold_to_scores(
    verdicts: Verdicts,
    scores: Float32[ndarray, "queries places"],
    lowest: Float32[ndarray, " queries"],
    max_score: float | None,
    absolute_margin: float | None,
    relative_margin: float | None,
) -> None:
    """Remove, in place, candidates that score too high.

    Args:
        verdicts: only candidates that are still kept are looked at.
        scores: of every candidate that is kept so far.
        lowest: the lowest score among the query's positives; NaN where none has one, and no candidate stays.
        max_score: what scores higher is removed.
        absolute_margin: so is what scores higher than `lowest` less this (TopK-MarginPos).
        relative_margin: and higher than `lowest` less this share of its size (TopK-PercPos): with `lowest` s and
            share r above s - r |s|, which for s < 0 too lies below s, where (1 - r) s would not.
    """
    bounds: list[tuple[int, ndarray]] = []
    if max_score is not None:
        bounds.append((MAX_SCORE, np.full(len(lowest), max_score, dtype=np.float32)))
    if absolute_margin is not None:
        bounds.append((ABSOLUTE, lowest - np.float32(absolute_margin)))
    if relative_margin is not None:
        bounds.append((RELATIVE, lowest - np.abs(lowest) * np.float32(relative_margin)))
    for reason, bound in bounds:
        verdicts[(verdicts == KEPT) & ~(scores <= bound[:, None])] = reason


def choose(verdicts: Verdicts, count: int, draws: UInt64[ndarray, "queries places"] | None) -> None:
    """Of the candidates that are left keep, in place, `count` a query: the first, or those of the smallest draws."""
    left = verdicts == KEPT
    if draws is None:
        over = left & (np.cumsum(left, axis=1) > count)
    else:
        # Words are spread over 64 bits; the largest stands for what is not in the draw.
        keys = np.where(left, draws, np.uint64(2**64 - 1))
        places = np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1, kind="stable")
        over = left & (places >= count)
    verdicts[over] = NOT_CHOSEN


def is_candidate(verdicts: Verdicts) -> Bool[ndarray, "queries places"]:
    """Whether a place holds a candidate."""
    return verdicts != NO_CANDIDATE


def tally(verdicts: Verdicts) -> Int64[ndarray, " reasons"]:
    """How many candidates got each verdict."""
    return np.bincount(verdicts[is_candidate(verdicts)], minlength=len(REASONS))
