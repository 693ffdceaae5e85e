"""Run one trial of a sweep in a Ray Tune process: train like any run, then evaluate on the dev split.

A trial with one worker trains in the trial's own process, which Tune reuses for later trials. A trial with several
workers reserves no CPU itself. Its workers are a Ray Train group, which reserves its resources all at once or not at
all. So concurrent trials cannot each keep half of the resources that they need."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import tune

from raytriever.cluster.events_and_restarts import CheckpointEvent, Event, EventQueue, StepEvent, ValidationEvent
from raytriever.cluster.gpus_and_placement import count_gpus, task_options
from raytriever.cluster.ray_session import DriverContext
from raytriever.cluster.train.train_worker import TrainingJob
from raytriever.cluster.train.trainer import train_on_cluster
from raytriever.core.errors import UserError
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.systems import DenseSystem
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding

# Keys of the results that a trial reports to Tune: the first three in the last result, `STEP` after each validation.
ENDED, METRICS, REASON, STEP = "ended", "metrics", "reason", "step"


@dataclass(frozen=True)
class TrialJob:
    """One trial. `training` has no hard negatives yet; `table` is the name of its table in `SweepData.tables`."""

    number: int
    training: TrainingJob
    table: str


@dataclass(frozen=True)
class TrialEvent:
    """Event of a trial on its way to the driver. An `event` of None follows the last event."""

    number: int
    event: Event | None


@dataclass(frozen=True)
class SweepContext:
    """Values that all trials of a sweep share."""

    queue: EventQueue
    driver: DriverContext
    trials_per_node: int  # number of trials that share a node's cores
    watched_metric: str | None  # metric to report to Tune at each validation; None if no trial is stopped early
    searches_corpus: bool  # whether a trial searches the whole corpus at its end; False if dev loss compares trials


def run_trial(config: Mapping[str, Any], tables: Mapping[str, NegativesTable | None], context: SweepContext) -> None:
    """Run the trial `config["job"]`, and report its end to Tune. Tune may stop the trial with `SystemExit`."""
    job: TrialJob = config["job"]
    context.driver.enter()
    folder, watched = job.training.folder, context.watched_metric

    def on_event(event: Event) -> None:
        """Send an event to the driver. Report a validation to Tune when the driver has stored all earlier events."""
        compared: dict[str, float] = {}
        if watched and isinstance(event, StepEvent | ValidationEvent) and watched in event.metrics:
            compared = {STEP: event.step, watched: event.metrics[watched]}
        send = context.queue.flush if compared or isinstance(event, CheckpointEvent) else context.queue.send
        send(TrialEvent(job.number, event))
        if compared:
            # If Tune stops the trial, this raises SystemExit, which ends the training that sent the event.
            tune.report(compared)

    result: dict[str, Any]
    try:
        training = replace(job.training, negatives=tables[job.table], runs_per_node=context.trials_per_node)
        train_on_cluster(training, on_event)
        result = {ENDED: True, METRICS: _evaluate(job.training) if context.searches_corpus else {}}
    except UserError as error:
        result = {ENDED: False, REASON: str(error)}
    except Exception as error:  # a defect in one trial must not end the others
        (folder / "error.txt").write_text(traceback.format_exc())
        first = str(error).strip().split("\n")[0]
        result = {ENDED: False, REASON: f"{type(error).__name__}: {first} (see {folder / 'error.txt'})"}
    context.queue.flush(TrialEvent(job.number, None))  # this returns after the driver has handled all events
    tune.report(result)


def _evaluate(job: TrainingJob) -> dict[str, float]:
    if job.in_process:
        return evaluate_on_dev(job)
    task = ray.remote(**task_options(min(1, count_gpus())))(evaluate_on_dev)  # the workers have freed their resources
    metrics: dict[str, float] = ray.get(task.remote(job, DriverContext()))
    return metrics


def evaluate_on_dev(job: TrainingJob, driver: DriverContext | None = None) -> dict[str, float]:
    """Search the whole corpus of a trial's first data set. Return the metrics on its dev split."""
    if driver is not None:
        driver.enter()
    model, split = ModelConfig(model=str(job.folder / "model")), job.config.data.dev_split
    dataset = open_dataset(job.datasets[0], [split])
    retriever = load_for_encoding(model, job.config.training.precision)
    return dict(evaluate(dataset, split, DenseSystem(dataset, model, retriever)).metrics)
