"""Train and evaluate one arm of a study with one seed: an ordinary run in its own directory, logged as a child run.

`metrics.json` comes last, after the tracker knows that the run is finished, so an arm that has it is not trained again;
an interrupted one resumes from its newest checkpoint. Hard negatives and BM25 indexes are made once for all arms with
the same data. An arm of one worker trains in this process, because a Ray Train group takes longer to start than a small
arm takes."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from raytriever.cluster.session import count_gpus
from raytriever.config import Config, Curriculum, dump_config, lay
from raytriever.data.negatives import NegativesTable
from raytriever.errors import StorageError, UserError
from raytriever.evaluation.datasets import EvaluationDataset
from raytriever.evaluation.job import run_evaluation
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.request import BM25, EvaluatedModel, EvaluationJob
from raytriever.evaluation.results import RESULTS, read_results
from raytriever.experiment.conclusion import end_to_end
from raytriever.experiment.directory import CONFIG, METRICS, RunDirectory
from raytriever.experiment.opening import open_run, pin_model
from raytriever.experiment.stages import LexicalIndexes, Stages, best_checkpoint
from raytriever.models.config import ModelConfig
from raytriever.models.weights import quiet_transformers
from raytriever.studies.definition import OOD, STEPS_TO_BEST, Arm, Measured
from raytriever.studies.ood.job import OodJob, read_ood, run_ood
from raytriever.tracking.tracker import STAGE, DatasetRecord, PersistentTracker, Point, Tracker, closing
from raytriever.training.config import DEV_LOSS

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
            datasets=[EvaluationDataset(place.name, {place.name: one.dataset}, one.split)],
            baselines=[name],
            protocol=Protocol(one.metrics, level=one.level, drop_own=one.drop_own),
            precision=precision,
        )
        run_evaluation(job, place, fresh=True, tracker=_Unheard, log=lambda line: None)
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


ARMS, MODEL, AS_IT_IS = "arms", "model", "as-it-is"
# What nobody goes on from when an arm is finished.
SPENT = ("checkpoints", "negatives")
Say = Callable[[str], None]
Figures = Mapping[str, Mapping[str, float]]


def arm_folder(output: Path, arm: Arm, seed: int) -> Path:
    """The run directory of an arm; what is not trained has one for all seeds."""
    return output / ARMS / arm.name / (AS_IT_IS if arm.curriculum is None else f"seed-{seed}")


def is_finished(folder: Path) -> bool:
    """Whether an arm was trained and measured there."""
    return (folder / METRICS).is_file()


class Arms:
    """Makes arms, one after another.

    Args:
        output: the study's directory.
        run_name: of the study; its arms' runs are called after it.
        tracker: of the study.
        record: the study's data, for the tracker, where an arm opens none of its own.
        say: hears a line at every turn.
    """

    def __init__(
        self, output: Path, run_name: str, tracker: PersistentTracker, record: DatasetRecord, say: Say
    ) -> None:
        self._output, self._run_name, self._tracker, self._record, self._say = output, run_name, tracker, record, say
        self._indexes = LexicalIndexes()
        self._negatives: dict[Hashable, NegativesTable | None] = {}

    def make(self, arm: Arm, seed: int) -> None:
        """Train and measure, as far as it is not done.

        Raises:
            UserError: something a user can mend, and in which arm it is.
        """
        began, folder = time.monotonic(), arm_folder(self._output, arm, seed)
        run = RunDirectory.open(folder, {}, fresh=False)  # the study's settings were compared as a whole
        name = folder.relative_to(self._output / ARMS).as_posix()
        with _naming(name), quiet_transformers():
            figures, facts = self._make(arm, seed, run, name)
            first = arm.measured[0]
            told = {"dataset": first.dataset, "split": first.split, "after": _known(figures[first.name])}
            run.finish({**told, "measured": {dataset: _known(found) for dataset, found in figures.items()}, **facts})
        seconds = time.monotonic() - began
        self._say(f"{name}: {_glance(arm.measured[0], figures)} in {seconds:.0f} s")
        for spent in SPENT:
            shutil.rmtree(folder / spent, ignore_errors=True)
        gc.collect()

    def _make(self, arm: Arm, seed: int, run: RunDirectory, name: str) -> tuple[Figures, dict[str, Any]]:
        """The figures by data set, and what training took."""
        facts: dict[str, Any] = {}
        if arm.curriculum is None:
            run.begin(yaml.safe_dump({"model": {"model": arm.model}}))
            tracker = self._child(name, run)
            with closing(tracker):
                tracker.describe({"model": {"model": arm.model}}, self._record, _tags(run))
                return self._measure(arm, arm.model, facts, run, tracker), facts
        curriculum = pin_model(seeded(arm.curriculum, seed), run.path, fresh=False)
        opened, retriever = open_run(curriculum, lambda line: None)
        del retriever
        run.begin(dump_config(curriculum))
        tracker = self._child(name, run)
        with closing(tracker):
            dataset = opened.dataset
            record = DatasetRecord(dataset.name, curriculum.base.data.dataset, dataset.digest, dataset.counts())
            tracker.describe(opened.settings(), record, _tags(run) | {"config_hash": curriculum.hash})
            here = torch.cuda.is_available() or not count_gpus()
            stages = Stages(run, opened, lambda line: None, here)
            if not (run.path / MODEL).is_dir():
                stages.find_negatives(self._indexes.of, self._negatives)
                stages.train(tracker, f"{self._run_name}/{name}")
            facts = _training(run.path, stages.folders, curriculum)
            return self._measure(arm, str(run.path / MODEL), facts, run, tracker), facts

    def _child(self, name: str, run: RunDirectory) -> PersistentTracker:
        return self._tracker.child(f"{self._run_name}/{name}", run.path)

    def _measure(
        self, arm: Arm, model: str, facts: Mapping[str, Any], run: RunDirectory, tracker: PersistentTracker
    ) -> Figures:
        precision = arm.curriculum.base.training.precision if arm.curriculum else None
        found = {one.name: measure(one, arm, model, precision, facts, run.path) for one in arm.measured}
        now = time.time_ns() // 1_000_000
        tracker.log(
            [
                Point(f"{safe_name(dataset)}/{name}", value, int(facts.get("steps") or 0), now)
                for dataset, metrics in found.items()
                for name, value in metrics.items()
                if value == value
            ]
        )
        tracker.log_file(run.path / CONFIG)
        return found


def seeded(curriculum: Curriculum, seed: int) -> Curriculum:
    """The same with this seed in all stages."""

    def laid(config: Config) -> Config:
        return lay(config, {"training": {"seed": seed}})

    stages = tuple(replace(stage, config=laid(stage.config)) for stage in curriculum.stages)
    return Curriculum(laid(curriculum.base), stages)


def _training(folder: Path, folders: list[Path], curriculum: Curriculum) -> dict[str, Any]:
    """What training took: steps, which of them was the best, seconds of steps."""
    steps = max((step for step, _ in end_to_end(folders, "loss")), default=0)
    last = curriculum.parts[-1].config
    best: int | None = None
    if last.training.best_metric == DEV_LOSS:
        losses = end_to_end(folders, DEV_LOSS)
        best = min(losses, key=lambda point: point[1])[0] if losses else None
    elif decided := best_checkpoint(folders[-1], last):
        best = int(decided["best"]["step"])
    seconds = sum(value for _, value in end_to_end(folders, "step_seconds"))
    return {"steps": steps, STEPS_TO_BEST: best, "step_seconds": round(seconds, 3)}


def _tags(run: RunDirectory) -> dict[str, str]:
    return {"run_directory": str(run.path.resolve()), STAGE: "study"}


def _known(figures: Mapping[str, float]) -> dict[str, float | None]:
    """As JSON holds them: what has no value is null."""
    return {name: value if value == value else None for name, value in figures.items()}


def _glance(first: Measured, figures: Figures) -> str:
    return f"{first.name} " + ", ".join(f"{name} {value:.4f}" for name, value in figures[first.name].items())


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say in which arm a mistake is."""
    try:
        yield
    except UserError as error:
        raise type(error)(
            error.what, f"arm {name}" + (f": {error.where}" if error.where else ""), error.remedy
        ) from error
