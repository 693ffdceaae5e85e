"""Training under Ray Train: start the group of workers, and handle its events until training ends or fails.

The training loop writes its own checkpoints. Ray Train's state is discarded after each call, because a damaged state
file would prevent the next start. If the group starts again, after a worker died or because the cluster changed its
size, it resumes from the newest complete checkpoint.

`fit` of Ray Train and Ray Tune runs on a thread, because on the main thread it would handle Ctrl-C itself. An
interruption reaches the waiting main thread, which ends `fit` before the Ray session ends. Otherwise a call of Ray
would crash the process. Ray Train restarts a group that failed during its creation or during training. It ends `fit`
if a worker dies in between, so `fit` is repeated here."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import ray
from ray.exceptions import RayActorError
from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from raytriever.cluster.events_and_restarts import (
    Event,
    EventQueue,
    GroupStarted,
    GroupWanted,
    LogMessage,
    MissingWorkers,
    OpenQueue,
    RestartsExhausted,
    StatusMessage,
    open_event_queue,
    open_inline_queue,
)
from raytriever.cluster.gpus_and_placement import count_gpus, room_for, worker_resources
from raytriever.cluster.ray_private import forbid_auto_connect
from raytriever.cluster.ray_session import DriverContext
from raytriever.cluster.train.controller_callbacks import FIRST, Failures, GroupMessages, end_controller
from raytriever.cluster.train.job_actors import start_evaluator, start_miner
from raytriever.cluster.train.network_interface import UNREACHABLE, VARIABLES
from raytriever.cluster.train.train_worker import TrainingJob, WorkerJob, train_worker
from raytriever.core.errors import UserError, setting
from raytriever.core.interruption import check_interrupted
from raytriever.core.store.remote_folders import pull
from raytriever.tracking.step_log import read_curve
from raytriever.training.parallel.strategies import TrainingError

LOOK_SECONDS = 2.0  # interval of requests to Ray for free resources


class ClusterError(UserError):
    """The cluster lacks resources for the run."""


class GroupEvents:
    """Handler of a training's events: it keeps the event that ends the training, and passes the others to `show`.

    It limits and reports the wait for the workers of a group, from the first request until all have started. Ray Train
    itself repeats its request without a limit and without a message."""

    def __init__(self, minutes: float, show: Callable[[Event], None]) -> None:
        self._minutes, self._show = minutes, show
        self._wanted: GroupWanted | None = None
        self._room = 0
        self._ends = self._next_look = 0.0
        self._last: UserError | RestartsExhausted | None = None

    def handle(self, event: Event | UserError | RestartsExhausted | GroupWanted | GroupStarted) -> None:
        """Handle an event of a worker or of the controller."""
        if isinstance(event, GroupWanted):
            self._wait(event)
        elif isinstance(event, GroupStarted):
            self._wanted = None
            self._show(MissingWorkers(0))
        elif isinstance(event, UserError | RestartsExhausted):
            self._last = self._last or event
        else:
            self._show(event)

    def _wait(self, wanted: GroupWanted) -> None:
        """Start to wait, unless the wait for an earlier request is still going on."""
        now = time.monotonic()
        is_new, changed = self._wanted is None, wanted.room != self._room
        if is_new:
            self._ends = now + 60 * self._minutes
        self._wanted, self._room = wanted, wanted.room
        if is_new or changed:
            self._report(wanted, self._show)

    def check(self, send: Callable[[Event], None]) -> None:
        """Send the number of missing workers if it has changed. The caller is not the thread that handles events.

        Raises:
            ClusterError: the wait took too long.
            TrainingError: the cluster has room, but no group has started.
        """
        wanted, now = self._wanted, time.monotonic()
        if wanted is None or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        room = min(room_for(wanted.resources), wanted.workers)
        # If less is free than before, the group itself may have reserved some. Ray Train counts again at each request.
        if room > self._room:
            self._room = room
            self._report(wanted, send)
        if now > self._ends and self._room == wanted.workers:
            remedy = "check the memory of their nodes, then run the same command again: it resumes"
            raise TrainingError(f"for {self._minutes:g} minutes, workers died at every start", remedy=remedy)
        if now > self._ends:
            raise ClusterError(
                f"had room for only {self._room} of {_count(wanted)} for {self._minutes:g} minutes",
                "the Ray cluster",
                f"add nodes, lower {setting('num_workers')}, or wait longer with {setting('wait_minutes')}; "
                "`ray status` shows what uses its resources",
            )

    def _report(self, wanted: GroupWanted, show: Callable[[Event], None]) -> None:
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + self._ends - time.monotonic()))
        missing = f"waiting for {_count(wanted)}, the cluster has room for {self._room}; gives up at {until}"
        show(StatusMessage("starting the workers" if self._room == wanted.workers else missing))
        show(MissingWorkers(wanted.workers - self._room))

    def raise_error(self, failure: Exception | None) -> None:
        """Raise the error of a training that has ended, if there is one. `failure` is the exception of `fit`."""
        if isinstance(self._last, UserError):
            raise self._last
        if self._last is not None:
            raise _restarts_error(self._last)
        if isinstance(failure, ControllerError):
            raise _start_error(failure) from failure.controller_failure
        if failure is not None:
            raise failure


def _count(wanted: GroupWanted) -> str:
    return f"{wanted.workers} worker{'s' if wanted.workers > 1 else ''}"


# Seconds after which Ray Train repeats a request for resources. The earlier request may count a node that has died.
PLACEMENT_SECONDS = 10
RESIZE_SECONDS = 60.0  # interval of checks whether new nodes allow a larger group
_RAY_TRAIN = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(PLACEMENT_SECONDS),
    # Interval of health checks. With the default, up to 2 s are lost when a worker dies, and when training ends.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # Do not start the watcher, a process per group that delays a restart: a preempted node is treated as a dead node.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}


# Texts of torch's errors if PyTorch cannot use the GPU that Ray has reserved: it is a CPU build, or the driver is old.
NO_CUDA = ("doesn't have NCCL built in", "ProcessGroupNCCL is only supported with GPUs", "not compiled with CUDA")


def train_on_cluster(job: TrainingJob, on_event: Callable[[Event], None]) -> None:
    """Train on `config.training.num_workers` processes. With a range, the group shrinks and grows with the cluster.

    Raises:
        UserError: a worker has raised a user error, or workers died at every restart.
    """
    for name, value in (_RAY_TRAIN | FIRST).items():
        os.environ.setdefault(name, value)
    job = replace(job, folder=job.folder.resolve(), negatives=ray.put(job.negatives))
    group = GroupEvents(job.config.training.wait_minutes, on_event)
    with (
        (open_inline_queue if job.in_process else open_event_queue)(group.handle) as events,
        _start_actors(job, events.queue, lambda line: on_event(LogMessage(line))) as worker_job,
    ):
        failure = _fit(worker_job, events, group)
    pull(job.folder)  # files that workers on other nodes have committed
    group.raise_error(failure)


@contextmanager
def _start_actors(job: TrainingJob, queue: EventQueue, log: Callable[[str], None]) -> Iterator[WorkerJob]:
    """Start the actors that mine and evaluate next to the workers. Yield the job that the workers get."""
    with (
        start_miner(job.config, job.datasets, job.negatives, job.folder, log) as miner,
        start_evaluator(job.config, job.dev_sets, job.folder, log) as evaluator,
    ):
        last_logged_step = max((step for step, _ in read_curve(job.folder, "loss")), default=0)
        yield WorkerJob(
            **vars(job),
            queue=queue,
            driver=DriverContext(),
            last_logged_step=last_logged_step,
            miner=miner,
            evaluator=evaluator,
        )


def _fit(job: WorkerJob, events: OpenQueue, group: GroupEvents) -> Exception | None:
    """Train. Each attempt has a new folder for Ray Train's state. Return the exception if `fit` failed, else None."""
    with TemporaryDirectory(prefix="raytriever-") as state:
        if not job.in_process:
            return fit(lambda: _trainer(job, Path(mkdtemp(dir=state))), events, partial(group.check, job.queue.send))
        _trainer(job, Path(state)).fit()
    return None


