"""Overlap of splits: an evaluated split is refused if too many of its queries are training queries.

A model may have memorized the answer to a training query. So its result for this query says nothing about other
queries. `hashed_ids` defines which texts are equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from raytriever.core.errors import DataError, setting
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hashed_ids import TextHashes

# Maximum fraction of an evaluated split that may be training queries. A shared query raises the sum of a mean metric by
# at most 1. So at this fraction, the mean is at most 0.05 too high, which is more than most differences between models.
# The published splits in docs/how-to/prepare-data.md share at most 0.013.
MOST_SHARED = 0.05
ALLOW = setting("allow_split_overlap", True)


@dataclass(frozen=True)
class Overlap:
    """Number of queries in an evaluated split, and how many of them are also training queries."""

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
            "are training queries too (equal except for case and white space)"
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
        remedy = f"leave these queries out of the training split, or give {ALLOW} and do not trust the metrics"
        raise DataError(f"{overlap}, more than {MOST_SHARED:.0%}", overlap.dataset, remedy)
