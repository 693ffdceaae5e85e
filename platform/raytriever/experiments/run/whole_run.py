"""Whole training run, from checked settings to a finished run directory.

1. Open and check the data sets and the model. A user error found here leaves no file behind.
2. Train.
3. Evaluate BM25, and the encoder before and after training, on the test split of the run's own data. There is no
   evaluation between the trainings of a curriculum. It would cost as much as the final evaluation, and a user might
   choose settings by test results.
4. Write the report, and `metrics.json` last. A run without this file is interrupted and resumes when called again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from raytriever.cluster.evaluate_on_cluster import evaluate_once
from raytriever.cluster.ray_session import check_cluster
from raytriever.cluster.train.validate_checkpoint import DEV
from raytriever.core.errors import DataError
from raytriever.core.store.capacity import check_disk
from raytriever.core.store.disk import files_below
from raytriever.evaluation.evaluated_datasets import EvaluationDataset, safe_name
from raytriever.evaluation.evaluation_files import PER_QUERY
from raytriever.evaluation.protocol import AUC
from raytriever.evaluation.report_document import points_of
from raytriever.evaluation.requested_models import EvaluatedModel, EvaluationJob
from raytriever.evaluation.results import EVALUATION, RESULTS, Results
from raytriever.evaluation.run_evaluation import open_job
from raytriever.evaluation.system_names import BM25, Bm25
from raytriever.experiments.report.evaluation_page import write_training_report
from raytriever.experiments.run.open_run import OpenRun, describe_run, find_negatives, folders_of, open_run, train_run
from raytriever.experiments.run.open_training import MODEL, NegativesCache, training_facts
from raytriever.experiments.run.run_directory import LOSSES, RunDirectory
from raytriever.losses.false_negative_mask import MASKED
from raytriever.metrics.ranking_metrics import DEFAULT_METRICS
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.search.calibration_file import FILE
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.step_log import end_to_end
from raytriever.tracking.tracker import Point, Tracker, closing
from raytriever.tracking.tracker_names import DEFAULT_TRACKERS, check_trackers, open_trackers
from raytriever.training.run_config import Config, dump_config


@dataclass(frozen=True)
class RunResult:
    """Result of a run. `is_new` is False if an earlier call had already finished the run."""

    path: Path
    results: Results
    is_new: bool


def run_experiment(
    config: Config,
    run: RunDirectory,
    run_name: str,
    log: Callable[[str], None],
    trackers: Sequence[str] = DEFAULT_TRACKERS,
) -> RunResult:
    """Train and evaluate. `start_run` has already checked settings and directory."""
    started, path = time.monotonic(), run.path
    if results := finished_results(run):
        send_pending(path, trackers, log)
        return RunResult(path, results, is_new=False)
    check_trackers(trackers)
    check_cluster()
    opened = open_run(config, log)
    evaluation = closing_evaluation(opened, path / MODEL, log)
    written = sum(file.stat().st_size for file in files_below(path)) if run.state != "new" else 0
    check_disk(path, bytes_of_run(config, opened.weights) - written, "the checkpoints and the model")
    clients = open_trackers(trackers)
    run.begin(dump_config(config), [training.loss for training in config.trainings])
    tracker = Spool.open(clients, path, run_name)
    with closing(tracker):
        describe_run(tracker, config, opened.settings(), opened.dataset, path, log)
        log(f"{config.model.model}: {opened.encoder}")
        negatives = find_negatives(opened, path, NegativesCache(log))
        log("training under Ray Train")
        train_run(opened, negatives, path, tracker, run_name, log)
        results = conclude(run, config, evaluation, folders_of(config, path), tracker, log, started)
    return RunResult(path, results, is_new=True)


def finished_results(run: RunDirectory) -> Results | None:
    """Return the results of a finished run; None if it is not finished or its evaluation was removed."""
    folder = run.path / EVALUATION
    if run.state != "finished" or not (folder / RESULTS).is_file():
        return None
    return Results.read(folder, f"remove {folder} and run the same command again, which evaluates the model")


def bytes_of_run(config: Config, weights: int) -> int:
    """Estimate an upper bound for the bytes of a run's models and checkpoints. Adapters are not counted.

    `weights` is the size of the encoder's weights in float32, in bytes."""
    total = weights
    for training in config.trainings:
        # There may be the newest checkpoints, the best, and one being written, each with weights and two moments.
        checkpoints = 0 if training.model.lora_rank else (training.training.keep + 2) * 3 * weights
        total += checkpoints + (0 if training is config else weights)
    return total


