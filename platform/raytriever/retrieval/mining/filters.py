"""Filters of a query's candidates, as pure functions. Each candidate is kept, or removed for one reason.

1. Excluded documents: the relevant documents of the query and of every query with the same text; documents with the
   same text as one of these (`data.hashed_ids`); and the document with the query's own id, which BEIR also removes from
   rankings.
2. Passages that contain an answer, matched as by DPR's has_answer (Karpukhin et al. 2020): case, width and Unicode
   composition of letters are ignored, and `us` does not match in `bus`. Scripts without case are often written without
   spaces, so in these an answer may begin inside a word.
3. Scores that are too high: the thresholds of NV-Retriever (Moreira et al. 2024, arXiv:2407.15831, section 3.1).

The verdict on a candidate is the first of `REASONS` that applies. So the counts of all verdicts add up to the number of
candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from jaxtyping import Float32, Int8, Int64, UInt64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset, positions_of_slices

RELEVANT, SAME_TEXT, OWN_ID = 1, 2, 3
# `kept`, then the reasons why a candidate is not a negative. A verdict is an index into this list. `ExcludedDocuments`
# uses the three reasons after `kept`.
REASONS = (
    *("kept", "relevant", "same text as a positive", "the query's own id", "before the range", "holds an answer"),
    *("above max_score", "within absolute_margin", "within relative_margin", "not chosen"),
)
KEPT = 0
RANGE, ANSWER, MAX_SCORE, ABSOLUTE, RELATIVE, NOT_CHOSEN = range(4, 10)
NO_CANDIDATE = -1

Verdicts = Int8[ndarray, "queries ranks"]


def contains_answer(passage: str, answers: Iterable[str]) -> bool:
    """Return True if the passage contains one of the answers as whole words. An empty answer never matches.

    A match is rejected if a word continues beyond it: at one end, the characters inside and outside the match are both
    digits or letters that have upper and lower case. Callers must `normalize` all texts."""
    for answer in filter(None, answers):
        start = passage.find(answer)
        while start >= 0:
            end = start + len(answer)
            before, after = passage[max(0, start - 1) : start], passage[end : end + 1]
            if not (_is_inside_word(before, answer[0]) or _is_inside_word(answer[-1], after)):
                return True
            start = passage.find(answer, start + 1)
    return False


def _is_inside_word(left: str, right: str) -> bool:
    return _is_word_character(left) and _is_word_character(right)


def _is_word_character(character: str) -> bool:
    return character.isdigit() or character.upper() != character  # texts are case-folded; false for an empty string


@dataclass(frozen=True)
class ExcludedDocuments:
    """For each query, the documents that must not become its negatives, each once, with the reason (`RELEVANT`, ...).

    The documents of query i are `documents[offsets[i]:offsets[i + 1]]`, ascending."""

    offsets: Int64[ndarray, " queries+1"]
    documents: Int64[ndarray, " rows"]
    reasons: Int8[ndarray, " rows"]

    @classmethod
    def of_split(cls, dataset: RetrievalDataset, split: str) -> ExcludedDocuments:
        """Collect the excluded documents of each query of a split that has a relevant document.

        Documents judged relevant in any open split of the data set are excluded."""
        queries = dataset.positives(split).queries
        judged = [judgements.where(judgements.scores > 0) for judgements in dataset.judgements.values()]
        relevant = np.concatenate([judgements.documents for judgements in judged])
        query_groups, document_groups = (  # equal texts have equal numbers
            texts.copies.first(np.arange(len(texts))) for texts in (dataset.queries, dataset.documents)
        )
        owners = query_groups[np.concatenate([judgements.queries for judgements in judged])]
        rows, documents = _members(query_groups[queries], owners, relevant)
        twins, same = _members(document_groups[documents], document_groups, np.arange(len(document_groups)))
        names = entries(dataset.queries.ids, queries)
        wanted = set(names)
        positions = {name: position for position, name in enumerate(dataset.documents.ids) if name in wanted}
        own = np.array([positions.get(name, -1) for name in names], dtype=np.int64)
        with_own = np.flatnonzero(own >= 0)
        rows = np.concatenate([rows, rows[twins], with_own])
        reasons = np.repeat([RELEVANT, SAME_TEXT, OWN_ID], [len(documents), len(same), len(with_own)])
        documents = np.concatenate([documents, same, own[with_own]])
        # Keep each document once, with its first reason.
        order = np.lexsort((reasons, documents, rows))
        first = np.ones(len(order), dtype=bool)
        first[1:] = (rows[order[1:]] != rows[order[:-1]]) | (documents[order[1:]] != documents[order[:-1]])
        order = order[first]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[order], minlength=len(queries)))])
        return cls(offsets.astype(np.int64), documents[order], reasons[order].astype(np.int8))

    @property
    def counts(self) -> Int64[ndarray, " queries"]:
        """Return the number of excluded documents of each query."""
        return np.diff(self.offsets)

    def reasons_of(self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block columns"]) -> Verdicts:
        """Return the reason why each document is excluded for its query; `KEPT` for others and for the document -1."""
        counts = self.counts[rows]
        own = positions_of_slices(self.offsets[rows], counts)
        if not len(own) or not documents.size:
            return np.zeros(documents.shape, np.int8)
        size = max(int(self.documents[own].max()), int(documents.max())) + 2  # no document has the number size - 1
        excluded = np.repeat(np.arange(len(rows)), counts) * size + self.documents[own]
        pairs = np.arange(len(rows))[:, None] * size + documents
        nearest = np.minimum(np.searchsorted(excluded, pairs), len(own) - 1)
        return np.where(excluded[nearest] == pairs, self.reasons[own[nearest]], np.int8(KEPT))

    def relevant(self, rows: Int64[ndarray, " block"]) -> Int64[ndarray, "block most"]:
        """Return the relevant documents of some queries, padded with -1."""
        columns = np.arange(int(self.counts[rows].max(initial=0)))
        own = np.minimum(self.offsets[rows][:, None] + columns, len(self.documents) - 1)
        is_relevant = (columns < self.counts[rows][:, None]) & (self.reasons[own] == RELEVANT)
        return np.where(is_relevant, self.documents[own], -1)


def entries(column: Sequence[str], queries: Int64[ndarray, " selected"]) -> list[str]:
    """Return the entries of a column for some queries, in a single pass. The positions of the queries must ascend."""
    wanted = np.zeros(len(column), dtype=bool)
    wanted[queries] = True
    return list(compress(column, wanted))


def _members(wanted: ndarray, groups: ndarray, values: ndarray) -> tuple[ndarray, ndarray]:
    """Return (indices, values): all values of the wanted groups, each with the index of its group in `wanted`."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts, ends = np.searchsorted(ordered, wanted, side="left"), np.searchsorted(ordered, wanted, side="right")
    rows = np.repeat(np.arange(len(wanted)), ends - starts)
    return rows, values[order[positions_of_slices(starts, ends - starts)]]


