"""What an evaluation directory of one model tells of one data set, for the table of a study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.errors import StorageError
from raytriever.metrics.auc_pseudo import auc_pseudo_values
from raytriever.metrics.calibration import ScoredPools
from raytriever.retrieval.evaluation_results import read_results
from raytriever.retrieval.protocol import AUC
from raytriever.retrieval.study_results import Found


def read_found(folder: Path, model: str, dataset: str, seed: int, extras: Mapping[str, float]) -> Found:
    """The figures of a model on a data set, with values a query, and of the AUC pseudo-values.

    Args:
        folder: an evaluation directory of one data set.
        model, dataset: their names there.
        seed: the model was trained with.
        extras: further figures, that were measured otherwise.

    Raises:
        StorageError: it is torn or changed.
    """
    metrics = read_results(folder)["models"][model][dataset]
    path = folder / "per_query" / f"{dataset}.json"
    try:
        told = json.loads(path.read_bytes())["models"][model]["metrics"]
    except (OSError, ValueError, KeyError) as error:
        raise StorageError("is torn or changed", str(path), f"remove {folder}; it is measured again") from error
    per_query = {name: np.array(values, np.float64) for name, values in told.items()}  # null becomes NaN
    if AUC in metrics:
        pools, count = read_pools(folder, model, dataset), _queries(folder, dataset)
        per_query[AUC] = auc_pseudo_values(
            pools.positives, pools.negatives, _named(pools.positive_queries), _named(pools.negative_queries), count
        )
    figures = {name: float("nan") if value is None else float(value) for name, value in metrics.items()}
    return Found(seed, figures | dict(extras), per_query)


def read_pools(folder: Path, model: str, dataset: str) -> ScoredPools:
    """The pooled scores that an evaluation kept; raises `StorageError`."""
    path = folder / "scores" / f"{dataset}.{model}.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            return ScoredPools(**{name: kept[name] for name in kept.files})
    except (OSError, ValueError, TypeError) as error:
        raise StorageError("is torn or changed", str(path), f"remove {folder}; it is measured again") from error


def _queries(folder: Path, dataset: str) -> int:
    return int(read_results(folder)["about"][dataset]["queries"])


def _named(queries: ndarray | None) -> ndarray:
    assert queries is not None  # an evaluation always tells them
    return queries
