"""Inputs of mining a split, each made once and only when it is needed: texts, groups of equal texts, finders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import compress
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt64
from numpy import ndarray

from raytriever.data.dataset import Positives, RetrievalDataset
from raytriever.data.keys import KeyIndex, key_of, keys_of
from raytriever.data.prepare.open import fetch_dataset, open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.data.prepare.prepared import splits_of
from raytriever.errors import ConfigError, ModelError
from raytriever.index.exact.search import tie_order
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.config import ENCODER_METHODS, MiningConfig
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

# Normalised passages in the cache; queries share candidates.
_PASSAGES = 1 << 17
# Groups of equal texts of the last columns, by digest: mining during training groups the same columns every round.
_GROUP_CACHE_SIZE = 4
_group_cache: dict[str, ndarray] = {}


def open_with_all_splits(name: str, split: str, max_bad_rows: float, report: Callable[[str], None]) -> RetrievalDataset:
    """Open a data set with the judgements of all its splits, because a positive of any split is no negative.

    Args:
        name: path, URI or name of the data set.
        split: split that must exist.
        max_bad_rows: largest share of bad rows in each file, 0 to 1.
        report: receives warnings and progress lines.
    """
    dataset = open_dataset(name, [split], max_bad_rows=max_bad_rows, run=in_processes, report=report)
    path = str(dataset.location)
    return open_dataset(path, [split, *splits_of(fetch_dataset(path) or Path(path))])


class MiningInputs:
    """Inputs of mining a split; see `mine` for the arguments.

    Raises:
        ConfigError: a method needs embeddings and there are none.
        ModelError: the number of embeddings differs from the number of queries or documents, or the embedding of a
            query is not finite.
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
        self._by_encoder = bool(set(ENCODER_METHODS) & set(config.methods))
        if self._by_encoder:
            _check_embeddings(embeddings, len(positives), len(dataset.documents))
        passages = dataset.passages()
        self.passage = lru_cache(_PASSAGES)(lambda document: normalise(passages[document]))

    @cached_property
    def texts(self) -> list[str]:
        """Texts of the split's queries."""
        return self._of_split(self._dataset.queries.texts)

    @cached_property
    def keys(self) -> UInt64[ndarray, " split_queries"]:
        """A number for each query, computed from its id alone."""
        return keys_of(map(key_of, self._of_split(self._dataset.queries.ids)))[:, 0]

    @cached_property
    def excluded(self) -> ExcludedDocuments:
        """Documents that must not become negatives of each query."""
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
        """Documents without an embedding; empty if there are no embeddings at all."""
        return self._embeddings.documents.left_out if self._embeddings else np.empty(0, dtype=np.int64)

    @cached_property
    def scorer(self) -> PairScorer:
        """Scorer of the candidates."""
        if self._config.judge:
            assert self._judge is not None, "the settings name a judge"
            return JudgeScorer(self._judge, self.texts, self._dataset.passages())
        if self._by_encoder:
            return EncoderScorer(self._required_embeddings)
        if "bm25" in self._config.methods:
            return Bm25Scorer(self._bm25, self.texts)
        return NullScorer()

    def finder(self, method: str) -> CandidateFinder:
        """Return the finder of a method."""
        dataset, positives, excluded = self._dataset, self._positives, self.excluded
        if method == "bm25":
            return Bm25Finder(self._bm25, self.texts, excluded)
        if method == "dense":
            return DenseFinder(self._required_embeddings, tie_order(dataset.documents.ids), excluded)
        if method == "cross-query":
            ties = tie_order(self._of_split(dataset.queries.ids))
            return CrossQueryFinder(self._required_embeddings.queries, positives, ties, excluded)
        if method == "random":
            return RandomFinder(len(dataset.documents), self.keys, self._seed, self._round, excluded)
        assert dataset.negatives is not None
        return GoldFinder(positives.queries, dataset.negatives)

    def answers_of(self, row: int) -> list[str]:
        """Return the normalised answers of a query."""
        answers = self._dataset.answers
        assert answers is not None
        return [normalise(answer) for answer in answers.of(int(self._positives.queries[row]))]

    def _of_split(self, column: Sequence[str]) -> list[str]:
        """Return the entries of the split's queries, in one pass over the column."""
        wanted = np.zeros(len(column), dtype=bool)
        wanted[self._positives.queries] = True
        return list(compress(column, wanted))

    @cached_property
    def _bm25(self) -> Bm25Index:
        return self._make_bm25()

    @property
    def _required_embeddings(self) -> Embeddings:
        assert self._embeddings is not None
        return self._embeddings

    def _own_documents(self) -> Int64[ndarray, " split_queries"]:
        names = self._of_split(self._dataset.queries.ids)
        wanted = set(names)
        positions = {name: position for position, name in enumerate(self._dataset.documents.ids) if name in wanted}
        return np.array([positions.get(name, -1) for name in names], dtype=np.int64)


def _groups(digest: str, texts: Iterable[str]) -> Int64[ndarray, " texts"]:
    """Return for each text the position of the first equal text; cached by the digest of the column."""
    if digest not in _group_cache:
        while len(_group_cache) >= _GROUP_CACHE_SIZE:
            del _group_cache[next(iter(_group_cache))]
        _group_cache[digest] = KeyIndex(keys_of(key_of(normalise(text)) for text in texts)).first()
    return _group_cache[digest]


def _check_embeddings(embeddings: Embeddings | None, queries: int, documents: int) -> None:
    if embeddings is None:
        raise ConfigError(
            f"{' and '.join(ENCODER_METHODS)} need embeddings", "--method", "pass embeddings, or choose bm25"
        )
    for what, count, wanted in (
        ("queries", len(embeddings.queries), queries),
        ("documents", len(embeddings.documents), documents),
    ):
        if count != wanted:
            raise ModelError(f"there are {count} embeddings of {wanted} {what}", "--model", "encode this data set")
    # A search checks the document embeddings itself, but numbers queries by their rows in a block.
    bad = np.flatnonzero(~np.isfinite(embeddings.queries).all(axis=1))
    if len(bad):
        raise ModelError(
            f"the embedding of query {bad[0]} is not finite",
            "--model",
            "the weights are broken or overflow: train or load them again",
        )
