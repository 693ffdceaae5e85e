"""Search for the candidates of each mining method: documents for a block of a split's queries, best first.

Every search is so deep that the requested ranks exist even after the excluded documents are removed. So the result of a
query does not depend on its block.

One scorer of pairs is used for the whole table, so that thresholds mean the same for all methods. This is the judge if
there is one, else the encoder if a method needs it anyway, else BM25."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray

from raytriever.core.errors import ModelError, setting
from raytriever.data.dataset import Positives, RetrievalDataset, positions_of_slices
from raytriever.data.hashed_ids import key_of, keys_of, normalize
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.data.sampling.batch_order import words
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.index.exact_top_k import Corpus, tie_order
from raytriever.retrieval.index.pair_scores import pair_scores
from raytriever.retrieval.index.rank_keys import TieOrder
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.retrieval.mining.filters import ExcludedDocuments, entries
from raytriever.retrieval.mining.mining_settings import MiningConfig

# Function that scores pairs of query and passage, usually by a cross-encoder. A higher score means more relevant.
Judge = Callable[[Sequence[str], Sequence[str]], Float32[ndarray, " pairs"]]
_GATHERED = 1 << 25  # number of components of embeddings that are gathered at once for scoring
_JUDGED = 4_096  # number of pairs of texts in one call of a judge


@dataclass(frozen=True)
class ArrayEmbeddings:
    """Embeddings of all documents in an array, by position."""

    array: Float32[ndarray, "documents dim"]

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self) -> Iterator[tuple[int, Float32[ndarray, "rows dim"]]]:
        """Yield all embeddings as one block."""
        yield 0, self.array

    def read(self, rows: Int64[ndarray, " rows"]) -> Float32[ndarray, "rows dim"]:
        """Return the embeddings of some documents."""
        return self.array[rows]


class SearchedCorpus(Protocol):
    """Protocol of a corpus for several searches; see `index.exact_top_k.Corpus`."""

    def keys(self, queries: Float32[ndarray, "queries dim"], k: int) -> Int64[ndarray, "queries k"]:
        """Return the k best documents of each query as keys."""


def open_here(documents: EmbeddingStore | ArrayEmbeddings, order: TieOrder) -> SearchedCorpus:
    """Open a corpus that this process searches."""
    return Corpus(documents.blocks, order)


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of a split's queries, in the order of `dataset.positives(split)`, and of all documents. `open_corpus`
    opens the documents for search."""

    queries: Float32[ndarray, "split_queries dim"]
    documents: EmbeddingStore | ArrayEmbeddings
    open_corpus: Callable[[Any, TieOrder], SearchedCorpus] = open_here


