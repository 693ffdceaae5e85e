"""Pairs that a teacher scores: each query of a split with its positives and its candidates.

Candidates are the rows of a negatives table and the best documents of a TREC run. If neither is passed, they are the
hard negatives of the data set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import read_negatives
from raytriever.data.run_files import read_run
from raytriever.errors import ConfigError, DataError, setting
from raytriever.mining.config import ScoreConfig


@dataclass(frozen=True)
class Pairs:
    """Distinct pairs of positions, sorted by query, then document.

    Args:
        queries, documents: positions in the data set.
        positive: true if the document is relevant to the query.
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
    """Collect the pairs of a split.

    Args:
        dataset: opened with the split.
        split: split whose queries with a positive are scored.
        config: names the sources of candidates.

    Raises:
        ConfigError: no source of candidates is passed, and the data set has no hard negatives.
        DataError: the split has no positive, or none of its queries has a candidate.
    """
    positives = dataset.positives(split)
    if not len(positives):
        raise DataError(f"split {split!r} has no judgement above 0", dataset.name, "choose another split")
    owners = np.repeat(positives.queries, np.diff(positives.offsets))
    candidates = _candidates(dataset, positives.queries, config)
    if not np.isin(np.concatenate([queries for queries, _ in candidates]), positives.queries).any():
        raise DataError(
            f"none of the {len(positives):,} queries of split {split!r} has a candidate",
            config.negatives or config.run or dataset.name,
            "name the negatives of this split",
        )
    size = len(dataset.documents)
    rows = [(owners, positives.documents), *candidates]
    keys = np.unique(np.concatenate([queries * size + documents for queries, documents in rows]))
    keys = keys[np.isin(keys // size, positives.queries)]
    return Pairs(keys // size, keys % size, np.isin(keys, owners * size + positives.documents))


def _candidates(
    dataset: RetrievalDataset, queries: Int64[ndarray, " queries"], config: ScoreConfig
) -> list[tuple[ndarray, ndarray]]:
    """Return the candidates of each source as query and document positions."""
    candidates = []
    if config.negatives:
        table = read_negatives(config.negatives, dataset)
        candidates.append((table.queries, table.documents))
    if config.run:
        ranking = read_run(config.run, dataset, queries.tolist(), config.depth)
        rows, ranks = np.nonzero(ranking >= 0)
        candidates.append((queries[rows], ranking[rows, ranks]))
    if not candidates:
        if dataset.negatives is None or not len(dataset.negatives.queries):
            raise ConfigError(
                f"{dataset.name} has no hard negatives",
                setting("negatives"),
                f"name a table that `raytriever mine` wrote, or a {setting('run')}",
            )
        candidates.append((dataset.negatives.queries, dataset.negatives.documents))
    return candidates
