"""Files of an evaluation as a study reads them: metrics and pooled scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from raytriever.errors import StorageError
from raytriever.evaluation.differences.seeds import SeedMetrics
from raytriever.evaluation.files import read_per_query
from raytriever.evaluation.protocol import AUC
from raytriever.evaluation.results import read_results
from raytriever.metrics.auc import auc_pseudo_values
from raytriever.metrics.calibration import ScoredPools
from raytriever.reading.arrays import read_arrays
from raytriever.report.evaluation import SCORES_KIND
from raytriever.store.disk import disk_errors

_QUERIES = (["int64"], (None,))


def read_seed_metrics(
    folder: Path, model: str, dataset: str, seed: int | None, extras: Mapping[str, float]
) -> SeedMetrics:
    """Read the metrics of a model on a data set, with values by query, and pseudo-values of the AUC.

    Args:
        model, dataset: their names in this directory.
        seed: seed that the model was trained with; None if it was not trained.
        extras: further metrics that do not come from the evaluation.
    """
    results, remedy = read_results(folder), f"remove {folder}; it is measured again"
    path = folder / "per_query" / f"{dataset}.json"
    try:
        metrics = results["models"][model][dataset]
        values = read_per_query(path, remedy)["models"][model]["metrics"]
    except (KeyError, FileNotFoundError) as error:
        raise StorageError(f"has no results of {model} on {dataset}", str(folder), remedy) from error
    per_query = {name: np.array(column, np.float64) for name, column in values.items()}  # null becomes NaN
    if AUC in metrics:
        pools, count = read_pools(folder, model, dataset), int(results["about"][dataset]["queries"])
        assert pools.positive_queries is not None  # an evaluation always stores them
        assert pools.negative_queries is not None
        per_query[AUC] = auc_pseudo_values(
            pools.positives, pools.negatives, pools.positive_queries, pools.negative_queries, count
        )
    means = {name: float("nan") if value is None else float(value) for name, value in metrics.items()}
    return SeedMetrics(seed, means | dict(extras), per_query)


def read_pools(folder: Path, model: str, dataset: str) -> ScoredPools:
    """Read the pooled scores of an evaluation; raises `StorageError` if the file was damaged or changed."""
    path, remedy = folder / "scores" / f"{dataset}.{model}.npz", f"remove {folder}; it is measured again"
    sides = ("positives", "negatives")
    kinds = dict.fromkeys(sides, SCORES_KIND) | {f"{side[:-1]}_queries": _QUERIES for side in sides}
    with disk_errors(path, reading=True):
        arrays = read_arrays(path, kinds, remedy)
    for side in sides:
        if len(arrays[side]) != len(arrays[f"{side[:-1]}_queries"]):
            raise StorageError(f"is damaged or changed: some of its {side} have no query", str(path), remedy)
    return ScoredPools(**arrays)