def closing_evaluation(opened: OpenRun, trained: Path, log: Callable[[str], None]) -> EvaluationJob:
    """Return the evaluation at the end of a run: BM25, and the encoder before and after training, on the test split.

    The scores of the trained model are calibrated on the dev split. If this split has too few queries, or shares too
    many with the test split, there is no calibration. A log line gives the reason."""
    config, dataset, data = opened.config, opened.dataset, opened.config.data
    name, after = safe_name(dataset.name), ModelConfig(model=str(trained))
    source = EvaluationDataset(
        name,
        {name: str(dataset.location)},
        data.test_split,
        bm25_language=data.bm25_language,
        max_bad_rows=data.max_bad_rows,
    )
    job = EvaluationJob(
        models=[EvaluatedModel(BM25, Bm25()), EvaluatedModel("before", config.model), EvaluatedModel("after", after)],
        datasets=[source],
        baselines=["before"],
        # The target is the highest F1, which needs no value from the user. `evaluate --calibrate` has other targets.
        targets=[("f1", None)],
        calibration_split=data.dev_split,
        calibrated=["after"],
        precision=config.training.precision,
    )
    try:
        open_job(job, log)
    except DataError as error:
        log(f"the model gets no {FILE}: {error}")
        return replace(job, targets=())
    return job


def conclude(
    run: RunDirectory,
    config: Config,
    evaluation: EvaluationJob,
    folders: Sequence[Path],
    tracker: Tracker,
    log: Callable[[str], None],
    started: float,
) -> Results:
    """Evaluate a trained run, then write and log its results.

    `metrics.json` is written last, because it marks the run as finished.

    Args:
        run: the run's directory, with `model/`.
        folders: run directories of the trainings with their `steps.jsonl`, in order.
        started: `time.monotonic()` at the start of the command.
    """
    log(f"evaluating BM25, {config.model.model} and the trained model on the test split")
    results = evaluate_once(evaluation, run.path / EVALUATION, log)
    write_training_report(
        run.path,
        f"{config.model.model} trained with {config.losses} on {evaluation.datasets[0].name}",
        end_to_end(folders, "loss"),
        end_to_end(folders, "dev_loss"),
        {name: end_to_end(folders, DEV + name) for name in (*DEFAULT_METRICS, AUC)},
        dump_config(config),
        masking_lines(folders),
    )
    seconds = Point("total_seconds", time.monotonic() - started, 0, time.time_ns() // 1_000_000)
    tracker.log([*points_of(results), seconds])
    own = [LOSSES] * (run.path / LOSSES).exists()
    evaluated = [f"{EVALUATION}/{name}" for name in (RESULTS, PER_QUERY)]
    for name in ("config.yaml", *own, "report.html", "figures", "model", *evaluated):
        tracker.log_file(run.path / name)
    run.finish(training_facts(folders, config.trainings[-1]))
    return results


def masking_lines(folders: Sequence[Path]) -> list[str]:
    """Return a line about the negatives that a guide masked in the trainings of a run, if there was a guide."""
    fractions = [fraction for _, fraction in end_to_end(folders, MASKED)]
    if not fractions:
        return []
    return [f"The guide masked {fmean(fractions):.2%} of a batch's negatives on average, at most {max(fractions):.2%}"]
