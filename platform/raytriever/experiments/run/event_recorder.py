"""Recorder of a run's events on the driver: progress bar, batches of points for the tracker, and Ray metrics.

The tracker stores every batch in `steps.jsonl` in the run directory before it sends the batch, and skips points of
repeated steps. A resumed run reads this file, so that its curves are complete."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from raytriever.cluster.events_and_restarts import (
    CheckpointEvent,
    Event,
    LogMessage,
    LostWorker,
    MissingWorkers,
    StatusMessage,
    ValidationEvent,
)
from raytriever.cluster.gauges import RunGauges
from raytriever.cluster.train.validate_checkpoint import DEV
from raytriever.core.progress import Progress, activity
from raytriever.core.store.lock import push_changes
from raytriever.core.terminal import warn
from raytriever.tracking.spool import Spool
from raytriever.tracking.tracker import Point

FLUSH_SECONDS = 5.0
LOST_WORKER, MISSING_WORKERS = "raytriever.lost_worker", "raytriever.missing_workers"  # tags of a run


class Recorder:
    """Recorder of a training run's events. At the end of its `with` block, it logs all points that are left."""

    def __init__(self, tracker: Spool, folder: Path, total_steps: int) -> None:
        self._tracker, self._folder, self._total = tracker, folder, total_steps
        self._points: list[Point] = []  # not logged yet
        self._flushed = time.monotonic()
        self._progress: Progress | None = None
        self._status = ExitStack()
        self.gauges = RunGauges(folder)
        self.step = 0  # the newest recorded step
        self._missing = 0

    def record(self, event: Event) -> None:
        """Record one event. All earlier points are stored before a checkpoint is committed."""
        if isinstance(event, LogMessage):
            self._log(event.text)
            if isinstance(event, LostWorker):
                self._tracker.describe({}, None, {LOST_WORKER: event.text})
            return
        if isinstance(event, StatusMessage):
            self._start_status(event.text)
            return
        if isinstance(event, MissingWorkers):
            self.gauges.set("missing_workers", event.workers, "workers that the cluster has no room for")
            if event.workers != self._missing:
                self._missing = event.workers
                self._tracker.describe({}, None, {MISSING_WORKERS: str(event.workers)})
            return
        if isinstance(event, CheckpointEvent):
            self.flush()
            push_changes(self._folder)
            self.gauges.record_checkpoint()
            return
        milliseconds = time.time_ns() // 1_000_000
        self._points += [Point(name, value, event.step, milliseconds) for name, value in event.metrics.items()]
        if isinstance(event, ValidationEvent):
            self._record_validation(event)
            return
        self.gauges.record_step(event.step, event.metrics)
        if "dev_loss" in event.metrics:
            self._status.close()
            self._log(f"step {event.step}: dev loss {event.metrics['dev_loss']:.5g}")
        else:
            self.step = event.step
            self._status.close()
            self._bar(event.step - 1).reach(event.step, **headline_metrics(event.metrics))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def _record_validation(self, event: ValidationEvent) -> None:
        metrics = {name[len(DEV) :]: value for name, value in event.metrics.items() if name.count("/") == 1}
        self._log(f"step {event.step}: dev " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        self.gauges.set("evaluation_step", event.step, "step of the newest checkpoint that was evaluated")
        for name, value in metrics.items():
            self.gauges.set(f"evaluation_{name}", value, f"{name} of the newest checkpoint on dev data")
        if "evaluation_seconds" in event.metrics:
            self.gauges.set("evaluation_seconds", event.metrics["evaluation_seconds"], "time of the newest validation")

    def flush(self) -> None:
        """Log the collected points, and export how far the tracking server is behind."""
        points, self._points = self._points, []
        self._flushed = time.monotonic()
        if points:
            self._tracker.log(points)
        backlog = self._tracker.backlog()
        self.gauges.set("tracking_waiting_points", backlog.points, "points that the tracking server does not have")
        self.gauges.set(
            "tracking_behind_seconds", backlog.seconds, "age of the oldest point that the tracking server does not have"
        )
        self.gauges.set("tracking_failures", backlog.failures, "requests to the tracking server that failed")

    def _log(self, text: str) -> None:
        warn(text)

    def _start_status(self, text: str) -> None:
        self._status.close()
        self._status.enter_context(activity(text))

    def _bar(self, done: int) -> Progress:
        if self._progress is None:
            self._progress = Progress("train", self._total, "step", done)
            self._progress.__enter__()
        return self._progress

    def __enter__(self) -> Recorder:
        self._start_status("starting the workers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.close()
        if self._progress is not None:
            self._progress.__exit__(kind, error, trace)
        self.flush()


def headline_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a step for the progress bar, the most important first, rounded to three digits."""
    headlines = {
        "loss": metrics["loss"],
        "auc": metrics.get("batch_auc"),
        "s/step": metrics.get("step_seconds"),
        "pairs/s": metrics.get("queries_per_second"),
        "wait %": None,
    }
    if "data_wait_seconds" in metrics and metrics.get("step_seconds"):
        headlines["wait %"] = 100 * metrics["data_wait_seconds"] / metrics["step_seconds"]
    return {name: float(f"{value:.3g}") for name, value in headlines.items() if value is not None}
