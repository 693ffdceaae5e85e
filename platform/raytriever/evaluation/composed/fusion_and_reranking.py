"""Systems that list a limited number of documents: a run file, a fusion of several systems, and a reranking.

They know only the scores of the documents that they list for a query. Documents with equal scores are ordered as in
`index.exact_top_k`. A fusion lists every document that is among the best 1,000 of one of its systems:

- by ranks, score(d) = Σ_i 1 / (60 + rank_i(d)) over the systems that rank d (Cormack et al., 2009);
- by scores, score(d) = w n_1(d) + (1 - w) n_2(d) with the weight w, where n_i(d) is the min-max normalized score of d
  by system i for the query, and 0 if the system does not rank d.

A fused score depends only on the ranks or the range of scores of its query: it is high if the systems agree. BM25 ranks
no document that shares no term with the query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.core.errors import DataError, ModelError, setting
from raytriever.core.progress import Progress, activity
from raytriever.core.store.commit import sha256_of
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.formats.trec_runs import read_scored_run_file
from raytriever.evaluation.evaluate_split import PreparedSystem, evaluate
from raytriever.evaluation.protocol import JudgedQueries, Protocol
from raytriever.evaluation.systems import Bm25System
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.retrieval.index.exact_top_k import tie_order
from raytriever.retrieval.search.calibration_file import digest_of

RRF_CONSTANT, FUSED_DEPTH = 60, 1_000
WEIGHTS = tuple(step / 10 for step in range(11))
WEIGHT_METRIC = "ndcg_at_10"  # metric that the weight of a fusion maximizes
_BLOCK = 256  # number of queries whose results are fused together
_LEAST_RANGE = 1e-9  # smallest range of a query's scores: avoids a division by zero
_JUDGED = 4_096  # pairs of texts in one call of a cross-encoder

# Scores and documents, best first, padded with -inf and -1.
Lists = tuple[Float32[ndarray, "queries listed"], Int64[ndarray, "queries listed"]]


class ListingSystem(ABC):
    """`PreparedSystem` that lists some documents for each query. It may combine other systems, its `parts`. It keeps
    the lists of the last search."""

    def __init__(self, dataset: RetrievalDataset, parts: Sequence[PreparedSystem] = ()) -> None:
        self.dataset, self.parts = dataset, parts
        self._queries = np.zeros(0, np.int64)
        self._kept: Lists = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.int64)

    @property
    @abstractmethod
    def digest(self) -> str:
        """See `PreparedSystem.digest`."""

    @abstractmethod
    def rank(self, queries: Int64[ndarray, " queries"]) -> Lists:
        """Return the listed documents of each query, best first."""

    def prepare(self) -> None:
        """See `PreparedSystem.prepare`."""
        for part in self.parts:
            part.prepare()

    def notes(self) -> list[str]:
        """Return sentences about what the system lacks for this data set. Call it after a search."""
        return []

    @cached_property
    def ties(self) -> Int64[ndarray, " documents"]:
        """Rank of each document among documents with the same score."""
        return tie_order(self.dataset.documents.ids)

    def search(self, queries: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        """See `System.search`."""
        scores, documents = self._lists(queries)
        missing = ((0, 0), (0, max(0, depth - documents.shape[1])))
        scores = np.pad(scores[:, :depth], missing, constant_values=-np.inf)
        return scores, np.pad(documents[:, :depth], missing, constant_values=-1)

    def score(self, queries: ndarray, documents: ndarray) -> ndarray:
        """See `System.score`; NaN for a document that is not listed."""
        asked, rows = np.unique(queries, return_inverse=True)
        scores, listed = self._lists(asked)
        size = len(self.dataset.documents)
        keys = (np.arange(len(asked))[:, None] * size + listed)[listed >= 0]
        order, wanted = np.argsort(keys), rows * size + documents
        place = np.searchsorted(keys[order], wanted)
        found = np.append(keys[order], -1)[place] == wanted
        return np.where(found, np.append(scores[listed >= 0][order], np.nan)[place], np.nan).astype(np.float32)

    def _lists(self, queries: ndarray) -> Lists:
        distinct, rows = np.unique(queries, return_inverse=True)
        if not np.isin(distinct, self._queries).all():
            self._queries, self._kept = distinct, self.rank(distinct)
        else:
            rows = np.searchsorted(self._queries, queries)
        return self._kept[0][rows], self._kept[1][rows]

    def _ordered(self, scores: ndarray, documents: ndarray) -> Lists:
        scores = np.where(documents >= 0, scores, -np.inf).astype(np.float32)
        order = np.lexsort((self.ties[documents], -scores), axis=1)
        return np.take_along_axis(scores, order, 1), np.take_along_axis(documents, order, 1)


class RunFileSystem(ListingSystem):
    """Rankings of a TREC run. The run must rank a query of the data set, and its scores must differ."""

    def __init__(self, dataset: RetrievalDataset, file: str) -> None:
        super().__init__(dataset)
        self.file = file
        every = range(len(dataset.queries) - dataset.added_queries)
        with activity(f"reading {Path(file).name}"):
            scores, documents = read_scored_run_file(file, dataset, every)
        self._run = scores, documents
        listed = documents >= 0
        several = listed.sum(1) > 1
        low, high = np.where(listed, scores, np.inf).min(1), np.where(listed, scores, -np.inf).max(1)
        if several.any() and (low == high)[several].all():
            what = "has equal scores for all documents of each query, so it ranks nothing"
            raise DataError(what, file, "write the scores into the fifth column")

    @property
    def digest(self) -> str:
        """See `PreparedSystem.digest`."""
        return digest_of("run", sha256_of(self.file))

    @property
    def depth(self) -> int:
        """Largest number of documents that the file ranks for a query."""
        return self._run[1].shape[1]

    def rank(self, queries: Int64[ndarray, " queries"]) -> Lists:
        """See `ListingSystem.rank`."""
        return self._ordered(self._run[0][queries], self._run[1][queries])

    def notes(self) -> list[str]:
        """See `ListingSystem.notes`."""
        few = f"the file ranks at most {self.depth:,} documents of a query; all others count as not found"
        missing = self._queries[self._run[1][self._queries, 0] < 0].tolist()
        names = [self.dataset.queries.ids[query] for query in missing[:3]]
        return [few, *count_ids("queries are not in the file", names, len(missing))]


def count_ids(what: str, first: Sequence[str], count: int) -> list[str]:
    """Return a sentence with the number of ids and the first of them; no sentence if there are no ids."""
    names = ", ".join(map(repr, first)) + (", ..." if count > len(first) else "")
    return [f"{count:,} {what}: {names}"] if count else []


class FusedSystem(ListingSystem):
    """Fusion of the rankings of systems, each of `depth` documents. `weight` is the weight of the first of two systems,
    0 to 1. None means a fusion by ranks."""

    def __init__(
        self,
        dataset: RetrievalDataset,
        parts: Sequence[PreparedSystem],
        weight: float | None = None,
        depth: int = FUSED_DEPTH,
    ) -> None:
        super().__init__(dataset, parts)
        self.weight, self.depth = weight, depth
        self._asked = np.zeros(0, np.int64)
        self._found: list[tuple[ndarray, ndarray]] = []

    @property
    def digest(self) -> str:
        """See `PreparedSystem.digest`."""
        return digest_of("fusion", [part.digest for part in self.parts], self.weight, self.depth)

    def choose_weight(self, split: str, protocol: Protocol, judged: JudgedQueries) -> float:
        """Set and return the weight: the multiple of 0.1 with the highest nDCG@10 on the judged queries of a split.

        If several weights reach this value, the weight nearest to 0.5 is used."""
        evaluated = replace(protocol, metrics=(WEIGHT_METRIC,))
        judged = replace(judged, unanswerable={})
        values = {}
        for weight in WEIGHTS:
            self._set(weight)
            values[weight] = evaluate(self.dataset, split, self, evaluated, judged).metrics[WEIGHT_METRIC]
        self._set(max(WEIGHTS, key=lambda weight: (values[weight], -abs(weight - 0.5))))
        assert self.weight is not None
        return self.weight

    def _set(self, weight: float) -> None:
        self.weight, self._queries = weight, np.zeros(0, np.int64)

    def rank(self, queries: Int64[ndarray, " queries"]) -> Lists:
        """See `ListingSystem.rank`."""
        if not np.array_equal(queries, self._asked):
            self._asked, self._found = queries, [self._ranking_of(part, queries) for part in self.parts]
        fractions = [self._values(*found) for found in self._found]
        if self.weight is not None:
            first, second = fractions
            fractions = [self.weight * first, (1 - self.weight) * second]
        documents = np.concatenate([found for _, found in self._found], axis=1)
        blocks = [
            _sum_by_document(np.concatenate([fraction[rows] for fraction in fractions], axis=1), documents[rows])
            for rows in (slice(start, start + _BLOCK) for start in range(0, len(queries), _BLOCK))
        ]
        return self._ordered(*(np.concatenate(column) for column in zip(*blocks, strict=True)))

    def _ranking_of(self, part: PreparedSystem, queries: ndarray) -> tuple[ndarray, ndarray]:
        scores, documents = part.search(queries, min(self.depth, len(self.dataset.documents)))
        if isinstance(part, Bm25System):
            documents = np.where(scores > 0, documents, -1)
        return scores, documents

    def _values(self, scores: ndarray, documents: ndarray) -> Float64[ndarray, "queries depth"]:
        listed = documents >= 0
        if self.weight is None:
            return np.where(listed, 1 / (RRF_CONSTANT + np.arange(1.0, documents.shape[1] + 1)), 0)
        scores = scores.astype(np.float64)
        low = np.where(listed, scores, np.inf).min(1, keepdims=True)
        high = np.where(listed, scores, -np.inf).max(1, keepdims=True)
        return np.where(listed, scores - low, 0) / np.maximum(high - low, _LEAST_RANGE)

    def notes(self) -> list[str]:
        """See `ListingSystem.notes`."""
        notes = [note for part in self.parts for note in notes_of(part)]
        if self.weight is None:
            return notes
        return [f"the weight of the first system is {self.weight:g}, that of the second {1 - self.weight:g}", *notes]


def _sum_by_document(
    values: Float64[ndarray, "queries any"], documents: Int64[ndarray, "queries any"]
) -> tuple[ndarray, ndarray]:
    """Add up the values that a query has for the same document. Unused columns of the result have the document -1."""
    order = np.argsort(documents, axis=1, kind="stable")
    values, documents = np.take_along_axis(values, order, 1), np.take_along_axis(documents, order, 1)
    begins = np.ones(documents.shape, bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    sums = np.zeros(values.shape)
    sums[begins] = np.add.reduceat(values.ravel(), np.flatnonzero(begins.ravel())) if values.size else 0
    return sums, np.where(begins, documents, -1)


class RerankedSystem(ListingSystem):
    """Best `depth` documents of a system, ordered by the scores of a cross-encoder. The scores include its activation,
    as in `CrossEncoder.predict` of sentence-transformers."""

    def __init__(
        self, dataset: RetrievalDataset, first: PreparedSystem, cross_encoder: CrossEncoder, depth: int
    ) -> None:
        super().__init__(dataset, [first])
        self.cross_encoder, self.depth = cross_encoder, depth

    @property
    def digest(self) -> str:
        """See `PreparedSystem.digest`."""
        return digest_of("reranking", self.parts[0].digest, self.cross_encoder.digest(), self.depth)

    def rank(self, queries: Int64[ndarray, " queries"]) -> Lists:
        """See `ListingSystem.rank`."""
        _, documents = self.parts[0].search(queries, min(self.depth, len(self.dataset.documents)))
        scores = np.full(documents.shape, -np.inf, np.float32)
        row, column = np.nonzero(documents >= 0)
        with Progress("rerank", len(row), "pair") as progress:
            for start in range(0, len(row), _JUDGED):
                cells = row[start : start + _JUDGED], column[start : start + _JUDGED]
                scores[cells] = self._score(queries[cells[0]], documents[cells])
                progress.advance(len(cells[0]))
        return self._ordered(scores, documents)

    def _score(self, queries: ndarray, documents: ndarray) -> ndarray:
        texts, passages = self.dataset.queries.texts, self.dataset.passages()
        asked, found = np.unique(queries, return_inverse=True)
        wanted, index = np.unique(documents, return_inverse=True)
        names = [str(texts[query]) for query in asked.tolist()]
        bodies = [passages[document] for document in wanted.tolist()]
        scores = self.cross_encoder([names[row] for row in found], [bodies[row] for row in index])
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            ids = self.dataset.queries.ids[int(queries[bad[0]])], self.dataset.documents.ids[int(documents[bad[0]])]
            what = f"the score of query {ids[0]!r} and document {ids[1]!r} is not finite"
            remedy = f"try {setting('precision')} fp32, or another cross-encoder"
            raise ModelError(what, str(self.cross_encoder.directory), remedy)
        return scores

    def notes(self) -> list[str]:
        """See `ListingSystem.notes`."""
        few = f"the cross-encoder orders the best {self.depth:,} documents of a query; all others count as not found"
        return [few, *notes_of(self.parts[0])]


def notes_of(system: PreparedSystem) -> list[str]:
    """Return the notes of a system, or nothing if it has no `notes`."""
    notes: Callable[[], list[str]] | None = getattr(system, "notes", None)
    return notes() if notes else []
