"""What one training example is: a query, some of its positives, and hard negatives, all by position.

Every draw is a hash of (seed, epoch, example), so it is the same on any worker and after any restart, and
differs from epoch to epoch. It is splitmix64 (Steele et al. 2014), which numpy evaluates by the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.dataset import Positives, RetrievalDataset
from raytriever.errors import DataError

_WORD = 2**64 - 1
_POSITIVE, _NEGATIVE, _RANDOM = 1, 2, 3  # what a draw is for: one example's draws must not repeat each other


@dataclass(frozen=True)
class Examples:
    """The training examples of a split: one a query that has positives.

    Args:
        positives: the queries and their relevant documents.
        documents: how many documents the corpus has.
        seed: another seed, other draws.
        negatives: a negatives table with a row for every query of the data set: document positions in order
            of hardness, then -1. A query without any, or no table at all, gets random documents.
    """

    positives: Positives
    documents: int
    seed: int
    negatives: Int64[ndarray, "queries depth"] | None = None

    @classmethod
    def of(
        cls,
        dataset: RetrievalDataset,
        split: str,
        seed: int,
        negatives: Int64[ndarray, "queries depth"] | None = None,
    ) -> Examples:
        """The examples of an opened split; raises `DataError` if there are none or the table does not fit."""
        positives = dataset.positives(split)
        if not len(positives):
            raise DataError(f"split {split!r} has no judgement above 0", dataset.name, "give another split")
        if np.diff(positives.offsets).max() == len(dataset.documents):
            raise DataError("every document is relevant to some query", dataset.name, "add other documents")
        if negatives is not None and len(negatives) != len(dataset.queries):
            raise DataError(
                f"the negatives table has {len(negatives)} rows for {len(dataset.queries)} queries",
                dataset.name,
                "mine the negatives of this data set",
            )
        if negatives is not None and negatives.size and negatives.max() >= len(dataset.documents):
            raise DataError(
                f"the negatives table names document {negatives.max()} of {len(dataset.documents)}",
                dataset.name,
                "mine the negatives of this data set",
            )
        return cls(positives, len(dataset.documents), seed, negatives)

    def __len__(self) -> int:
        return len(self.positives)

    def queries(self, examples: Int64[ndarray, " batch"]) -> Int64[ndarray, " batch"]:
        """Query positions of a batch of examples."""
        return self.positives.queries[examples]

    def drawn_positives(
        self, examples: Int64[ndarray, " batch"], epochs: Int64[ndarray, " batch"], count: int
    ) -> Int64[ndarray, "batch count"]:
        """At most `count` of each query's positives, another choice each epoch, -1 behind those that have fewer."""
        starts, ends = self.positives.offsets[examples], self.positives.offsets[examples + 1]
        columns = np.arange(max(count, int((ends - starts).max())))
        there = columns < (ends - starts)[:, None]
        places = np.minimum(starts[:, None] + columns, len(self.positives.documents) - 1)
        keys = _hash(self.seed, epochs, examples, _POSITIVE, columns)
        order = np.argsort(np.where(there, keys, np.uint64(_WORD)), axis=1, kind="stable")[:, :count]
        return np.take_along_axis(np.where(there, self.positives.documents[places], -1), order, axis=1)

    def groups(
        self, examples: Int64[ndarray, " batch"], epochs: Int64[ndarray, " batch"], positives: int, negatives: int
    ) -> tuple[Int64[ndarray, "batch positives"], Int64[ndarray, "batch positives+negatives"]]:
        """The positives of each example, -1 behind those that have fewer, and its whole group of passages: the
        positives, then hard negatives, so many that all groups are of one size."""
        drawn = self.drawn_positives(examples, epochs, positives)
        hard = self.hard_negatives(examples, epochs, negatives + positives)
        passages = np.concatenate([np.where(drawn < 0, hard[:, negatives:], drawn), hard[:, :negatives]], axis=1)
        return drawn, passages

    def hard_negatives(
        self, examples: Int64[ndarray, " batch"], epochs: Int64[ndarray, " batch"], count: int
    ) -> Int64[ndarray, "batch count"]:
        """`count` negatives for each example: drawn without repetition from the query's row of the table,
        repeated in the drawn order when the row has fewer, random non-positives when it has none."""
        columns = np.arange(count)
        negatives = self._random(examples, epochs, columns)
        if self.negatives is None or not count:
            return negatives
        rows = self.negatives[self.queries(examples)]
        there = rows >= 0
        keys = _hash(self.seed, epochs, examples, _NEGATIVE, np.arange(rows.shape[1]))
        drawn = np.argsort(np.where(there, keys, np.uint64(_WORD)), axis=1, kind="stable")
        known = there.sum(axis=1)
        wrapped = columns[None, :] % np.maximum(known, 1)[:, None]
        mined = np.take_along_axis(rows, np.take_along_axis(drawn, wrapped, axis=1), axis=1)
        return np.where(known[:, None] > 0, mined, negatives)

    def _random(self, examples: ndarray, epochs: ndarray, columns: ndarray) -> Int64[ndarray, "batch count"]:
        draws = _hash(self.seed, epochs, examples, _RANDOM, columns) % np.uint64(self.documents)
        found = draws.astype(np.int64)
        # Ascending, as queries and the documents of each are: one search tells whether a pair is a positive.
        owner = np.repeat(np.arange(len(self.positives)), np.diff(self.positives.offsets))
        pairs = owner * self.documents + self.positives.documents
        while True:
            asked = examples[:, None] * self.documents + found
            places = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
            clash = pairs[places] == asked
            if not clash.any():
                return found
            found[clash] = (found[clash] + 1) % self.documents


def _hash(seed: int, epochs: ndarray, examples: ndarray, purpose: int, columns: ndarray | None = None) -> ndarray:
    """splitmix64 over its arguments one after another: uint64 `[batch]`, or `[batch, columns]`."""
    state = _mix(np.full(len(examples), seed & _WORD, dtype=np.uint64) + np.uint64(purpose))
    state = _mix(state ^ np.asarray(epochs).astype(np.uint64))
    state = _mix(state ^ np.asarray(examples).astype(np.uint64))
    if columns is None:
        return state
    return _mix(state[:, None] ^ columns.astype(np.uint64)[None, :])


def _mix(state: ndarray) -> ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