@dataclass(frozen=True)
class PairScorer:
    """Scorer of query-document pairs."""

    name: str  # `encoder`, `bm25` or `judge`, for the table's manifest
    # Function that gets queries `[block]` and documents `[block, any]`. It returns the score of each query with each of
    # its documents; NaN for the document -1.
    score: Callable[[Int64[ndarray, " block"], Int64[ndarray, "block any"]], Float32[ndarray, "block any"]]

    @classmethod
    def by_encoder(cls, embeddings: Embeddings) -> PairScorer:
        """Create the scorer of an encoder. Its dot products equal the scores of a search."""

        def score(queries: ndarray, documents: ndarray) -> ndarray:
            wanted, indices = np.unique(documents, return_inverse=True)
            return pair_scores(embeddings.queries, embeddings.documents.read(wanted), queries, indices)

        step = max(1, _GATHERED // embeddings.queries.shape[1])
        return cls("encoder", _of_pairs(score, step, "model", "use a model with valid weights"))

    @classmethod
    def by_judge(cls, judge: Judge, texts: Sequence[str], passages: Sequence[str]) -> PairScorer:
        """Create the scorer of a judge. `texts` are the split's queries; `passages` are all documents."""

        def score(queries: ndarray, documents: ndarray) -> ndarray:
            return judge([texts[query] for query in queries], [passages[document] for document in documents.tolist()])

        remedy = "use a cross-encoder with valid weights"
        return cls("judge", _of_pairs(score, _JUDGED, "judge", remedy))


def _of_pairs(
    score: Callable[[ndarray, ndarray], ndarray], step: int, name: str, remedy: str
) -> Callable[[ndarray, ndarray], ndarray]:
    """Turn a function of pairs into the `score` of a `PairScorer`. It gets at most `step` pairs in one call.

    `score` raises `ModelError` if a score is not finite."""

    def score_all(rows: ndarray, documents: ndarray) -> ndarray:
        scores = np.full(documents.shape, np.nan, dtype=np.float32)
        row, column = np.nonzero(documents >= 0)
        for start in range(0, len(row), step):
            cells = row[start : start + step], column[start : start + step]
            scores[cells] = score(rows[cells[0]], documents[cells])
        if not np.isfinite(scores[row, column]).all():
            raise ModelError("a score is not finite", setting(name), remedy)
        return scores

    return score_all


# Identifiers of two purposes of random numbers; see `sampling.batch_order.words`.
DOCUMENTS, CHOICE = 11, 12
# Number of normalized passages that are cached, because different queries have many candidates in common.
_PASSAGES = 1 << 17

Candidates = tuple[Int64[ndarray, "block columns"], Float32[ndarray, "block columns"]]


@dataclass(frozen=True)
class MiningInputs:
    """Arguments of `mine`, with the texts, indexes and scorer made from them. Each is made when first needed."""

    dataset: RetrievalDataset
    split: str
    config: MiningConfig
    embeddings: Embeddings | None
    make_bm25: Callable[[], Bm25Index] | None
    judge: Judge | None
    seed: int
    round: int

    def find(self, method: str, rows: Int64[ndarray, " block"], depth: int) -> Candidates:
        """Return the candidates of a method, best first, and their scores, padded with -1 and NaN.

        Args:
            method: one of `mining_settings.METHODS`.
            rows: indices of queries in the split.
            depth: Return at least this many documents per query that are not excluded, or all if there are fewer.
                `gold` always returns all.
        """
        searches = {
            "bm25": self._find_by_bm25,
            "dense": self._find_dense,
            "cross-query": self._find_by_query,
            "gold": self._find_gold,
            "random": self._find_random,
        }
        return searches[method](rows, depth)

    @cached_property
    def positives(self) -> Positives:
        """Queries of the split with their positives."""
        return self.dataset.positives(self.split)

    @cached_property
    def excluded(self) -> ExcludedDocuments:
        """Documents that must not become negatives, for each query."""
        return ExcludedDocuments.of_split(self.dataset, self.split)

    @cached_property
    def texts(self) -> list[str]:
        """Texts of the split's queries."""
        return entries(self.dataset.queries.texts, self.positives.queries)

    @cached_property
    def keys(self) -> UInt64[ndarray, " split_queries"]:
        """A 64-bit key of each query, computed only from its id."""
        return keys_of(map(key_of, entries(self.dataset.queries.ids, self.positives.queries)))[:, 0]

    @cached_property
    def passage(self) -> Callable[[int], str]:
        """Function that returns the normalized text of a document, from a cache if possible."""
        passages = self.dataset.passages()
        return lru_cache(_PASSAGES)(lambda document: normalize(passages[document]))

    @cached_property
    def scorer(self) -> PairScorer | None:
        """Scorer of the candidates; None if they have no scores."""
        if self.config.judge:
            assert self.judge is not None, "the settings name a judge"
            return PairScorer.by_judge(self.judge, self.texts, self.dataset.passages())
        if self.config.needs_embeddings:
            return PairScorer.by_encoder(self._required_embeddings)
        if "bm25" not in self.config.methods:
            return None
        return PairScorer("bm25", lambda rows, found: self._bm25.scores_of([self.texts[row] for row in rows], found))

    def answers_of(self, row: int) -> list[str]:
        """Return the normalized answers of a query."""
        answers = self.dataset.answers
        assert answers is not None
        return [normalize(answer) for answer in answers.of(int(self.positives.queries[row]))]

    @cached_property
    def _bm25(self) -> Bm25Index:
        return self.make_bm25() if self.make_bm25 else Bm25Index.of(self.dataset.documents)

    @property
    def _required_embeddings(self) -> Embeddings:
        assert self.embeddings is not None, "the settings need embeddings"
        return self.embeddings

    def _most(self, rows: ndarray, depth: int) -> int:
        return depth + int(self.excluded.counts[rows].max(initial=0))

    def _find_by_bm25(self, rows: ndarray, depth: int) -> Candidates:
        scores, documents = self._bm25.search([self.texts[row] for row in rows], self._most(rows, depth))
        documents[scores <= 0] = -1
        return documents, scores

    def _find_dense(self, rows: ndarray, depth: int) -> Candidates:
        corpus, order = self._corpus
        scores, documents = order.read(corpus.keys(self._required_embeddings.queries[rows], self._most(rows, depth)))
        return documents, scores

    @cached_property
    def _corpus(self) -> tuple[SearchedCorpus, TieOrder]:
        embeddings, order = self._required_embeddings, TieOrder.of(tie_order(self.dataset.documents.ids))
        return embeddings.open_corpus(embeddings.documents, order), order

    def _find_by_query(self, rows: ndarray, depth: int) -> Candidates:
        """Find the positives of similar queries. The score of a positive is the similarity of its query.

        A document that is a positive of several queries has the rank and score of the most similar of these queries."""
        queries, wanted = self._required_embeddings.queries, self._most(rows, depth)
        corpus, order = self._similar_queries
        k = 2 * wanted
        while True:
            scores, similar = order.read(corpus.keys(queries[rows], k))
            counts = np.diff(self.positives.offsets)[similar]
            row, column = (np.repeat(index.ravel(), counts.ravel()) for index in np.indices(similar.shape))
            starts = self.positives.offsets[similar].ravel()
            found = self.positives.documents[positions_of_slices(starts, counts.ravel())]
            documents, scores = _tabulate(row, found, scores[row, column], len(similar))
            # One document may be a positive of many queries, so search deeper until every query has enough documents.
            if k >= len(queries) or (documents.shape[1] >= wanted and (documents[:, wanted - 1] >= 0).all()):
                return documents, scores
            k *= 2

    @cached_property
    def _similar_queries(self) -> tuple[SearchedCorpus, TieOrder]:
        order = TieOrder.of(tie_order(entries(self.dataset.queries.ids, self.positives.queries)))
        return open_here(ArrayEmbeddings(self._required_embeddings.queries), order), order

    def _find_gold(self, rows: ndarray, _: int) -> Candidates:
        negatives = self.dataset.negatives
        assert negatives is not None
        block_row = np.full(len(self.dataset.queries), -1)
        block_row[self.positives.queries[rows]] = np.arange(len(rows))
        row = np.where(negatives.origins == ORIGINS.index("gold"), block_row[negatives.queries], -1)
        order = np.lexsort((negatives.ranks, row))
        order = order[row[order] >= 0]
        return _tabulate(row[order], negatives.documents[order], negatives.scores[order], len(rows))

    def _find_random(self, rows: ndarray, depth: int) -> Candidates:
        size = len(self.dataset.documents)
        # In a small corpus, random draws would repeat too many documents. So put all documents into a random order.
        whole = 8 * depth >= size
        columns = np.arange(size if whole else 2 * self._most(rows, depth))
        sampled = words(self.seed, np.full(len(rows), self.round), self.keys[rows], DOCUMENTS, columns)
        if whole:
            documents = np.argsort(sampled, axis=1, kind="stable")
        else:
            documents = (sampled % np.uint64(size)).astype(np.int64)
        row = np.repeat(np.arange(len(rows)), documents.shape[1])
        return _tabulate(row, documents.ravel(), np.full(len(row), np.nan, np.float32), len(rows))


def _tabulate(row: ndarray, documents: ndarray, scores: ndarray, rows: int) -> Candidates:
    """Turn ordered pairs into a table with one row per query. Keep only the first of repeated pairs."""
    pairs = row * (int(documents.max(initial=0)) + 1) + documents
    first = np.sort(np.unique(pairs, return_index=True)[1])
    row, documents, scores = row[first], documents[first], scores[first]
    counts = np.bincount(row, minlength=rows)
    column = positions_of_slices(np.zeros_like(counts), counts)
    document_table = np.full((rows, int(counts.max(initial=0))), -1, dtype=np.int64)
    score_table = np.full(document_table.shape, np.nan, dtype=np.float32)
    document_table[row, column], score_table[row, column] = documents, scores
    return document_table, score_table
