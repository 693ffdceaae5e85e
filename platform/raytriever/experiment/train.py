"""A whole training run, from checked settings to a finished run directory.

1. Open and check the data sets and the model. A user error found here leaves no file behind.
2. Evaluate BM25 and the untrained encoder, train, and evaluate the trained encoder, all on the test split of the run's
   own data. The encoders are evaluated on a GPU if the cluster has one. There is no evaluation between the trainings of
   a curriculum: it would cost as much as the last one, and a user might choose settings by it.
3. Write the report, and `metrics.json` last. A run without this file is interrupted and resumes when called again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from raytriever.cluster.evaluation import evaluate_model
from raytriever.cluster.session import check_cluster
from raytriever.cluster.train.dev_sets import DEV
from raytriever.config import Config, dump_config
from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import DataError
from raytriever.evaluation.calibration import check_apart, make_calibration, save_calibration
from raytriever.evaluation.datasets import distinct_names
from raytriever.evaluation.decision import decide_questions, questions_of
from raytriever.evaluation.document import points_of
from raytriever.evaluation.evaluate import Evaluation, evaluate
from raytriever.evaluation.files import PER_QUERY
from raytriever.evaluation.job import write_evaluation
from raytriever.evaluation.protocol import AUC, Protocol, select_judged_queries
from raytriever.evaluation.results import EVALUATION, RESULTS
from raytriever.evaluation.systems import Bm25System
from raytriever.experiment.directory import LOSSES, RunDirectory
from raytriever.experiment.run import OpenRun, find_negatives, folders_of, open_run, train_run
from raytriever.experiment.training import MODEL, NegativesCache, best_checkpoint
from raytriever.losses.guide import MASKED
from raytriever.metrics.answering import AnswerAim
from raytriever.metrics.ranking import DEFAULT_METRICS
from raytriever.mining.analyser import Analysis
from raytriever.models.config import ModelConfig
from raytriever.report.evaluation import write_training_report
from raytriever.search.calibration import FILE, encoder_digest
from raytriever.store.capacity import check_disk
from raytriever.store.disk import files_below
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.steps import end_to_end
from raytriever.tracking.tracker import STAGE, DatasetRecord, Point, Tracker, closing, git_commit
from raytriever.tracking.trackers import DEFAULT_TRACKERS, check_trackers, open_trackers


@dataclass(frozen=True)
class RunResult:
    """Result of a run.

    Args:
        rows: metrics by system, with the names of `metrics.json`.
        quarantined: a line on quarantined rows, if any.
        is_new: False if an earlier call had already finished the run.
    """

    path: Path
    rows: dict[str, dict[str, float]]
    quarantined: str | None
    is_new: bool


def run_experiment(
    config: Config,
    run: RunDirectory,
    run_name: str,
    log: Callable[[str], None],
    trackers: Sequence[str] = DEFAULT_TRACKERS,
) -> RunResult:
    """Train and evaluate; settings and directory have been checked, see `start_run`."""
    started, path = time.monotonic(), run.path
    if run.state == "finished":
        send_pending(path, trackers, log)
        metrics = run.metrics()
        return RunResult(path, {name: metrics[name] for name in ("bm25", "before", "after")}, None, is_new=False)
    check_trackers(trackers)
    check_cluster()
    opened = open_run(config, log)
    written = sum(file.stat().st_size for file in files_below(path)) if run.state == "interrupted" else 0
    check_disk(path, bytes_of_run(config, opened.weights) - written, "the checkpoints and the model")
    clients = open_trackers(trackers)
    run.begin(dump_config(config), [training.loss for training in config.trainings])
    dataset, split = opened.dataset, config.data.test_split
    tracker = Spool.open(clients, path, run_name)
    with closing(tracker):
        quarantine = dataset.quarantine.write(path)
        record = DatasetRecord(dataset.name, config.data.dataset, dataset.digest, dataset.counts())
        tags = {STAGE: "train", "config_hash": config.hash, "run_directory": str(path.resolve())}
        if commit := git_commit(Path(__file__).parent):
            tags["mlflow.source.git.commit"] = commit
        tracker.describe(opened.settings(), record, tags)

        log("evaluating BM25")
        for line in Analysis.of(dataset.documents).notes:
            log(line)
        cache = NegativesCache(log)
        evaluations = {"bm25": evaluate(dataset, split, Bm25System(dataset, cache.index(dataset)))}
        negatives = find_negatives(opened, path, cache)
        del cache  # of a large corpus, the terms take much of the memory of this process
        log(f"{config.model.model}: {opened.encoder}")
        log(f"evaluating {config.model.model} before training")
        [evaluations["before"]] = evaluate_model(dataset, [split], config.model, config.training.precision)

        log("training under Ray Train")
        train_run(opened, negatives, path, tracker, run_name, log)
        evaluations["after"] = evaluate_trained(dataset, config, ModelConfig(model=str(path / MODEL)), log)
        conclude(run, opened, folders_of(config, path), evaluations, tracker, started)
    rows = {name: evaluation.metrics for name, evaluation in evaluations.items()}
    return RunResult(path, rows, str(quarantine) if quarantine.total else None, is_new=True)


def bytes_of_run(config: Config, weights: int) -> int:
    """Estimate the bytes of the models and of the checkpoints of a run, at most; adapters are not counted.

    `weights` are the bytes of the encoder's in float32.
    """
    total = weights
    for training in config.trainings:
        # The newest checkpoints, the best one and the one that is being written: weights and two moments each.
        checkpoints = 0 if training.model.lora_rank else (training.training.keep + 2) * 3 * weights
        total += checkpoints + (0 if training is config else weights)
    return total


# The wanted value of a threshold is the user's, with `evaluate --calibrate`; the highest F1 needs none.
AIMS: tuple[tuple[AnswerAim, float | None], ...] = (("f1", None),)


def evaluate_trained(
    dataset: RetrievalDataset, config: Config, trained: ModelConfig, log: Callable[[str], None]
) -> Evaluation:
    """Evaluate a trained model on the test split. Calibrate it on the dev split, and write `model/calibration.json`.

    A run with too few queries, or with the same queries in both splits, gets no calibration, and a line says why.
    """
    log("evaluating the model after training")
    dev, test = splits = config.data.dev_split, config.data.test_split
    judged = []
    try:
        if dev in dataset.judgements:  # otherwise a line has said so when it was opened
            check_apart(dataset, *splits)
            judged = [select_judged_queries(dataset, split, Protocol()) for split in splits]
            log(f"calibrating the scores on {dev}")
    except DataError as error:
        log(f"the model gets no {FILE}: {error}")
    precision = config.training.precision
    evaluations = evaluate_model(dataset, splits if judged else [test], trained, precision)
    if judged:
        try:
            choosing, checking = map(questions_of, judged, evaluations)
            answers = decide_questions(dataset.name, choosing, checking, AIMS)
            system = distinct_names([trained.model])[0], encoder_digest(trained, dataset.name)
            log(save_calibration(make_calibration(dataset, system, splits, answers), trained))
        except DataError as error:
            log(f"the model gets no {FILE}: {error}")
    return evaluations[-1]


def conclude(
    run: RunDirectory,
    opened: OpenRun,
    folders: Sequence[Path],
    evaluations: Mapping[str, Evaluation],
    tracker: Tracker,
    started: float,
) -> None:
    """Write and log the results of a run. `metrics.json` is written last, because it marks the run as finished.

    Args:
        run: the run's directory, with `model/`.
        folders: run directories of the trainings with their `steps.jsonl`, in order.
        started: `time.monotonic()` at the start of the command.
    """
    config, dataset = opened.config, opened.dataset
    results = write_evaluation(run.path / EVALUATION, dataset, config.data.test_split, evaluations, "before")
    write_training_report(
        run.path,
        f"{config.model.model} trained with {config.losses} on {dataset.name}",
        end_to_end(folders, "loss"),
        end_to_end(folders, "dev_loss"),
        {name: end_to_end(folders, DEV + name) for name in (*DEFAULT_METRICS, AUC)},
        dump_config(config),
        masking_lines(folders),
    )
    rows = {name: evaluation.metrics for name, evaluation in evaluations.items()}
    seconds = Point("total_seconds", time.monotonic() - started, 0, time.time_ns() // 1_000_000)
    tracker.log([*points_of(results), seconds])
    own = [LOSSES] * (run.path / LOSSES).exists()
    evaluated = [f"{EVALUATION}/{name}" for name in (RESULTS, PER_QUERY)]
    for name in ("config.yaml", *own, "report.html", "figures", "model", *evaluated):
        tracker.log_file(run.path / name)
    best = best_checkpoint(folders[-1], config.trainings[-1])
    run.finish({"dataset": dataset.name, "split": config.data.test_split, **rows, **best})


def masking_lines(folders: Sequence[Path]) -> list[str]:
    """Return a line on the negatives that a guide masked in the trainings of a run; none without a guide."""
    shares = [share for _, share in end_to_end(folders, MASKED)]
    if not shares:
        return []
    return [f"The guide masked {fmean(shares):.2%} of the negatives of a batch, at most {max(shares):.2%}"]