def _trainer(job: WorkerJob, state: Path) -> TorchTrainer:
    use_gpu = count_gpus() > 0
    fewest, most = job.config.training.workers
    most = job.config.training.sharing(most)
    reports = GroupMessages(job.queue)
    return TorchTrainer(
        # If the job were in `train_loop_config`, the controller would import all of training before it starts workers.
        partial(train_worker, job),
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=0 if job.in_process else most if most == fewest else (fewest, most),
            use_gpu=use_gpu,
            resources_per_worker=worker_resources(use_gpu, job.gpus),
            elastic_resize_monitor_interval_s=RESIZE_SECONDS,
        ),
        run_config=RunConfig(
            name="train",
            storage_path=str(state),
            callbacks=[reports, Failures(reports, job.queue)],
            # No limits here: the event queue limits the failures, and `GroupEvents` limits the time of a start.
            failure_config=FailureConfig(max_failures=-1, controller_failure_limit=-1),
        ),
    )


def _start_error(failure: ControllerError) -> Exception:
    text = str(failure)
    if reasons := [reason for reason in NO_CUDA if reason in text]:
        return ClusterError(
            f"has a GPU that PyTorch cannot use in a worker ({reasons[0]})",
            "the Ray cluster",
            "install PyTorch for its driver's CUDA version, or start Ray with CUDA_VISIBLE_DEVICES='' to train on CPUs",
        )
    if UNREACHABLE.search(text):
        addresses = sorted(set(re.findall(r"remote=\[([^\]]+)\]", text)))
        return ClusterError(
            f"has workers that cannot reach each other{f' (at {addresses[0]})' if addresses else ''}",
            "the Ray cluster",
            f"open all TCP ports between its hosts; if a host has several networks, name the interface in "
            f"{' and '.join(VARIABLES[:2])} before `ray start`",
        )
    return failure


