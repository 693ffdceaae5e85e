"""Statistics of a data set: the statistics that `prepare` prints, and the number of texts that two splits share.

A model may have memorized the answer to a training query. So its result for this query says nothing about other
queries. `hashed_ids` defines which texts are equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.core.errors import DataError, setting
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hashed_ids import TextHashes

PERCENTILES = (50, 90, 99)


def describe(
    dataset: RetrievalDataset, sides: Mapping[str, Any], lengths: Mapping[str, int], around: int
) -> dict[str, str]:
    """Return the statistics of a data set with all splits opened: texts, by name.

    `sides` are statistics from the manifest that `prepare` wrote. `lengths` has, for `documents` and `queries`, the
    largest number of tokens that a model reads of a text. It includes the special tokens, whose number is `around`."""
    statistics = {
        "documents": f"{len(dataset.documents):,}",
        "queries": f"{len(dataset.queries):,}",
        "documents repeated under their id": f"{sides['documents']['repeated']:,}",
        "passages that are copies of others, which count as one": f"{sides['documents']['same_text']:,}",
        "queries that are copies of others, which count as one": f"{sides['queries']['same_text']:,}",
    }
    for split, rows in dataset.judgements.items():
        queries = np.unique(rows.queries)
        positives = dataset.positives(split)
        statistics[f"{split}: queries"] = f"{len(queries):,}"
        statistics[f"{split}: judgements a query"] = _spread(np.unique(rows.queries, return_counts=True)[1])
        statistics[f"{split}: positives a query"] = _spread(np.diff(positives.offsets))
        without = len(queries) - len(positives)
        if without:
            statistics[f"{split}: queries without a positive"] = f"{without:,}"
        if split in dataset.absent:
            statistics[f"{split}: positives not in the corpus"] = f"{len(dataset.absent[split]):,}"
        if split in dataset.unanswerable:
            statistics[f"{split}: queries that no document answers"] = f"{len(dataset.unanswerable[split]):,}"
    if dataset.tokens is not None:
        for side, column in (("documents", dataset.tokens.documents), ("queries", dataset.tokens.queries)):
            tokens = column.lengths() + around
            if not len(tokens):  # a corpus without queries
                continue
            marks = " / ".join(f"{value:.0f}" for value in np.percentile(tokens, PERCENTILES))
            cut = (tokens > lengths[side]).mean()
            statistics[f"{side}: tokens, {' / '.join(f'{p} %' for p in PERCENTILES)} / most"] = (
                f"{marks} / {tokens.max():,}"
            )
            statistics[f"{side}: cut at {lengths[side]} tokens"] = f"{cut:.1%}"
    return statistics | {"bad rows left out": f"{dataset.quarantine.total:,}"}


def _spread(counts: ndarray) -> str:
    return f"{counts.mean():.2f} ({counts.min():,} to {counts.max():,})" if len(counts) else "-"


# Largest fraction of an evaluated split that may be training queries. A shared query raises the sum of a mean metric by
# at most 1. So at this fraction, the mean is at most 0.05 too high, which is more than most differences between models.
# The published splits in docs/how-to/prepare-data.md share at most 0.013.
MOST_SHARED = 0.05
ALLOW = setting("allow_split_overlap", True)


@dataclass(frozen=True)
class Overlap:
    """Number of queries of an evaluated split, and number of those whose text is also a training query."""

    dataset: str
    split: str
    shared: int
    queries: int

    @property
    def fraction(self) -> float:
        """Fraction of the split's queries that are also training queries, from 0 to 1."""
        return self.shared / self.queries if self.queries else 0.0

    def __str__(self) -> str:
        return (
            f"{self.shared:,} of {self.queries:,} queries of split {self.split!r} ({self.fraction:.1%}) "
            "are training queries too (same text but for case and white space)"
        )


def overlaps(
    trained: Iterable[tuple[RetrievalDataset, str]], evaluated: Sequence[tuple[RetrievalDataset, str]]
) -> list[Overlap]:
    """Count the queries of each evaluated split that are also training queries."""
    known = [_hashes(dataset, split) for dataset, split in trained]
    counts = []
    for dataset, split in evaluated:
        own = _hashes(dataset, split)
        shared = np.isin(own, np.concatenate(known)) if known else np.zeros(len(own), bool)
        counts.append(Overlap(dataset.name, split, int(shared.sum()), len(own)))
    return counts


def _hashes(dataset: RetrievalDataset, split: str) -> TextHashes:
    return dataset.queries.hashes[dataset.positives(split).queries]


def check_overlap(overlap: Overlap, allowed: bool) -> None:
    """Raise `DataError` if too many queries of an evaluated split are training queries, unless that is allowed."""
    if overlap.fraction > MOST_SHARED and not allowed:
        remedy = f"leave these queries out of the training split, or give {ALLOW} and do not trust the statistics"
        raise DataError(f"{overlap}, more than {MOST_SHARED:.0%}", overlap.dataset, remedy)
