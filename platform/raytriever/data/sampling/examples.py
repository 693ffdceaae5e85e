"""Training example: a query, some of its positives, and hard negatives, all by position.

Every draw is a hash of (seed, epoch, example) (`draws`), so it is the same on any worker and after any restart, and
differs from epoch to epoch.

Positives of a group, by who judged them: `all` takes every relevant document; `human` and `llm` make homogeneous
groups of one source; `human-first` makes heterogeneous ones: one human positive in front, LLM ones behind. A query
that lacks the positive its group would begin with is no example. Whatever a group is made of, all relevant documents
of a query stay known: none is its negative."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from raytriever.data.combine import starts_of
from raytriever.data.dataset import Positives, RetrievalDataset
from raytriever.data.negatives import NegativesTable
from raytriever.data.records import SOURCES
from raytriever.data.sampling.draws import WORD, words
from raytriever.data.sampling.origins import RANDOM, counts_by_origin
from raytriever.errors import DataError

ALL, HUMAN_FIRST = "all", "human-first"


def groups_of(positives: Positives, which: str, where: str) -> tuple[Positives, tuple[Positives, ...]]:
    """Choose the examples, and what their groups are drawn from.

    Args:
        positives: the queries of a split and their relevant documents.
        which: `all`, one of `records.SOURCES`, or `human-first`.
        where: the data set and split, for the error message.

    Returns:
        Queries that are examples with all their relevant documents; and for the same queries, one behind the other,
        what the first positive of a group is drawn from, and, for `human-first`, what the others are. In the
        latter a query may have none.

    Raises:
        DataError: no query has such a positive.
    """
    if which == ALL:
        return positives, (positives,)
    human, llm = (_of_source(positives, source) for source in SOURCES)
    drawn = {"human": (human,), "llm": (llm,), HUMAN_FIRST: (human, llm)}[which]
    begins = np.diff(drawn[0].offsets) > 0
    if not begins.any():
        source = "llm" if which == "llm" else "human"
        raise DataError(f"no query has a positive of source {source!r}", where, "give another --positives")
    return _of_queries(positives, begins), tuple(_of_queries(each, begins) for each in drawn)


def _of_source(positives: Positives, source: str) -> Positives:
    """The same queries with the positives of one source; a query may have none."""
    keep = positives.sources == SOURCES.index(source)
    before = np.concatenate([[0], np.cumsum(keep)])
    columns = (column[keep] for column in (positives.documents, positives.sources, positives.ranks))
    return Positives(positives.queries, before[positives.offsets], *columns)


def _of_queries(positives: Positives, keep: Bool[ndarray, " queries"]) -> Positives:
    """The queries for which `keep` is true, with all their positives."""
    counts = np.diff(positives.offsets)
    rows = np.repeat(keep, counts)
    offsets = np.concatenate([[0], np.cumsum(counts[keep])]).astype(np.int64)
    columns = (column[rows] for column in (positives.documents, positives.sources, positives.ranks))
    return Positives(positives.queries[keep], offsets, *columns)


# What a draw is for: one example's draws must not repeat each other.
_POSITIVE, _NEGATIVE, _RANDOM, _FURTHER_POSITIVE, _SHARE = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Examples:
    """The training examples of a split: one a query that has positives.

    Args:
        positives: the queries and all their relevant documents, whatever groups are made of.
        drawn: what groups are made of, see `positives.groups_of`.
        starts: the examples before each data set of several in one, and last all of them.
        document_starts: the documents before each, and last all of them: random negatives of a query are documents
            of its own data set.
        seed: another seed, other draws.
        negatives: hard negatives; a query without any, or no table at all, gets random documents.
        shares: of the negatives by origin, see `origins`; without them a query's rows are all alike.
        ranked: whether the positives of a group are those of the lowest ranks, rather than drawn each epoch.
    """

    positives: Positives
    drawn: tuple[Positives, ...]
    starts: Int64[ndarray, " parts+1"]
    document_starts: Int64[ndarray, " parts+1"]
    seed: int
    negatives: NegativesTable | None = None
    shares: Float64[ndarray, " origins"] | None = None
    ranked: bool = False

    @classmethod
    def of(
        cls,
        dataset: RetrievalDataset,
        split: str,
        seed: int,
        negatives: NegativesTable | None = None,
        *,
        sources: str = ALL,
        ranked: bool = False,
        shares: Float64[ndarray, " origins"] | None = None,
    ) -> Examples:
        """The examples of an opened split.

        Args:
            dataset: one data set, or several in one (`combine`).
            split: which of its splits.
            seed: see the class, as for all but `sources`.
            sources: who judged the positives that groups are made of: `all`, `human`, `llm` or `human-first`.

        Raises:
            DataError: the split has no positive (of the source), nothing but positives, or the table does not fit.
        """
        known = dataset.positives(split)
        if not len(known):
            raise DataError(f"split {split!r} has no judgement above 0", dataset.name, "give another split")
        positives, drawn = groups_of(known, sources, f"{dataset.name} {split}")
        query_starts, document_starts = starts_of(dataset)
        starts = np.searchsorted(positives.queries, query_starts)
        part = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        if (np.diff(positives.offsets) >= np.diff(document_starts)[part]).any():
            raise DataError("every document is relevant to some query", dataset.name, "add other documents")
        if negatives is not None and len(negatives.offsets) != len(dataset.queries) + 1:
            raise DataError(
                f"the negatives table is of {len(negatives.offsets) - 1} queries, not {len(dataset.queries)}",
                dataset.name,
                "mine the negatives of this data set",
            )
        return cls(positives, drawn, starts, document_starts, seed, negatives, shares, ranked)

    def __len__(self) -> int:
        return len(self.positives)

    def queries(self, examples: Int64[ndarray, " batch"]) -> Int64[ndarray, " batch"]:
        """Query positions of a batch of examples."""
        return self.positives.queries[examples]

    def drawn_positives(
        self, examples: Int64[ndarray, " batch"], epochs: Int64[ndarray, " batch"], count: int
    ) -> Int64[ndarray, "batch count"]:
        """At most `count` positives of each query, -1 behind those that have fewer: another choice each epoch, or
        the same by rank."""
        if len(self.drawn) == 1:
            return self._choice(self.drawn[0], examples, epochs, count, _POSITIVE)
        first = self._choice(self.drawn[0], examples, epochs, 1, _POSITIVE)
        further = self._choice(self.drawn[1], examples, epochs, count - 1, _FURTHER_POSITIVE)
        return np.concatenate([first, further], axis=1)

    def groups(
        self, examples: Int64[ndarray, " batch"], epochs: Int64[ndarray, " batch"], positives: int, negatives: int
    ) -> tuple[Int64[ndarray, "batch positives"], Int64[ndarray, "batch positives+negatives"]]:
        """The positives of each example, -1 behind those that have fewer, and its whole group of passages: the
        positives, then hard negatives, so many that all groups are of one size."""
        drawn = self.drawn_positives(examples, epochs, positives)
        held = (drawn >= 0).sum(axis=1)
        hard = self._hard(examples, epochs, negatives + positives - held, negatives + positives)
        # What stands in for lacking positives are the negatives behind those that every group has.
        columns = np.maximum(negatives + np.arange(positives)[None, :] - held[:, None], 0)
        lacking = np.take_along_axis(hard, columns, axis=1)
        return drawn, np.concatenate([np.where(drawn < 0, lacking, drawn), hard[:, :negatives]], axis=1)

    def hard_negatives(
        self, examples: Int64[ndarray, " batch"], epochs: Int64[ndarray, " batch"], count: int
    ) -> Int64[ndarray, "batch count"]:
        """`count` negatives for each example: drawn without repetition from the query's rows of the table (by the
        shares, from those of each origin), repeated in the drawn order when there are fewer, random non-positives
        of the query's data set when there are none."""
        return self._hard(examples, epochs, np.full(len(examples), count), count)

    def _choice(self, among: Positives, examples: ndarray, epochs: ndarray, count: int, purpose: int) -> ndarray:
        """`count` of the positives of each example, -1 behind."""
        places, there = _rows(among.offsets, examples, count)
        if not len(among.documents):
            return np.full((len(examples), count), -1, dtype=np.int64)
        if self.ranked:
            keys = among.ranks[places].astype(np.uint64)
        else:
            keys = words(self.seed, epochs, examples, purpose, np.arange(places.shape[1]))
        order = np.argsort(np.where(there, keys, np.uint64(WORD)), axis=1, kind="stable")[:, :count]
        return np.take_along_axis(np.where(there, among.documents[places], -1), order, axis=1)

    def _hard(self, examples: ndarray, epochs: ndarray, wanted: ndarray, width: int) -> ndarray:
        """`width` negatives of each example, of which the first `wanted`, as many as are used, hold the shares."""
        columns = np.arange(width)
        found = self._random(examples, epochs, columns)
        table = self.negatives
        if table is None or not len(table) or not width:
            return found
        places, there = _rows(table.offsets, self.queries(examples), 1)
        keys = words(self.seed, epochs, examples, _NEGATIVE, np.arange(places.shape[1]))
        if self.shares is None:
            return _filled(found, columns, table.documents[places], there, keys)
        origins = np.where(there, table.origins[places], -1)
        by_origin = np.stack([(origins == code).any(axis=1) for code in range(len(self.shares))], axis=1)
        shift = words(self.seed, epochs, examples, _SHARE) / 2.0**64
        counts = counts_by_origin(self.shares, by_origin, wanted, shift * (1 - 2.0**-53))
        ends = np.cumsum(counts, axis=1)
        for code in range(len(self.shares)):
            if code != RANDOM:
                along = columns[None, :] - (ends - counts)[:, code, None]
                mine = (along >= 0) & (columns[None, :] < ends[:, code, None])
                drawn = _filled(found, along, table.documents[places], origins == code, keys)
                found = np.where(mine, drawn, found)
        return found

    def _random(self, examples: ndarray, epochs: ndarray, columns: ndarray) -> Int64[ndarray, "batch count"]:
        part = np.searchsorted(self.starts, examples, side="right") - 1
        first = self.document_starts[part][:, None]
        size = self.document_starts[part + 1][:, None] - first
        found = (words(self.seed, epochs, examples, _RANDOM, columns) % size.astype(np.uint64)).astype(np.int64)
        total = self.document_starts[-1]
        while True:
            asked = examples[:, None] * total + first + found
            places = np.minimum(np.searchsorted(self._pairs, asked), len(self._pairs) - 1)
            clash = self._pairs[places] == asked
            if not clash.any():
                return first + found
            found = np.where(clash, (found + 1) % size, found)

    @cached_property
    def _pairs(self) -> Int64[ndarray, " positives"]:
        """Ascending, as queries and the documents of each are: one search tells whether a pair is a positive."""
        owner = np.repeat(np.arange(len(self.positives)), np.diff(self.positives.offsets))
        return owner * self.document_starts[-1] + self.positives.documents


def _rows(offsets: ndarray, of: ndarray, least: int) -> tuple[ndarray, ndarray]:
    """The rows of each, side by side, at least `least` columns: their places, and whether there is one."""
    starts, ends = offsets[of], offsets[of + 1]
    columns = np.arange(max(least, int((ends - starts).max())))
    there = columns < (ends - starts)[:, None]
    return np.minimum(starts[:, None] + columns, max(0, int(offsets[-1]) - 1)), there


def _filled(otherwise: ndarray, columns: ndarray, documents: ndarray, there: ndarray, keys: ndarray) -> ndarray:
    """For each column the document so far along the drawn order of those there, over again at their end; where
    there is none at all, what is there otherwise."""
    order = np.argsort(np.where(there, keys, np.uint64(WORD)), axis=1, kind="stable")
    known = there.sum(axis=1)[:, None]
    wrapped = np.broadcast_to(columns, otherwise.shape) % np.maximum(known, 1)
    mined = np.take_along_axis(documents, np.take_along_axis(order, wrapped, axis=1), axis=1)
    return np.where(known > 0, mined, otherwise)
