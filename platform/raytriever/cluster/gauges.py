"""Ray metrics of runs and jobs: the newest values as `ray_raytriever_NAME`, for Prometheus.

Ray 2.60 exports what was set since its last report and forgets it after 20 s. Therefore a thread sets every gauge again
as long as its owner exists; the gauges of ended or killed processes disappear. Values are timestamps and totals; rates
are left to the query."""

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

from raytriever.config import STAGES, TRIALS
from raytriever.data.prepare.shards import ShardReport, ShardWriter
from raytriever.encoding.corpus import Runner
from raytriever.encoding.shards import ShardEncoder
from raytriever.errors import LossInputError
from raytriever.training.parallel.strategy import NotFiniteError

PREFIX = "raytriever_"
# Half of Ray's default interval between two reports.
AGAIN_SECONDS = 5.0


class Gauges:
    """Keeps a gauge at the newest value told of it; where no Ray runs there is nobody to tell.

    Args:
        run: the value of every gauge's tag `run`.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._told: dict[str, tuple[Gauge, float]] = {}
        self._lock = threading.Lock()
        self._again: threading.Thread | None = None

    def tell(self, name: str, value: float, about: str) -> None:
        """Set one gauge, `ray_raytriever_NAME{run=...}`; from any thread.

        Args:
            name: lower case, with underscores and the unit at the end.
            value: its newest value.
            about: what it is, for the scrape's HELP line; the first one told of a name stays.
        """
        if not ray.is_initialized():
            return
        with self._lock:
            gauge = self._told[name][0] if name in self._told else Gauge(PREFIX + name, about, tag_keys=("run",))
            self._told[name] = gauge, float(value)
            gauge.set(float(value), {"run": self._run})
            if self._again is None or not self._again.is_alive():
                self._again = threading.Thread(target=_again, args=(weakref.ref(self),), name="gauges", daemon=True)
                self._again.start()

    def set_again(self) -> bool:
        """Set all gauges to what was told last; answers whether there is anybody to tell."""
        with self._lock:
            if not ray.is_initialized():
                self._told.clear()  # another session has gauges of its own
                return False
            for gauge, value in self._told.values():
                gauge.set(value, {"run": self._run})
            return True


def run_of(folder: Path) -> str:
    """A run's name to who watches: its directory's, and for a stage or a trial that of the whole before it."""
    folder = folder.resolve()
    return f"{folder.parent.parent.name}/{folder.name}" if folder.parent.name in (STAGES, TRIALS) else folder.name


def _again(one: weakref.ref[Gauges]) -> None:
    """The thread: as long as there is a session, and somebody who may tell more."""
    waiting = threading.Event()
    while not waiting.wait(AGAIN_SECONDS):
        gauges = one()
        if gauges is None or not gauges.set_again():
            return
        del gauges


_STEP = "step_timestamp_seconds", "when the newest step of training was heard of; its beginning before the first"
_CHECKPOINT = "checkpoint_timestamp_seconds", "when the newest checkpoint was committed; the beginning before the first"
_STATE = "training", "1 while the run trains, 0 when its training has ended as it should"


class RunGauges(Gauges):
    """The gauges of one training.

    Args:
        folder: the run directory.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(run_of(folder))
        self._folder = folder

    @contextmanager
    def training(self, total_steps: int, checkpoint_minutes: float, refresh_every: int | None) -> Iterator[None]:
        """The length of a training: what its figures are to be held against, and how it ended.

        Args:
            total_steps: after which it ends at the latest.
            checkpoint_minutes: after which there is a checkpoint at the latest.
            refresh_every: steps between two refreshes of the hard negatives; None without.
        """
        self.tell("total_steps", total_steps, "after which training ends at the latest")
        self.tell("checkpoint_interval_seconds", 60 * checkpoint_minutes, "after which there is a checkpoint")
        if refresh_every is not None:
            self.tell("refresh_every_steps", refresh_every, "steps between two refreshes of the hard negatives")
        self.tell(_STEP[0], time.time(), _STEP[1])
        self.tell("not_finite", 0.0, "1 when the loss or its gradient was not finite, which ended the run")
        self.saved()
        self.tell(_STATE[0], 1.0, _STATE[1])
        try:
            yield
        except (NotFiniteError, LossInputError):  # the latter of embeddings and scores, before there is a loss
            # The end of the session exports it, and a cluster that was joined shows it for 20 s more.
            self.tell("not_finite", 1.0, "")
            raise
        self.tell(_STATE[0], 0.0, _STATE[1])

    def saved(self) -> None:
        """A checkpoint is about to be committed."""
        self.tell(_CHECKPOINT[0], time.time(), _CHECKPOINT[1])
        disk = shutil.disk_usage(self._folder)
        self.tell("disk_free_share", disk.free / disk.total, "of the run directory's disk, 0 to 1, at the checkpoint")

    def set(self, step: int, measured: Mapping[str, float]) -> None:
        """Take the figures of a step, whether it is done for the first time or not."""
        figures = dict(measured)
        if "loss" in measured:  # else it is a look at a checkpoint, and later steps may be done
            figures["step"] = float(step)
            self.tell(_STEP[0], time.time(), _STEP[1])
        for name, value in figures.items():
            self.tell(name, value, f"{name.replace('_', ' ')} of the newest step of training")


def watched_ingest(writer: ShardWriter, reports: Iterator[ShardReport]) -> Iterator[ShardReport]:
    """The same reports, told as they pass; the run is called after the folder of the data set's first file."""
    where = PurePath(writer.parts[0].where)
    gauges = Gauges(f"ingest/{where.parent.name or where.name}")
    rows = bad = 0

    def tell(running: bool) -> None:
        gauges.tell("ingest_running", running, "1 while rows are read, checked and written, 0 after")
        gauges.tell("ingest_rows", rows, "rows that are done, the bad ones too")
        gauges.tell("ingest_quarantined", bad, "bad rows that were put aside")

    tell(True)
    for report in reports:
        rows, bad = rows + report.rows, bad + len(report.bad)
        tell(True)
        yield report
    tell(False)


def watched_encoding(run: Runner, gauges: Gauges) -> Runner:
    """The same runner, which tells how many texts all its calls have encoded."""
    texts = 0

    def watched(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
        def count(more: int) -> None:
            nonlocal texts
            texts += more
            gauges.tell("encoding_texts", texts, "texts that the job has encoded so far")
            advance(more)

        gauges.tell("encoding_texts", texts, "texts that the job has encoded so far")
        run(encoder, missing, count)

    return watched


def tell_evaluation(evaluation: str, model: str, dataset: str, metrics: Mapping[str, float]) -> Gauges:
    """Tell the metrics of a model on a data set; they are there as long as the answer is kept."""
    gauges = Gauges(f"{evaluation}/{model}/{dataset}")
    for name, value in metrics.items():
        gauges.tell(f"evaluation_{name}", value, f"{name.replace('_', ' ')} of a model on a data set")
    return gauges
