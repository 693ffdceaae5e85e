"""Training example: a query, some of its positives, and hard negatives, all by position.

Every random choice is a hash of (seed, epoch, example), see `batch_order.words`. It is the same on any worker and after
any restart, and differs between epochs.

The setting `positives` selects the positives of a group by their source. `all` uses every relevant document. `human`
and `llm` use one source. `human-first` makes mixed groups: first a human positive, then LLM positives. A query without
a positive for the first place is not an example.

Known documents of a query never become its negatives. They are its relevant documents from all sources, those of equal
queries, and all copies of these documents (`data.hashed_ids`). In arrays, the first of equal documents represents all.

The negatives of every group follow the fractions by origin as closely as whole numbers allow. Of n negatives, an origin
gets floor or ceil of n times its fraction, sampled so that the expectation is exact, even for n = 1. For this, the
fractions are laid end to end on [0, n]. A random number u in [0, 1) for each (seed, epoch, example) shifts a grid of
step 1. An origin gets one negative for each grid point in its interval (systematic sampling, Madow 1949). If a
query has no negative of an origin, its other origins share this fraction in proportion. Random documents get it only
if the query has no other origin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, DataError, setting
from raytriever.core.unknown_names import check_known
from raytriever.data.combine_datasets import starts_of
from raytriever.data.dataset import Positives, RetrievalDataset, positions_of_slices
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.hashed_ids import NO_COPIES, Copies
from raytriever.data.records_and_bad_rows import ORIGINS, SOURCES
from raytriever.data.sampling.batch_order import WORD, words

ALL, HUMAN_FIRST = "all", "human-first"


def groups_of(positives: Positives, which: str, where: str) -> tuple[Positives, tuple[Positives, ...]]:
    """Return the queries that are examples, and the positives from which their groups are sampled.

    The second value has the candidates for the first positive of a group and, for `human-first`, the candidates for
    the other positives. A query may have no candidate for these. Raise `DataError` if no query has a positive of the
    source."""
    if which == ALL:
        return positives, (positives,)
    human, llm = (_of_source(positives, source) for source in SOURCES)
    sampled = {"human": (human,), "llm": (llm,), HUMAN_FIRST: (human, llm)}[which]
    begins = np.diff(sampled[0].offsets) > 0
    if not begins.any():
        source = "llm" if which == "llm" else "human"
        remedy = f"choose another value of {setting('positives')}"
        raise DataError(f"no query has a positive of source {source!r}", where, remedy)
    return positives.where(begins), tuple(column.where(begins) for column in sampled)


def _of_source(positives: Positives, source: str) -> Positives:
    keep = positives.sources == SOURCES.index(source)
    before = np.concatenate([[0], np.cumsum(keep)])
    columns = (column[keep] for column in (positives.documents, positives.sources, positives.ranks))
    return Positives(positives.queries, before[positives.offsets], *columns)


# Purposes of random numbers, see `words`. Samples of an example for different purposes must be independent.
_POSITIVE, _NEGATIVE, _RANDOM, _FURTHER_POSITIVE, _FRACTION = 1, 2, 3, 4, 5


def check_positives(positives: Positives, dataset: RetrievalDataset, split: str) -> None:
    """Raise `DataError` if a split has no positive, or if every document is relevant to the same query."""
    if not len(positives):
        raise DataError(f"split {split!r} has no judgement above 0", dataset.name, "give another split")
    query_starts, document_starts = starts_of(dataset)
    part = np.searchsorted(query_starts, positives.queries, "right") - 1
    if (np.diff(positives.offsets) >= np.diff(document_starts)[part]).any():
        raise DataError("every document is relevant to one and the same query", dataset.name, "add other documents")


@dataclass(frozen=True)
class Examples:
    """Training examples of a split: one for each query with positives."""

    positives: Positives  # queries and all their relevant documents
    sampled: tuple[Positives, ...]  # positives from which groups are sampled, see `groups_of`
    starts: Int64[ndarray, " parts+1"]  # first example of each combined data set, followed by the number of examples
    # First document of each combined data set, followed by the number of documents. Random negatives of a query are
    # documents of its own data set.
    document_starts: Int64[ndarray, " parts+1"]
    seed: int
    # Table of hard negatives. Queries without hard negatives get random documents.
    negatives: NegativesTable | None = None
    # Fractions of the negatives by origin, see above; None if all rows of a query have equal weight.
    fractions: Float64[ndarray, " origins"] | None = None
    ranked: bool = False  # use the positives with the lowest ranks, instead of a new sample in each epoch
    # `query_copies`, `document_copies`: copies of earlier texts; equal texts are treated as one.
    query_copies: Copies = NO_COPIES
    document_copies: Copies = NO_COPIES

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
        fractions: Float64[ndarray, " origins"] | None = None,
    ) -> Examples:
        """Return the examples of an opened split of one data set, or of a combined one (`combine_datasets.combine`).

        `sources` selects the positives of groups by source: `all`, `human`, `llm` or `human-first`. Raise `DataError`
        if the split has no positive (of the source), if all documents are relevant to one query, or if the table
        belongs to another data set."""
        known = dataset.positives(split)
        check_positives(known, dataset, split)
        positives, sampled = groups_of(known, sources, f"{dataset.name} {split}")
        query_starts, document_starts = starts_of(dataset)
        starts = np.searchsorted(positives.queries, query_starts)
        if negatives is not None and len(negatives.offsets) != len(dataset.queries) + 1:
            what = f"the negatives table has {len(negatives.offsets) - 1} queries, not {len(dataset.queries)}"
            raise DataError(what, dataset.name, "mine the negatives of this data set")
        copies = dataset.queries.copies, dataset.documents.copies
        return cls(positives, sampled, starts, document_starts, seed, negatives, fractions, ranked, *copies)

    def __len__(self) -> int:
        return len(self.positives)

    def queries(self, examples: Int64[ndarray, " batch"]) -> Int64[ndarray, " batch"]:
        """Return the query positions of a batch of examples."""
        return self.positives.queries[examples]

    def known(
        self, examples: Int64[ndarray, " batch"]
    ) -> tuple[Int64[ndarray, " positives"], Int64[ndarray, " positives"]]:
        """Return the known documents of a batch of examples: for each, the index of the example in the batch, and the
        position of the first document that equals the known one."""
        offsets, documents = self._known
        starts = offsets[examples]
        counts = offsets[examples + 1] - starts
        return np.repeat(np.arange(len(examples)), counts), documents[positions_of_slices(starts, counts)]

    def sampled_positives(
        self, examples: Int64[ndarray, " batch"], epochs: Int64[ndarray, " batch"], count: int
    ) -> Int64[ndarray, "batch count"]:
        """Return up to `count` positives of each query, sampled by epoch or chosen by rank. Empty slots are -1."""
        if len(self.sampled) == 1:
            return self._choice(self.sampled[0], examples, epochs, count, _POSITIVE)
        first = self._choice(self.sampled[0], examples, epochs, 1, _POSITIVE)
        further = self._choice(self.sampled[1], examples, epochs, count - 1, _FURTHER_POSITIVE)
        return np.concatenate([first, further], axis=1)

    def groups(
        self, examples: Int64[ndarray, " batch"], epochs: Int64[ndarray, " batch"], positives: int, negatives: int
    ) -> tuple[Int64[ndarray, "batch positives"], Int64[ndarray, "batch positives+negatives"]]:
        """Return the positives of each example (-1 if missing), and the whole group of passages: the positives, then
        the negatives. Additional negatives replace missing positives, so that all groups have the same size."""
        sampled = self.sampled_positives(examples, epochs, positives)
        counts = (sampled >= 0).sum(axis=1)
        hard = self._hard(examples, epochs, negatives + positives - counts, negatives + positives)
        # Every group has the first `negatives` negatives. The next negatives fill the slots of missing positives.
        columns = np.maximum(negatives + np.arange(positives)[None, :] - counts[:, None], 0)
        lacking = np.take_along_axis(hard, columns, axis=1)
        return sampled, np.concatenate([np.where(sampled < 0, lacking, sampled), hard[:, :negatives]], axis=1)

    def _choice(self, among: Positives, examples: ndarray, epochs: ndarray, count: int, purpose: int) -> ndarray:
        rows, there = _rows(among.offsets, examples, count)
        if not len(among.documents):
            return np.full((len(examples), count), -1, dtype=np.int64)
        if self.ranked:
            keys = among.ranks[rows].astype(np.uint64)
        else:
            keys = words(self.seed, epochs, examples, purpose, np.arange(rows.shape[1]))
        order = np.argsort(np.where(there, keys, np.uint64(WORD)), axis=1, kind="stable")[:, :count]
        return np.take_along_axis(np.where(there, among.documents[rows], -1), order, axis=1)

    def _hard(self, examples: ndarray, epochs: ndarray, needed: ndarray, columns_needed: int) -> ndarray:
        """Return `columns_needed` negatives of each example. Of these, the first `needed` are used and follow the
        fractions by origin.

        Negatives are sampled without replacement from the query's rows of the table. If there are too few rows, the
        sample is repeated in the same order. A query without rows gets random documents that are not its positives."""
        columns = np.arange(columns_needed)
        documents = self._random(examples, epochs, columns)
        table = self.negatives
        if table is None or not len(table) or not columns_needed:
            return documents
        rows, there = _rows(table.offsets, self.queries(examples), 1)
        keys = words(self.seed, epochs, examples, _NEGATIVE, np.arange(rows.shape[1]))
        if self.fractions is None:
            return _filled(documents, columns, table.documents[rows], there, keys)
        origins = np.where(there, table.origins[rows], -1)
        by_origin = np.stack([(origins == code).any(axis=1) for code in range(len(self.fractions))], axis=1)
        shift = words(self.seed, epochs, examples, _FRACTION) / 2.0**64
        counts = counts_by_origin(self.fractions, by_origin, needed, shift * (1 - 2.0**-53))
        ends = np.cumsum(counts, axis=1)
        for code in range(len(self.fractions)):
            if code != RANDOM:
                along = columns[None, :] - (ends - counts)[:, code, None]
                mine = (along >= 0) & (columns[None, :] < ends[:, code, None])
                of_origin = _filled(documents, along, table.documents[rows], origins == code, keys)
                documents = np.where(mine, of_origin, documents)
        return documents

    def _random(self, examples: ndarray, epochs: ndarray, columns: ndarray) -> Int64[ndarray, "batch count"]:
        part = np.searchsorted(self.starts, examples, side="right") - 1
        first = self.document_starts[part][:, None]
        size = self.document_starts[part + 1][:, None] - first
        documents = (words(self.seed, epochs, examples, _RANDOM, columns) % size.astype(np.uint64)).astype(np.int64)
        total = self.document_starts[-1]
        for _ in range(int(size.max())):
            pair_keys = examples[:, None] * total + self.document_copies.first(first + documents)
            nearest = np.minimum(np.searchsorted(self._pairs, pair_keys), len(self._pairs) - 1)
            clash = self._pairs[nearest] == pair_keys
            if not clash.any():
                return first + documents
            documents = np.where(clash, (documents + 1) % size, documents)
        raise DataError("every document is a copy of a relevant document", "a query", "add other documents")

    @cached_property
    def _pairs(self) -> Int64[ndarray, " known"]:
        """Keys of all pairs of an example and a known document, ascending, for a binary search."""
        offsets, documents = self._known
        return np.repeat(np.arange(len(self)), np.diff(offsets)) * self.document_starts[-1] + documents

    @cached_property
    def _known(self) -> tuple[Int64[ndarray, " examples+1"], Int64[ndarray, " known"]]:
        """Offsets and known documents: those of example i are `documents[offsets[i]:offsets[i + 1]]`, ascending."""
        own, size = self.positives, self.document_starts[-1]
        documents = self.document_copies.first(own.documents)
        if not len(self.query_copies) and not len(self.document_copies):
            return own.offsets, documents
        queries = self.query_copies.first(own.queries)
        owner = np.repeat(queries, np.diff(own.offsets))
        pairs = np.unique(owner * size + documents)  # a query and its copies share all their pairs
        starts, ends = (np.searchsorted(pairs, (queries + more) * size) for more in (0, 1))
        counts = ends - starts
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return offsets, pairs[positions_of_slices(starts, counts)] % size


def _rows(offsets: ndarray, of: ndarray, least: int) -> tuple[ndarray, ndarray]:
    """Return the table rows of each query in `of`, padded to at least `least` columns, and a mask of actual rows."""
    starts, ends = offsets[of], offsets[of + 1]
    columns = np.arange(max(least, int((ends - starts).max())))
    there = columns < (ends - starts)[:, None]
    return np.minimum(starts[:, None] + columns, max(0, int(offsets[-1]) - 1)), there


def _filled(otherwise: ndarray, columns: ndarray, documents: ndarray, there: ndarray, keys: ndarray) -> ndarray:
    """Sort each row's documents by `keys` and repeat them. Return those at `columns`; `otherwise` without any."""
    order = np.argsort(np.where(there, keys, np.uint64(WORD)), axis=1, kind="stable")
    known = there.sum(axis=1)[:, None]
    wrapped = np.broadcast_to(columns, otherwise.shape) % np.maximum(known, 1)
    mined = np.take_along_axis(documents, np.take_along_axis(order, wrapped, axis=1), axis=1)
    return np.where(known > 0, mined, otherwise)