def _restarts_error(end: RestartsExhausted) -> Exception:
    first = end.reason.split("\n")[0]
    if not end.process_died:
        return RuntimeError(f"the workers failed at every restart after step {end.last_step}:\n{end.reason}")
    return TrainingError(
        f"{first}; then every restart failed before a new step",
        f"after step {end.last_step}",
        f"check the GPUs (nvidia-smi) and the memory (a smaller {setting('grad_cache_chunk')} or "
        f"{setting('batch_size')} needs less), then run the same command again",
    )


POLL_SECONDS = 0.2
END_SECONDS = 10.0  # time in which `fit` must end after a request


class FitThread(threading.Thread):
    """Thread that runs `fit`. `failure` is its exception, or None if it succeeded or has not ended."""

    def __init__(self, fit: Callable[[], object]) -> None:
        super().__init__(name="raytriever-fit", daemon=True)
        self._fit = fit
        # An event instead of `join`, because an interrupted `join` marks a running thread as ended (bpo-45274).
        self._ended = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Run `fit`."""
        try:
            self._fit()
        except Exception as failure:  # the caller's thread reads it
            self.failure = failure
        finally:
            self._ended.set()

    def wait(self, broken: threading.Event, check: Callable[[], None] = lambda: None) -> None:
        """Wait until `fit` has ended or `broken` is set. A KeyboardInterrupt that Python has lost is raised here."""
        while not broken.is_set() and not self._ended.wait(POLL_SECONDS):
            check_interrupted()
            check()

    def end(self, hurry: Callable[[], None]) -> None:
        """Wait until `fit` has ended, at most `END_SECONDS`.

        Args:
            hurry: ends `fit`. It is called repeatedly, because `fit` may not have started yet.
        """
        until = time.monotonic() + END_SECONDS
        while not self._ended.is_set() and time.monotonic() < until:
            hurry()
            self._ended.wait(POLL_SECONDS)
        if not self._ended.is_set():  # a call to Ray after the end of its session would start a new session
            forbid_auto_connect()


def fit(make: Callable[[], TorchTrainer], events: OpenQueue, check: Callable[[], None]) -> Exception | None:
    """Run `fit` until it ends, an event cannot be handled, or an interruption comes.

    Returns:
        The exception of `fit`; None if it succeeded.
    """
    while True:
        attempt = FitThread(make().fit)
        attempt.start()
        try:
            attempt.wait(events.has_failed, check)
        finally:
            attempt.end(lambda: end_controller(events.queue))
        failure = attempt.failure
        died_between = isinstance(failure, ControllerError) and isinstance(failure.controller_failure, RayActorError)
        if events.has_failed.is_set() or not died_between:
            return failure
        end_controller(events.queue)  # otherwise the controller exists as long as the object `failure`
        events.queue.record_failure("a worker died before it could start training", process_died=True)
        if not events.queue.may_start():
            return attempt.failure
