"""Which of a query's positives its groups are made of (paper 002, section 4.2), by who judged them.

`all` takes every relevant document; `human` and `llm` make homogeneous groups of one source; `human-first` makes
heterogeneous ones: one human positive in front, LLM ones behind. A query that lacks the positive its group would begin
with is no example. Whatever a group is made of, all relevant documents of a query stay known: none is its negative.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from raytriever.data.dataset import Positives
from raytriever.data.records import SOURCES
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
