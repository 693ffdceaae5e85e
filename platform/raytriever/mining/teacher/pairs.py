"""Pairs that a teacher scores: each query of a split with its positives and its candidates.

Candidates are the rows of a negatives table, the best documents of a TREC run, or, if neither is named, the hard
negatives of the data set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import read_negatives
from raytriever.data.run_files import read_run
from raytriever.errors import ConfigError, DataError
from raytriever.mining.config import ScoreConfig


@dataclass(frozen=True)
class Pairs:
    """Pairs of positions, by query, then document, none twice.

    Args:
        queries, documents: positions.
        positive: whether the document is relevant to the query.
    """

    queries: Int64[ndarray, " pairs"]
    documents: Int64[ndarray, " pairs"]
    positive: Bool[ndarray, " pairs"]

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def digest(self) -> str:
        """SHA-256 over the positions."""
        return hashlib.sha256(np.stack([self.queries, self.documents]).astype("<i8").tobytes()).hexdigest()


def collect_pairs(dataset: RetrievalDataset, split: str, config: ScoreConfig) -> Pairs:
    """The pairs of a split.

    Args:
        dataset: opened with the split.
        split: whose queries with a positive are asked about.
        config: names the candidates.

    Raises:
        ConfigError: nothing names candidates, and the data set brings none along.
        DataError: the split has no positive, or none of its queries has a candidate.
    """
    positives = dataset.positives(split)
    if not len(positives):
        raise DataError(f"split {split!r} has no judgement above 0", dataset.name, "give another split")
    owners = np.repeat(positives.queries, np.diff(positives.offsets))
    found = [(owners, positives.documents), *_candidates(dataset, positives.queries, config)]
    asked = np.isin(np.concatenate([queries for queries, _ in found[1:]]), positives.queries)
    if not asked.any():
        raise DataError(
            f"none of the {len(positives):,} queries of split {split!r} has a candidate",
            config.negatives or config.run or dataset.name,
            "name the negatives of this split",
        )
    size = len(dataset.documents)
    wanted = np.unique(np.concatenate([queries * size + documents for queries, documents in found]))
    wanted = wanted[np.isin(wanted // size, positives.queries)]
    return Pairs(wanted // size, wanted % size, np.isin(wanted, owners * size + positives.documents))


def _candidates(
    dataset: RetrievalDataset, queries: Int64[ndarray, " queries"], config: ScoreConfig
) -> list[tuple[ndarray, ndarray]]:
    found = []
    if config.negatives:
        table = read_negatives(config.negatives, dataset)
        found.append((table.queries, table.documents))
    if config.run:
        ranked = read_run(config.run, dataset, queries.tolist(), config.depth)
        rows, places = np.nonzero(ranked >= 0)
        found.append((queries[rows], ranked[rows, places]))
    if not found:
        if dataset.negatives is None or not len(dataset.negatives.queries):
            raise ConfigError(
                f"{dataset.name} brings no hard negatives along",
                "--negatives",
                "name a table that jobs/mine.py wrote, or a --run",
            )
        found.append((dataset.negatives.queries, dataset.negatives.documents))
    return found
