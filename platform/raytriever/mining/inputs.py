"""Data that mining a split uses, each made once and only where it is needed: texts, groups of equal texts, finders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import compress

import numpy as np
from jaxtyping import Int64, UInt64
from numpy import ndarray

from raytriever.data.dataset import Positives, RetrievalDataset
from raytriever.data.keys import KeyIndex, key_of, keys_of
from raytriever.errors import ConfigError, ModelError
from raytriever.index.exact.search import tie_order
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.config import BY_ENCODER, MiningConfig
from raytriever.mining.filters import ExcludedDocuments, normalise
from raytriever.mining.finders import (
    Bm25Finder,
    CandidateFinder,
    CrossQueryFinder,
    DenseFinder,
    GoldFinder,
    RandomFinder,
)
from raytriever.mining.scorers import Bm25Scorer, Embeddings, EncoderScorer, Judge, JudgeScorer, NullScorer, PairScorer

# Passages kept as they are compared; a query's candidates are other queries' candidates too.
_PASSAGES = 1 << 17
# Groups of equal texts of the columns that were grouped last: mining while training asks for the same again and again.
_COLUMNS = 4
_KEPT: dict[str, ndarray] = {}


class MiningInputs:
    """What mining a split draws on; see `mine` for the arguments.

    Raises:
        ConfigError: a method needs embeddings and there are none.
        ModelError: not as many embeddings as there are queries and documents, or a query's is not finite.
    """

    def __init__(
        self,
        dataset: RetrievalDataset,
        positives: Positives,
        config: MiningConfig,
        embeddings: Embeddings | None,
        bm25: Callable[[], Bm25Index] | None,
        judge: Judge | None,
        seed: int,
        round: int,
    ) -> None:
        self._dataset, self._positives, self._config = dataset, positives, config
        self._make_bm25 = bm25 or (lambda: Bm25Index(dataset.passages()))
        self._embeddings, self._judge, self._seed, self._round = embeddings, judge, seed, round
        self._by_encoder = bool(set(BY_ENCODER) & set(config.methods))
        if self._by_encoder:
            _check(embeddings, len(positives), len(dataset.documents))
        passages = dataset.passages()
        self.passage = lru_cache(_PASSAGES)(lambda document: normalise(passages[document]))

    @cached_property
    def texts(self) -> list[str]:
        """The split's queries."""
        return self._of_split(self._dataset.queries.texts)

    @cached_property
    def keys(self) -> UInt64[ndarray, " split_queries"]:
        """A number for each query that follows from its id alone."""
        return keys_of(map(key_of, self._of_split(self._dataset.queries.ids)))[:, 0]

    @cached_property
    def known(self) -> ExcludedDocuments:
        """What must not be a negative of each query."""
        dataset, queries = self._dataset, self._positives.queries
        rows = [each.where(each.scores > 0) for each in dataset.judgements.values()]
        pairs = np.concatenate([each.queries for each in rows]), np.concatenate([each.documents for each in rows])
        groups = (
            _groups(dataset.queries.digest, dataset.queries.texts),
            _groups(dataset.documents.digest, dataset.passages()),
        )
        return ExcludedDocuments.of(queries, pairs, *groups, self._own_documents())

    @property
    def left_out(self) -> Int64[ndarray, " rows"]:
        """Documents that have no embedding, where there are embeddings at all."""
        return self._embeddings.documents.left_out if self._embeddings else np.empty(0, dtype=np.int64)

    @cached_property
    def scale(self) -> PairScorer:
        """What candidates are scored by."""
        if self._config.judge:
            assert self._judge is not None, "the settings name a judge"
            return JudgeScorer(self._judge, self.texts, self._dataset.passages())
        if self._by_encoder:
            return EncoderScorer(self._held)
        if "bm25" in self._config.methods:
            return Bm25Scorer(self._bm25, self.texts)
        return NullScorer()

    def finder(self, method: str) -> CandidateFinder:
        """The finder of a method."""
        dataset, positives, known = self._dataset, self._positives, self.known
        if method == "bm25":
            return Bm25Finder(self._bm25, self.texts, known)
        if method == "dense":
            return DenseFinder(self._held, tie_order(dataset.documents.ids), known)
        if method == "cross-query":
            ties = tie_order(self._of_split(dataset.queries.ids))
            return CrossQueryFinder(self._held.queries, positives, ties, known)
        if method == "random":
            return RandomFinder(len(dataset.documents), self.keys, self._seed, self._round, known)
        assert dataset.negatives is not None
        return GoldFinder(positives.queries, dataset.negatives)

    def answers_of(self, row: int) -> list[str]:
        """The answers of a query as passages are compared with them."""
        answers = self._dataset.answers
        assert answers is not None
        return [normalise(answer) for answer in answers.of(int(self._positives.queries[row]))]

    def _of_split(self, column: Sequence[str]) -> list[str]:
        """The entries of the split's queries, in one pass over the column."""
        wanted = np.zeros(len(column), dtype=bool)
        wanted[self._positives.queries] = True
        return list(compress(column, wanted))

    @cached_property
    def _bm25(self) -> Bm25Index:
        return self._make_bm25()

    @property
    def _held(self) -> Embeddings:
        assert self._embeddings is not None
        return self._embeddings

    def _own_documents(self) -> Int64[ndarray, " split_queries"]:
        names = self._of_split(self._dataset.queries.ids)
        wanted = set(names)
        place = {name: position for position, name in enumerate(self._dataset.documents.ids) if name in wanted}
        return np.array([place.get(name, -1) for name in names], dtype=np.int64)


def _groups(digest: str, texts: Iterable[str]) -> Int64[ndarray, " texts"]:
    """For each text the position of the first that says the same; kept by the digest of the column."""
    if digest not in _KEPT:
        while len(_KEPT) >= _COLUMNS:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[digest] = KeyIndex(keys_of(key_of(normalise(text)) for text in texts)).first()
    return _KEPT[digest]


def _check(embeddings: Embeddings | None, queries: int, documents: int) -> None:
    if embeddings is None:
        raise ConfigError(f"{' and '.join(BY_ENCODER)} need embeddings", "--method", "give them, or choose bm25")
    for what, there, wanted in (
        ("queries", len(embeddings.queries), queries),
        ("documents", len(embeddings.documents), documents),
    ):
        if there != wanted:
            raise ModelError(f"{there} embeddings of {wanted} {what}", "--model", "encode this data set")
    # A search looks at the documents' itself, and numbers queries by what it was asked.
    bad = np.flatnonzero(~np.isfinite(embeddings.queries).all(axis=1))
    if len(bad):
        raise ModelError(
            f"the embedding of query {bad[0]} is not finite",
            "--model",
            "the weights are broken or overflow: train or load them anew",
        )