def initial_verdicts(
    ranking: Int64[ndarray, "queries columns"],
    rows: Int64[ndarray, " queries"],
    excluded: ExcludedDocuments,
    first: int,
    end: int,
) -> tuple[Verdicts, Int64[ndarray, "queries columns"]]:
    """Return the verdicts that need no scores, and the rank of each document.

    The rank of a document is the number of earlier documents that are not excluded. Candidates end before rank `end`.

    Args:
        ranking: documents of each query, best first, padded with -1.
        rows: indices of the queries in the split.
        excluded: excluded documents of the split's queries.
        first: first rank that is used.
        end: rank before which the candidates end.
    """
    verdicts = excluded.reasons_of(rows, ranking)
    is_ranked = (verdicts == KEPT) & (ranking >= 0)
    ranks = np.cumsum(is_ranked, axis=1) - is_ranked
    verdicts[is_ranked & (ranks < first)] = RANGE
    verdicts[(ranking < 0) | (ranks >= end)] = NO_CANDIDATE
    return verdicts, ranks


def apply_score_bounds(
    verdicts: Verdicts,
    scores: Float32[ndarray, "queries columns"],
    lowest: Float32[ndarray, " queries"],
    max_score: float | None,
    absolute_margin: float | None,
    relative_margin: float | None,
) -> None:
    """Remove, in place, candidates whose scores are too high.

    Args:
        verdicts: only candidates with the verdict `KEPT` are examined.
        scores: scores of the candidates; only those of candidates kept so far are read.
        lowest: lowest score of the query's positives. NaN if no positive has a score: all its candidates are removed.
        max_score: a candidate with a higher score is removed.
        absolute_margin: a candidate above `lowest` minus this margin is removed (TopK-MarginPos).
        relative_margin: a candidate above `lowest` minus this fraction of |`lowest`| is removed (TopK-PercPos). This
            bound is below `lowest` even if `lowest` is negative, unlike `lowest` times one minus the fraction.
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


def choose(verdicts: Verdicts, count: int, random_keys: UInt64[ndarray, "queries columns"] | None) -> None:
    """Keep, in place, `count` of a query's remaining candidates: the first, or those with the smallest random keys."""
    is_kept = verdicts == KEPT
    if random_keys is None:
        is_surplus = is_kept & (np.cumsum(is_kept, axis=1) > count)
    else:
        # Candidates that are already removed get the largest 64-bit word, so that they sort last.
        keys = np.where(is_kept, random_keys, np.uint64(2**64 - 1))
        ranks = np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1, kind="stable")
        is_surplus = is_kept & (ranks >= count)
    verdicts[is_surplus] = NOT_CHOSEN