RANDOM = ORIGINS.index("random")
_FLAG = setting("negatives_mix")


def parse_mix(text: str) -> Float64[ndarray, " origins"] | None:
    """Parse fractions such as `bm25=0.5,random=0.5`. Return them in the order of `ORIGINS`, scaled to the sum 1; None
    for "". Raise `ConfigError` if an origin is unknown or named twice, or a fraction is not above 0."""
    if not text.strip():
        return None
    fractions = np.zeros(len(ORIGINS))
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        check_known("origin", name, ORIGINS, _FLAG)
        try:
            fraction = float(number)
        except ValueError:
            fraction = math.nan
        if not 0 < fraction < math.inf:
            raise ConfigError(f"the fraction of {name!r} is {number!r}", _FLAG, "give a number above 0, as in bm25=0.5")
        origin = ORIGINS.index(name)
        if fractions[origin]:
            raise ConfigError(f"{name!r} occurs twice", _FLAG, "give each origin one fraction")
        fractions[origin] = fraction
    return fractions / fractions.sum()


def counts_by_origin(
    fractions: Float64[ndarray, " origins"],
    there: Bool[ndarray, "batch origins"],
    wanted: Int64[ndarray, " batch"],
    shift: Float64[ndarray, " batch"],
) -> Int64[ndarray, "batch origins"]:
    """Return the number of negatives of each origin in each group; the sum of a row is `wanted`.

    Args:
        fractions: fractions of the origins; their sum is 1.
        there: True if the query has a negative of the origin; ignored for random documents, which always exist.
        wanted: number of negatives of each group, at least 0.
        shift: random number in [0, 1) for each group.
    """
    mined = np.where(there, fractions, 0.0)
    mined[:, RANDOM] = 0
    left = mined.sum(axis=1, keepdims=True)
    random = np.where(left > 0, fractions[RANDOM], 1.0)
    of_query = mined * ((1 - random) / np.where(left > 0, left, 1.0))
    of_query[:, RANDOM] = random[:, 0]
    ends = np.cumsum(of_query, axis=1)
    # Correct rounding errors: the sum of a row must be exact, and an origin without a fraction must get no negative.
    ends[ends > 1 - 1e-9] = 1.0
    marks = np.minimum(np.floor(ends * wanted[:, None] + shift[:, None]).astype(np.int64), wanted[:, None])
    return np.diff(marks, axis=1, prepend=0)
