"""Run one trial of a sweep in a Ray Tune process: train like any run, then evaluate on the dev split.

A trial of one worker trains in the process of the trial, which Tune keeps warm for later trials. A trial of several
workers holds no processor itself: its workers are a Ray Train group whose resources are reserved all at once or not at
all, so that concurrent trials cannot each hold half of what they need."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from raytriever.cluster.event_queue import CheckpointEvent, Event, EventQueue, StepEvent, ValidationEvent
from raytriever.cluster.session import DriverContext, count_gpus
from raytriever.cluster.train.dev_sets import DevSet
from raytriever.cluster.train.trainer import train_on_cluster
from raytriever.config import Config
from raytriever.data.negatives import NegativesTable
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import UserError
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.systems import DenseSystem
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.tracking.steps import read_curve

# What a trial reports to Tune in the end: how it ended, its figures, or why it failed.
ENDED, METRICS, REASON, STEP = "ended", "metrics", "reason", "step"


@dataclass(frozen=True)
class TrialJob:
    """What a trial is given.

    Args:
        number: of the trial.
        config: all its settings.
        places: where its data sets stand prepared.
        dev_sets: what its checkpoints are evaluated on, where they are.
        negatives: which of the sweep's negatives tables it draws from.
        total_steps: after which it ends at the latest.
        folder: its run directory.
    """

    number: int
    config: Config
    places: tuple[str, ...]
    dev_sets: tuple[DevSet, ...]
    negatives: str
    total_steps: int
    folder: str


@dataclass(frozen=True)
class TrialEvent:
    """Event of a trial, on its way to the driver; None after the last one."""

    number: int
    event: Event | None


@dataclass(frozen=True)
class SweepContext:
    """What all trials of a sweep share.

    Args:
        queue: event queue of the driver.
        workplace: of the driver.
        beside: trials that share a node's cores.
        reported: what Tune hears of at every look; nothing where no trial is stopped early.
        metrics: whether the whole corpus is searched in the end, or the dev loss suffices.
    """

    queue: EventQueue
    workplace: DriverContext
    beside: int
    reported: str | None
    searches: bool


def run_trial(config: Mapping[str, Any], tables: Mapping[str, NegativesTable | None], around: SweepContext) -> None:
    """Train, measure, and report how it ended; what Tune stops ends by `SystemExit` within.

    Args:
        config: `{"job": TrialJob}`.
        tables: negatives tables by name.
        around: see `SweepContext`.
    """
    job: TrialJob = config["job"]
    around.workplace.enter()
    folder = Path(job.folder)
    told = max((step for step, _ in read_curve(folder, "loss")), default=0)
    reporter = _TrialReporter(job.number, around)
    end: dict[str, Any]
    try:
        train_on_cluster(
            job.config,
            job.places,
            tables[job.negatives],
            job.total_steps,
            folder,
            reporter.on_event,
            told,
            job.dev_sets,
            here=job.config.training.workers[1] == 1,
            beside=around.beside,
        )
        end = {ENDED: True, METRICS: _measured(job) if around.searches else {}}
    except UserError as mistake:
        end = {ENDED: False, REASON: str(mistake)}
    except Exception as error:  # a defect, which is not to end the other trials
        (folder / "error.txt").write_text(traceback.format_exc())
        first = str(error).strip().split("\n")[0]
        end = {ENDED: False, REASON: f"{type(error).__name__}: {first} (see {folder / 'error.txt'})"}
    reporter.close()
    tune.report(end)


class _TrialReporter:
    """Sends a trial's events to the driver, and reports its validations to Tune."""

    def __init__(self, number: int, around: SweepContext) -> None:
        self._number, self._queue, self._watched = number, around.queue, around.reported

    def on_event(self, event: Event) -> None:
        """Send an event. At a checkpoint and at a validation, return after the driver has stored all events."""
        result = self._result(event)
        if result or isinstance(event, CheckpointEvent):
            self._queue.flush(TrialEvent(self._number, event))
        else:
            self._queue.send(TrialEvent(self._number, event))
        if result:
            # Where Tune stops the trial, this raises SystemExit, which ends the training that sent the event.
            tune.report(result)

    def _result(self, event: Event) -> dict[str, float] | None:
        """Return the result that Tune compares trials by, or None if the event holds none."""
        if self._watched is None or not isinstance(event, StepEvent | ValidationEvent):
            return None
        if self._watched not in event.metrics:
            return None
        return {STEP: event.step, self._watched: event.metrics[self._watched]}

    def close(self) -> None:
        """Return when the driver has handled all events."""
        self._queue.flush(TrialEvent(self._number, None))


def _measured(job: TrialJob) -> dict[str, float]:
    """The dev split's figures, by a process that holds what it takes."""
    if job.config.training.workers[1] == 1:
        return measure_on_dev(job)
    # The workers' places are free again; those of the trial, to which its tasks are bound by default, hold nothing.
    task = ray.remote(num_cpus=1, num_gpus=min(1, count_gpus()), scheduling_strategy="DEFAULT")(measure_on_dev)
    found: dict[str, float] = ray.get(task.remote(job, DriverContext()))
    return found


def measure_on_dev(job: TrialJob, workplace: DriverContext | None = None) -> dict[str, float]:
    """The metrics of a trial's model on the dev split of its first data set, the whole corpus searched."""
    if workplace is not None:
        workplace.enter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = open_dataset(job.places[0], [job.config.data.dev_split])
    model = ModelConfig(model=str(Path(job.folder) / "model"))
    retriever = load_for_encoding(model, choose_precision(job.config.training.precision, device), device)
    found = DenseSystem(dataset, model, retriever).evaluate(job.config.data.dev_split, Protocol())
    return {name: float(value) for name, value in found.metrics.items()}
