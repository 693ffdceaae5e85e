"""An arm of a study on one data set: measured as `jobs/evaluate.py` measures, and by the query-document gap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytriever.config.study import OOD, STEPS_TO_BEST, Arm, Measured
from raytriever.errors import StorageError
from raytriever.models.config import ModelConfig
from raytriever.retrieval.evaluated_models import BM25, EvaluatedModel
from raytriever.retrieval.evaluation_job import run_evaluation
from raytriever.retrieval.evaluation_request import EvaluationJob
from raytriever.retrieval.evaluation_results import RESULTS, read_results
from raytriever.retrieval.evaluation_sets import EvaluationSet
from raytriever.retrieval.file_names import safe_name
from raytriever.retrieval.ood_job import OodJob, read_ood, run_ood
from raytriever.retrieval.protocol import Protocol
from raytriever.tracking.tracker import DatasetRecord, Tracker

MEASURED, GAP = "measured", "model"
# The index whose candidates are counted, and how many queries are asked.
GAP_INDEX, GAP_QUERIES = "hnsw", 1_000


def measure(
    one: Measured, arm: Arm, model: str, precision: str | None, facts: Mapping[str, Any], folder: Path
) -> dict[str, float]:
    """The figures of an arm on one data set; what an earlier call measured stands.

    Args:
        one: the data set.
        arm: whose training it is.
        model: its directory, or the encoder as it is, or `bm25`.
        precision: of encoding; None for what suits the device.
        facts: of its training, where it was trained.
        folder: its run directory.

    Raises:
        UserError: see `run_evaluation`.
    """
    place = folder / MEASURED / safe_name(one.name)
    if not (place / RESULTS).is_file():
        name, (queries, passages) = arm.name, arm.lengths or (None, None)
        config = ModelConfig(model=model, query_length=queries, passage_length=passages)
        job = EvaluationJob(
            models=[EvaluatedModel(name, None if model == BM25 else config)],
            sets=[EvaluationSet(place.name, {place.name: one.dataset}, one.split)],
            baselines=[name],
            protocol=Protocol(one.metrics, level=one.level, drop_own=one.drop_own),
            precision=precision,
        )
        run_evaluation(job, place, fresh=True, tracker=_Unheard, say=lambda line: None)
    metrics = read_results(place)["models"].get(arm.name, {}).get(place.name)
    if metrics is None:
        raise StorageError(f"holds nothing of {arm.name}", str(place), f"remove {place}; it is measured again")
    figures = {metric: float("nan") if value is None else float(value) for metric, value in metrics.items()}
    if STEPS_TO_BEST in one.extras and facts.get(STEPS_TO_BEST) is not None:
        figures[STEPS_TO_BEST] = float(facts[STEPS_TO_BEST])
    if OOD in one.extras and model != BM25:
        figures |= _gap(one, arm, model, precision, folder / OOD / safe_name(one.name))
    return figures


def _gap(one: Measured, arm: Arm, model: str, precision: str | None, place: Path) -> dict[str, float]:
    """How far queries lie from the passages, and what an index pays for it (paper 003)."""
    asked = (one.dataset, one.split, (GAP_INDEX,), GAP_QUERIES, 0, precision, 0.01, 0)
    job = OodJob((model,), *asked, lengths=arm.lengths, pictures=False)
    run_ood(job, place, {model: GAP}, lambda line: None)
    found = read_ood(place / GAP)
    if GAP_INDEX not in found["indexes"]:
        raise StorageError(f"holds nothing of {GAP_INDEX}", str(place / GAP), f"remove {place}; it is measured again")
    told = {
        "mmd2": found["mmd2"]["queries"],
        "query_positive_l2": found["query_positive_distance"],
        "candidates_ratio": found["indexes"][GAP_INDEX]["ratio"],
    }
    return {name: float("nan") if value is None else float(value) for name, value in told.items()}


class _Unheard(Tracker):
    """Keeps nothing: an arm's figures go to its own run."""

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None: ...

    def log(self, points: Any) -> None: ...

    def log_file(self, path: Path, folder: str = "") -> None: ...

    def finish(self, status: str) -> None: ...
