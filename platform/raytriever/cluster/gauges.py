"""Ray metrics of runs and jobs: the newest values as `ray_raytriever_NAME`, for Prometheus.

Ray 2.60 exports the values that were set since its last report, and drops them after 20 s. So a thread sets every gauge
again while its owner exists, and the gauges of ended or killed processes disappear. Values are timestamps and totals;
queries compute rates from them."""

from __future__ import annotations

import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath

import ray
from ray.util.metrics import Gauge

from raytriever.core.errors import LossInputError
from raytriever.data.prepare.text_shards import ShardSummary, ShardWriter
from raytriever.retrieval.encoding.embed_corpus import Runner
from raytriever.retrieval.encoding.shard_encoder import ShardEncoder
from raytriever.training.parallel.strategies import NotFiniteError
from raytriever.training.run_config import FOLDERS
from raytriever.training.training_settings import CHECKPOINT_MINUTES

PREFIX = "raytriever_"
REFRESH_SECONDS = 5.0  # half of Ray's default interval between two reports
# Names and descriptions of gauges that are set in more than one function.
_STEP = "step_timestamp_seconds", "time of the newest training step; the start time before the first step"
_CHECKPOINT = "checkpoint_timestamp_seconds", "time of the newest checkpoint; the start time before the first one"
_STATE = "training", "1 while the run trains, 0 after its training has ended without an error"


def run_label(folder: Path) -> str:
    """Return the tag `run` of a run directory: its name, or `PARENT/NAME` for a stage or trial of another run."""
    folder = folder.resolve()
    return f"{folder.parent.parent.name}/{folder.name}" if folder.parent.name in FOLDERS else folder.name


class Gauges:
    """Gauges of one run or job. Without a Ray session they do nothing."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._values: dict[str, tuple[Gauge, float]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def set(self, name: str, value: float, description: str) -> None:
        """Set the gauge `ray_raytriever_NAME{run=...}`, from any thread. The first description of a name is kept."""
        if not ray.is_initialized():
            return
        with self._lock:
            entry = self._values.get(name)
            gauge = entry[0] if entry else Gauge(PREFIX + name, description, tag_keys=("run",))
            self._values[name] = gauge, float(value)
            gauge.set(float(value), {"run": self._run})
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=_keep_refreshed, args=(weakref.ref(self),), name="gauges", daemon=True
                )
                self._thread.start()

    def refresh(self) -> bool:
        """Set every gauge to its newest value again. Return False if there is no Ray session."""
        with self._lock:
            if not ray.is_initialized():
                self._values.clear()  # another session creates its own gauges
                return False
            for gauge, value in self._values.values():
                gauge.set(value, {"run": self._run})
            return True


def _keep_refreshed(reference: weakref.ref[Gauges]) -> None:
    pause = threading.Event()
    while not pause.wait(REFRESH_SECONDS):
        gauges = reference()
        if gauges is None or not gauges.refresh():
            return
        del gauges


class RunGauges(Gauges):
    """Gauges of one training run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(run_label(folder))
        self._folder = folder

    @contextmanager
    def training(self, total_steps: int, refresh_every: int | None) -> Iterator[None]:
        """Export the limits of a training during the block, and its status as gauges `training` and `not_finite`."""
        self.set("total_steps", total_steps, "number of the step after which training ends at the latest")
        self.set("checkpoint_interval_seconds", 60 * CHECKPOINT_MINUTES, "longest time between checkpoints")
        if refresh_every is not None:
            self.set("refresh_every_steps", refresh_every, "steps between two refreshes of the hard negatives")
        self.set(_STEP[0], time.time(), _STEP[1])
        self.set("not_finite", 0.0, "1 if the run ended because the loss or its gradient was not finite")
        self.record_checkpoint()
        self.set(_STATE[0], 1.0, _STATE[1])
        try:
            yield
        except (NotFiniteError, LossInputError):  # `LossInputError`: embeddings or scores are not finite
            # A local session exports the value when it ends. A joined cluster still shows it for 20 s.
            self.set("not_finite", 1.0, "")
            raise
        self.set(_STATE[0], 0.0, _STATE[1])

    def record_checkpoint(self) -> None:
        """Set the gauges of a checkpoint that is about to be committed."""
        self.set(_CHECKPOINT[0], time.time(), _CHECKPOINT[1])
        disk = shutil.disk_usage(self._folder)
        self.set(
            "disk_free_fraction", disk.free / disk.total, "free fraction of the run's disk, 0 to 1, at a checkpoint"
        )

    def record_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Set the gauges of a step. A restarted group may repeat steps."""
        if not ray.is_initialized():
            return
        values = dict(metrics)
        if "loss" in metrics:  # metrics of a validation have no loss, and may arrive after later steps
            values["step"] = float(step)
            self.set(_STEP[0], time.time(), _STEP[1])
        for name, value in values.items():
            self.set(name, value, f"{name.replace('_', ' ')} of the newest step of training")


def with_ingest_gauges(writer: ShardWriter, summaries: Iterator[ShardSummary]) -> Iterator[ShardSummary]:
    """Yield the summaries of an ingest job, and count its rows. The tag `run` names the folder of the first file."""
    first = PurePath(writer.parts[0].where)
    gauges = Gauges(f"ingest/{first.parent.name or first.name}")
    rows = quarantined = 0

    def update(is_running: bool) -> None:
        gauges.set("ingest_running", is_running, "1 while rows are read, checked and written, else 0")
        gauges.set("ingest_rows", rows, "rows that were processed, including the bad ones")
        gauges.set("ingest_quarantined", quarantined, "bad rows that were quarantined")

    update(True)
    for summary in summaries:
        rows, quarantined = rows + summary.rows, quarantined + len(summary.bad)
        update(True)
        yield summary
    update(False)


def with_encoding_gauges(run: Runner, gauges: Gauges) -> Runner:
    """Wrap a runner, so that a gauge shows the number of texts that all calls of the runner have encoded."""
    texts = 0

    def run_and_count(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
        def count(more: int) -> None:
            nonlocal texts
            texts += more
            gauges.set("encoding_texts", texts, "texts that the job has encoded so far")
            advance(more)

        gauges.set("encoding_texts", texts, "texts that the job has encoded so far")
        run(encoder, missing, count)

    return run_and_count


def export_metrics(evaluation: str, model: str, dataset: str, metrics: Mapping[str, float]) -> Gauges:
    """Set gauges to the metrics of a model on a data set. The gauges exist while the caller keeps the result."""
    gauges = Gauges(f"{evaluation}/{model}/{dataset}")
    for name, value in metrics.items():
        gauges.set(f"evaluation_{name}", value, f"{name.replace('_', ' ')} of a model on a data set")
    return gauges
