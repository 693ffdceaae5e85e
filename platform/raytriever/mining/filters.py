"""Filters of a query's candidates: which become its negatives, and why the others do not. Pure functions.

1. Known non-negatives: the query's relevant documents, and those of every query of the same text; documents of the
   same text as one of these; and the document that bears the query's own id, as BEIR leaves it out of rankings.
   Rows of equal text have equal group numbers.
2. Passages that hold an answer, matched as DPR's has_answer does it (Karpukhin et al. 2020): case, width and
   composition of letters are ignored, and `us` does not match in `bus`. Scripts without case are often written
   without blanks, so there an answer may begin anywhere.
3. Scores too high: the thresholds of NV-Retriever (Moreira et al. 2024, arXiv:2407.15831, section 3.1).

A candidate is judged once, by the first of `REASONS` that holds; so candidates are those kept and those removed for
each reason, added up."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int8, Int64, UInt64
from numpy import ndarray


def normalise(text: str) -> str:
    """A text without what does not tell passages apart: NFKC, case folded, runs of white space as one blank."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def contains_answer(passage: str, answers: Iterable[str]) -> bool:
    """Whether one of the answers stands in the passage; all of them `normalised`. An empty answer stands nowhere.

    No cased letter or digit may stand beside an end of the answer that is one itself.
    """
    for answer in filter(None, answers):
        place = passage.find(answer)
        while place >= 0:
            end = place + len(answer)
            before, after = passage[max(0, place - 1) : place], passage[end : end + 1]
            if not (_joins(before, answer[0]) or _joins(answer[-1], after)):
                return True
            place = passage.find(answer, place + 1)
    return False


def _joins(left: str, right: str) -> bool:
    return _is_joining(left) and _is_joining(right)


def _is_joining(character: str) -> bool:
    """Whether it is a digit or a letter that has a capital form (texts are folded); not so for no character."""
    return character.isdigit() or character.upper() != character


RELEVANT, SAME_TEXT, OWN_ID = 1, 2, 3


@dataclass(frozen=True)
class ExcludedDocuments:
    """Of query i: `documents[offsets[i]:offsets[i + 1]]`, each once, and beside them why (`RELEVANT` and so on)."""

    offsets: Int64[ndarray, " queries+1"]
    documents: Int64[ndarray, " rows"]
    reasons: Int8[ndarray, " rows"]

    @classmethod
    def of(
        cls,
        queries: Int64[ndarray, " asked"],
        pairs: tuple[Int64[ndarray, " pairs"], Int64[ndarray, " pairs"]],
        query_groups: Int64[ndarray, " queries"],
        document_groups: Int64[ndarray, " documents"],
        own: Int64[ndarray, " asked"],
    ) -> ExcludedDocuments:
        """Collect them.

        Args:
            queries: query positions.
            pairs: positions of queries and of documents relevant to them, whatever split says so.
            query_groups, document_groups: a number for each position below 2^31, equal where the texts are.
            own: the document that bears the query's id, -1 where none does.
        """
        rows, documents = _members(query_groups[queries], query_groups[pairs[0]], pairs[1])
        twins, same = _members(document_groups[documents], document_groups, np.arange(len(document_groups)))
        with_own = np.flatnonzero(own >= 0)
        rows = np.concatenate([rows, rows[twins], with_own])
        reasons = np.repeat([RELEVANT, SAME_TEXT, OWN_ID], [len(documents), len(same), len(with_own)])
        documents = np.concatenate([documents, same, own[with_own]])
        # Each document once, for the first reason there is.
        order = np.lexsort((reasons, documents, rows))
        first = np.ones(len(order), dtype=bool)
        first[1:] = (rows[order[1:]] != rows[order[:-1]]) | (documents[order[1:]] != documents[order[:-1]])
        order = order[first]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[order], minlength=len(queries)))])
        return cls(offsets.astype(np.int64), documents[order], reasons[order].astype(np.int8))

    @property
    def counts(self) -> Int64[ndarray, " queries"]:
        """How many each query has."""
        return np.diff(self.offsets)

    def padded(self, rows: Int64[ndarray, " block"]) -> tuple[ndarray, ndarray]:
        """Documents and reasons of some queries, `[block, most]` each, filled up with -1 and 0."""
        counts = self.counts[rows]
        places = np.arange(int(counts.max(initial=0)))[None, :]
        there = places < counts[:, None]
        take = np.where(there, self.offsets[rows][:, None] + places, 0)
        if not len(self.documents):
            return np.full(there.shape, -1, np.int64), np.zeros(there.shape, np.int8)
        return np.where(there, self.documents[take], -1), np.where(there, self.reasons[take], 0).astype(np.int8)


def _members(asked: ndarray, groups: ndarray, values: ndarray) -> tuple[ndarray, ndarray]:
    """The values of each asked group: the place among `asked`, and the value, one a row."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts, ends = np.searchsorted(ordered, asked, side="left"), np.searchsorted(ordered, asked, side="right")
    counts = ends - starts
    places = np.repeat(np.arange(len(asked)), counts)
    within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places, values[order[np.repeat(starts, counts) + within]]


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


def initial_verdicts(
    found: Int64[ndarray, "queries places"],
    known: tuple[Int64[ndarray, "queries most"], Int8[ndarray, "queries most"]],
    first: int,
    end: int,
) -> tuple[Verdicts, Int64[ndarray, "queries places"]]:
    """The verdicts that need no scores, and the rank of every document.

    A rank counts the documents before it that are not known; candidates are what stands before rank `end` is reached.

    Args:
        found: documents of each query, best first, -1 for none.
        known: documents that must not be negatives and why, filled up with -1; see `ExcludedDocuments.padded`.
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


def apply_score_bounds(
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


def count_verdicts(verdicts: Verdicts) -> Int64[ndarray, " reasons"]:
    """How many candidates got each verdict."""
    return np.bincount(verdicts[is_candidate(verdicts)], minlength=len(REASONS))
