"""Files of an evaluation as a study reads them: metrics, pooled scores, and the scores of a cross-encoder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.data.dataset import joined
from raytriever.data.prepare.open import open_dataset
from raytriever.errors import StorageError
from raytriever.evaluation.differences.seeds import SeedMetrics
from raytriever.evaluation.files import read_per_query
from raytriever.evaluation.protocol import AUC
from raytriever.evaluation.results import read_results
from raytriever.metrics.auc import auc_pseudo_values
from raytriever.metrics.calibration import ScoredPools
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.precision import default_device
from raytriever.models.resolution import resolve_model
from raytriever.reading.arrays import read_arrays
from raytriever.reading.structured import read_json
from raytriever.report.evaluation import SCORES_KIND
from raytriever.store.commit import write_atomically
from raytriever.store.disk import disk_errors
from raytriever.studies.definition import Evaluated, MeasuredDataset

_QUERIES = (["int64"], (None,))
_REMEDY = "remove it; it is written again"


class _Scores(TypedDict):
    model: str
    scores: list[float | None]


def read_seed_metrics(
    folder: Path, model: str, dataset: str, seed: int | None, extras: Mapping[str, float]
) -> SeedMetrics:
    """Read the metrics of a model on a data set, with values by query, and pseudo-values of the AUC.

    Args:
        folder: evaluation directory of one data set.
        model, dataset: their names in this directory.
        seed: seed that the model was trained with; None if it was not trained.
        extras: further metrics that do not come from the evaluation.

    Raises:
        StorageError: a file was damaged or changed.
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


def score_best_documents(dataset: MeasuredDataset, evaluated: Evaluated) -> None:
    """Write the logit of each query and its best document to `evaluated.cross_scores`, if it does not exist.

    Raises:
        ModelError: the cross-encoder cannot be loaded.
        StorageError: a file of the evaluation was damaged or changed.
    """
    if evaluated.cross_scores.is_file():
        return
    content = read_per_query(evaluated.folder / "per_query" / f"{evaluated.dataset}.json")
    tops = content["models"][evaluated.model]["top"]
    documents = open_dataset(dataset.dataset, [dataset.split], max_bad_rows=1.0).documents
    row_of = {name: row for row, name in enumerate(documents.ids)}
    ranked = [row for row, top in enumerate(tops) if top]
    best = [row_of[tops[row][0][0]] for row in ranked]
    passages = [joined(documents.titles[at], documents.texts[at]) for at in best]
    model = CrossEncoder(resolve_model(dataset.cross_encoder), default_device(), "fp32")
    logits = model.logits([content["texts"][row] for row in ranked], passages)
    scores: list[float | None] = [None] * len(tops)
    for row, logit in zip(ranked, logits.tolist(), strict=True):
        scores[row] = logit
    text = json.dumps({"model": dataset.cross_encoder, "scores": scores}, allow_nan=False)
    write_atomically(evaluated.cross_scores, text + "\n")


def read_cross_scores(file: Path, queries: int) -> Float64[ndarray, " queries"] | None:
    """Read the scores of an evaluation's queries, -inf for a query without a document; None if there is no file.

    Raises:
        StorageError: the file was damaged or changed.
    """
    try:
        scores = read_json(file, _Scores, _REMEDY)["scores"]
    except FileNotFoundError:
        return None
    if len(scores) != queries:
        raise StorageError(f"is damaged or changed: {len(scores)} scores for {queries} queries", str(file), _REMEDY)
    return np.array([-math.inf if score is None else score for score in scores])
