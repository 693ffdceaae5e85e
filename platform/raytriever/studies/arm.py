"""Training and evaluation of one arm of a study with one seed: an ordinary run directory, logged as a child run.

`metrics.json` is written last, after the tracker knows that the run is finished, so an arm that has it is not trained
again. An interrupted arm resumes from its newest checkpoint. Hard negatives and BM25 indexes are computed once for all
arms with the same data.

Where the cluster has GPUs, an arm is trained and measured by Ray processes that reserve them, and several arms may run
at the same time, on threads of this process. Elsewhere an arm of one worker trains in this process, because a Ray Train
group takes longer to start than a small arm takes."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from raytriever.cluster.session import run_with_gpu
from raytriever.config import Config, dump_config, override
from raytriever.errors import StorageError
from raytriever.evaluation.datasets import EvaluationDataset
from raytriever.evaluation.files import MEASURED
from raytriever.evaluation.job import run_evaluation
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.request import BM25, EvaluatedModel, EvaluationJob
from raytriever.evaluation.results import RESULTS, Results, without_nan
from raytriever.experiment.directory import CONFIG, METRICS, RunDirectory
from raytriever.experiment.run import find_negatives, folders_of, open_run, train_run
from raytriever.experiment.start import pin_sources
from raytriever.experiment.training import NegativesCache, best_checkpoint
from raytriever.models.config import ModelConfig
from raytriever.store.commit import remove
from raytriever.studies.definition import STEPS_TO_BEST, Arm, Evaluated, MeasuredDataset, errors_within
from raytriever.tracking.spool import Spool
from raytriever.tracking.steps import end_to_end
from raytriever.tracking.tracker import STAGE, DatasetRecord, Tracker, closing, points_now
from raytriever.training.config import DEV_LOSS

# Folders: of all arms, of the seedless run of an untrained encoder, and of a trained encoder.
ARMS, AS_IT_IS, MODEL = "arms", "as-it-is", "model"
# Folders that are deleted when an arm is finished.
TEMPORARY = ("checkpoints", "negatives")
Log = Callable[[str], None]
Metrics = dict[str, dict[str, float]]  # by data set and metric


def arm_folder(output: Path, arm: Arm, seed: int | None) -> Path:
    """Return the run directory of an arm; an arm that is not trained has one for all seeds."""
    return output / ARMS / arm.name / (AS_IT_IS if arm.curriculum is None else f"seed-{seed}")


def evaluation_of(folder: Path, arm: Arm, dataset: MeasuredDataset, seed: int = 0) -> Evaluated:
    """Return the evaluation of an arm on a data set, in the run directory of the arm."""
    name = safe_name(dataset.name)
    trained = None if arm.curriculum is None else seed
    return Evaluated(trained, folder / MEASURED / name, arm.name, name)


def is_finished(folder: Path) -> bool:
    """Return whether the run directory holds a trained and measured arm."""
    return (folder / METRICS).is_file()


class ArmRunner:
    """Runner of the arms of a study.

    Args:
        run_name: name of the study, with which the names of the runs of its arms end.
        record: data of the study, for the tracker; used for an arm that opens no data set itself.
        gpus: GPUs of each worker of an arm, 0 on a cluster without GPUs; see `placement.gpus_of_trial`.
    """

    def __init__(
        self, output: Path, run_name: str, tracker: Spool, record: DatasetRecord, log: Log, gpus: float
    ) -> None:
        self._output, self._run_name, self._tracker, self._record, self._log = output, run_name, tracker, record, log
        self._gpus = gpus
        self._preparation = threading.Lock()
        self._negatives = NegativesCache(lambda line: None)

    def run(self, arm: Arm, seed: int) -> None:
        """Train and measure an arm; steps that an earlier call finished are skipped.

        Arms on several threads are prepared one at a time, because they share negatives.
        """
        began, folder = time.monotonic(), arm_folder(self._output, arm, seed)
        run = RunDirectory.open(folder, {}, fresh=False)  # the study's settings were compared as a whole
        name = folder.relative_to(self._output / ARMS).as_posix()
        with errors_within(f"arm {name}"):
            metrics, facts = self._train_and_measure(arm, seed, run, name)
            first = arm.datasets[0]
            summary = {"dataset": first.dataset, "split": first.split, "after": metrics[first.name]}
            run.finish(without_nan({**summary, "measured": metrics, **facts}))
        seconds = time.monotonic() - began
        figures = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics[first.name].items())
        self._log(f"{name}: {first.name} {figures} in {seconds:.0f} s")
        for temporary in TEMPORARY:
            remove(folder / temporary)
        gc.collect()

    def _train_and_measure(self, arm: Arm, seed: int, run: RunDirectory, name: str) -> tuple[Metrics, dict[str, Any]]:
        facts: dict[str, Any] = {}
        if arm.curriculum is None:
            run.begin(yaml.safe_dump({"model": {"model": arm.model}}))
            tracker = self._tracker.child(f"{name} of {self._run_name}", run.path)
            with closing(tracker):
                tracker.describe({"model": {"model": arm.model}}, self._record, _tags(run))
                return self._measure(arm, arm.model, facts, run, tracker), facts
        curriculum = pin_sources(override(arm.curriculum, {"training": {"seed": seed}}), run.path, fresh=False)
        with self._preparation:
            opened = open_run(curriculum, lambda line: None)
        run.begin(dump_config(curriculum), [training.loss for training in curriculum.trainings])
        tracker = self._tracker.child(f"{name} of {self._run_name}", run.path)
        with closing(tracker):
            dataset = opened.dataset
            record = DatasetRecord(dataset.name, curriculum.data.dataset, dataset.digest, dataset.counts())
            tracker.describe(opened.settings(), record, _tags(run) | {"config_hash": curriculum.hash})
            if not (run.path / MODEL).is_dir():
                with self._preparation:
                    tables = find_negatives(opened, run.path, self._negatives)
                run_name, here = f"{name} of {self._run_name}", not self._gpus
                train_run(opened, tables, run.path, tracker, run_name, lambda line: None, here, self._gpus)
            facts = _training_facts(folders_of(curriculum, run.path), curriculum.trainings[-1])
            return self._measure(arm, str(run.path / MODEL), facts, run, tracker), facts

    def _measure(self, arm: Arm, model: str, facts: Mapping[str, Any], run: RunDirectory, tracker: Spool) -> Metrics:
        precision = arm.curriculum.training.precision if arm.curriculum else None
        metrics: Metrics = {}
        for dataset in arm.datasets:
            call = partial(measure, dataset, arm, model, precision, facts, run.path)
            metrics[dataset.name] = call() if model == BM25 else run_with_gpu(call, call, self._gpus)
            named = {f"{safe_name(dataset.name)}/{name}": value for name, value in metrics[dataset.name].items()}
            tracker.log(points_now(named))
        tracker.log_file(run.path / CONFIG)
        return metrics


def measure(
    dataset: MeasuredDataset, arm: Arm, model: str, precision: str | None, facts: Mapping[str, Any], folder: Path
) -> dict[str, float]:
    """Return the metrics of an arm on one data set; results of an earlier call are used again.

    Args:
        model: directory of the model, name of an untrained encoder, or `bm25`.
        precision: precision of encoding; None for the fastest on the device.
        facts: facts of the training; empty for an arm that is not trained.
    """
    path = folder / MEASURED / safe_name(dataset.name)
    if not (path / RESULTS).is_file():
        name, (queries, passages) = arm.name, arm.lengths or (None, None)
        config = ModelConfig(model=model, query_length=queries, passage_length=passages)
        job = EvaluationJob(
            models=[EvaluatedModel(name, None if model == BM25 else config)],
            datasets=[EvaluationDataset(path.name, {path.name: dataset.dataset}, dataset.split)],
            baselines=[name],
            protocol=Protocol(
                tuple(one for one in dataset.metrics if one != STEPS_TO_BEST),
                level=dataset.level,
                drop_own=dataset.drop_own,
            ),
            precision=precision,
            bm25_language=dataset.bm25_language,
            max_bad_rows=dataset.max_bad_rows,
        )
        run_evaluation(job, path, fresh=True, tracker=Tracker, log=lambda line: None)
    values = Results.read(path).models.get(arm.name, {}).get(path.name)
    if values is None:
        raise StorageError(f"has no results of {arm.name}", str(path), f"remove {path}; it is measured again")
    metrics = {metric: float("nan") if value is None else float(value) for metric, value in values.items()}
    if STEPS_TO_BEST in dataset.metrics and facts.get(STEPS_TO_BEST) is not None:
        metrics[STEPS_TO_BEST] = float(facts[STEPS_TO_BEST])
    return metrics


def _training_facts(folders: list[Path], last: Config) -> dict[str, Any]:
    steps = max((step for step, _ in end_to_end(folders, "loss")), default=0)
    best: int | None = None
    if last.training.best_metric == DEV_LOSS:
        losses = end_to_end(folders, DEV_LOSS)
        best = min(losses, key=lambda point: point[1])[0] if losses else None
    elif choice := best_checkpoint(folders[-1], last):
        best = int(choice["best"]["step"])
    seconds = sum(value for _, value in end_to_end(folders, "step_seconds"))
    return {"steps": steps, STEPS_TO_BEST: best, "step_seconds": round(seconds, 3)}


def _tags(run: RunDirectory) -> dict[str, str]:
    return {"run_directory": str(run.path.resolve()), STAGE: "study"}
