"""Ray Train's controller, its restart policy, the wait for its workers, and the thread on which it fits."""

from __future__ import annotations

import gc
import itertools
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ray import cloudpickle
from ray.train import ControllerError

from raytriever.cluster.events_and_restarts import (
    IDLE_RESTARTS,
    Event,
    GroupStarted,
    GroupWanted,
    InlineEventQueue,
    MissingWorkers,
    RestartPolicy,
    StatusMessage,
)
from raytriever.cluster.train import trainer
from raytriever.cluster.train.controller_callbacks import Failures, GroupMessages
from raytriever.cluster.train.train_worker import WorkerJob
from raytriever.cluster.train.trainer import ClusterError, FitThread, GroupEvents
from raytriever.core.interruption import interruptible
from raytriever.training.parallel.out_of_memory import OutOfMemory
from raytriever.training.parallel.strategies import TrainingError
from raytriever.training.run_config import Config


def test_the_controller_does_not_import_what_training_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "count_gpus", lambda: 0)
    job = WorkerJob(
        config=Config(),
        datasets=(),
        negatives=None,
        total_steps=1,
        folder=tmp_path,
        queue=InlineEventQueue(print),
        driver=None,  # type: ignore[arg-type]
    )
    made = trainer._trainer(job, tmp_path)
    sent = made.train_run_context, made._create_default_callbacks()
    assert b"raytriever.cluster.train.controller_callbacks" in cloudpickle.dumps(sent)
    assert b"raytriever.cluster.train.train_worker" not in cloudpickle.dumps(sent)
    assert b"raytriever.cluster.train.train_worker" in cloudpickle.dumps(made._get_train_func())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Gloo connectFullMesh failed with [tcp/pair.cc:144] timed out, remote=[127.0.1.1]:4711", " (at 127.0.1.1)"),
        ("The client socket has failed to connect to 10.0.0.2:29500 (errno: 111 - Connection refused).", ""),
        ("Last error:\nsocketStartConnect: Connect to 10.0.0.2<4711> failed : Connection refused", ""),
    ],
)
def test_workers_that_do_not_reach_each_other_are_one_line(text: str, address: str) -> None:
    error = trainer._start_error(ControllerError(RuntimeError(text)))
    assert str(error).startswith(f"the Ray cluster: has workers that cannot reach each other{address}; open all TCP")


def test_another_refused_connection_is_not_taken_for_one_between_workers() -> None:
    failure = ControllerError(OSError("mlflow.example:5000: [Errno 111] Connection refused"))
    assert trainer._start_error(failure) is failure


def starts(restarts: RestartPolicy, step: int) -> bool:
    """Start one group that reaches a step and fails. Return whether it could start."""
    if not restarts.may_start():
        return False
    restarts.record_step(step)
    restarts.record_failure(f"at {step}")
    return True


def test_a_step_that_always_fails_ends_the_run() -> None:
    restarts = RestartPolicy()
    # The first group makes progress; the others get no further than the first.
    started = list(itertools.takewhile(bool, (starts(restarts, 7) for _ in range(100))))
    assert len(started) == 1 + 1 + IDLE_RESTARTS
    assert not restarts.may_start()
    assert restarts.reason == "at 7"


@pytest.mark.parametrize(
    ("idle", "steps", "started"),
    [(2, (50, 40, 50, 45, 60), [True] * 4 + [False]), (1, (1, 1, 2, 2, 3, 3, 3, 3), [True] * 7 + [False])],
    ids=["repeated steps are no progress", "progress resets the count"],
)
def test_failures_count_until_there_is_progress(idle: int, steps: tuple[int, ...], started: list[bool]) -> None:
    restarts = RestartPolicy(idle=idle)
    assert [starts(restarts, step) for step in steps] == started


def test_a_resize_is_no_failure_and_repeated_reports_of_a_failure_count_once() -> None:
    restarts = RestartPolicy(idle=0)
    assert all(restarts.may_start() for _ in range(10))
    restarts = RestartPolicy(idle=1)
    restarts.may_start()
    for _ in range(5):
        restarts.record_failure("node taken away")
    assert restarts.may_start()


@pytest.mark.parametrize(("error", "died"), [(OutOfMemory("Step 2"), True), (RuntimeError("a defect"), False)])
def test_a_worker_without_memory_counts_as_one_that_died(error: Exception, died: bool) -> None:
    """Its restarts end with advice about memory, and not as a defect of the program."""
    assert recorded({1: error}) == (f"worker 1: {type(error).__name__}: {error}", died)


@pytest.mark.parametrize(
    "said", ["Read error [10.0.0.3]:17320: Connection reset by peer", "Connection closed by peer [10.0.0.3]:9"]
)
def test_the_host_is_named_whose_worker_the_others_lost(said: str) -> None:
    """Ray notices a killed host later than gloo does."""
    error = RuntimeError(
        f"[gloo/transport/tcp/pair.cc:537] {said}. This is typically caused by a remote worker hanging."
    )
    assert recorded({0: error}) == ("worker 0 on host h2 lost its connection to host h3", True)
    assert recorded({1: error}) == ("worker 1 on host h3 lost its connection to another worker", True)


def test_a_gpu_that_fails_is_named_with_its_host() -> None:
    lost = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nCompile with ...")
    first = "worker 1 on host h3 lost its GPU (CUDA error: uncorrectable ECC error encountered)"
    assert recorded({0: RuntimeError("NCCL error"), 1: lost}) == (f"{first}\nworker 0: RuntimeError: NCCL error", True)
    defect = torch.AcceleratorError("CUDA error: device-side assert triggered")
    assert recorded({1: defect}) == ("worker 1: AcceleratorError: CUDA error: device-side assert triggered", False)


def recorded(errors: dict[int, Exception]) -> tuple[str, bool]:
    """Return what is recorded when workers on two hosts fail: the reason, and whether a process died."""
    records = []

    class Queue:
        def send(self, event: object) -> None: ...

        def record_failure(self, reason: str, process_died: bool) -> None:
            records.append((reason, process_died))

    reports = GroupMessages(Queue())
    reports.hosts, reports.addresses = ["h2", "h3"], ["10.0.0.2", "10.0.0.3"]
    Failures(reports, Queue()).after_exception(None, errors)
    return records[0]


def wanted(room: int) -> GroupWanted:
    return GroupWanted(2, {"CPU": 1.0}, room)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Room of the cluster, which a test may change; every check asks for it."""
    now = [1]
    monkeypatch.setattr(trainer, "room_for", lambda resources: now[0])
    monkeypatch.setattr(trainer, "LOOK_SECONDS", 0.0)
    return now


def lines(events: list[Event]) -> list[str | int]:
    shown: list[str | int] = []
    for event in events:
        assert isinstance(event, StatusMessage | MissingWorkers)
        shown.append(event.workers if isinstance(event, MissingWorkers) else re.sub(r"\d+:\d+:\d+", "T", event.text))
    return shown


def test_what_is_missing_is_shown_once_and_again_when_it_changes(room: list[int]) -> None:
    events: list[Event] = []
    wait = GroupEvents(5, events.append)
    wait.check(events.append)  # nothing is waited for
    wait.handle(wanted(1))
    wait.handle(wanted(1))  # Ray Train asks again
    wait.check(events.append)
    assert lines(events) == ["waiting for 2 workers, the cluster has room for 1; gives up at T", 1]
    room[0] = 0  # the group has reserved a node that has just joined
    wait.check(events.append)
    assert len(events) == 2
    room[0] = 3
    wait._next_look = 0
    wait.check(events.append)
    assert lines(events)[2:] == ["starting the workers", 0]
    wait.handle(GroupStarted(()))
    assert lines(events)[4:] == [0]
    wait.check(events.append)
    assert len(events) == 5


def test_a_wait_without_room_ends_with_the_number_that_has_room(room: list[int]) -> None:
    wait = GroupEvents(0, lambda event: None)
    wait.handle(wanted(1))
    message = "the Ray cluster: had room for only 1 of 2 workers for 0 minutes; add nodes, lower num_workers, or wait"
    with pytest.raises(ClusterError, match=re.escape(message)):
        wait.check(lambda event: None)


def test_a_wait_with_room_ends_as_deaths_of_workers(room: list[int]) -> None:
    wait = GroupEvents(0, lambda event: None)
    wait.handle(wanted(2))
    with pytest.raises(TrainingError, match="for 0 minutes, workers died at every start"):
        wait.check(lambda event: None)


def test_the_time_counts_from_the_first_request_of_a_group(monkeypatch: pytest.MonkeyPatch, room: list[int]) -> None:
    now = [0.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: now[0])
    wait = GroupEvents(1, lambda event: None)
    wait.handle(wanted(1))
    now[0] = 50
    wait.handle(wanted(1))
    wait.check(lambda event: None)
    now[0] = 61
    with pytest.raises(ClusterError):
        wait.check(lambda event: None)
    wait.handle(GroupStarted(()))
    wait.handle(wanted(1))  # of the next group
    wait.check(lambda event: None)


@pytest.fixture
def interruptions(handled_interrupts: None) -> Iterator[None]:
    with interruptible():
        yield


def test_a_failure_is_there_when_waiting_is_over() -> None:
    failure = ValueError("no")

    def fit() -> None:
        raise failure

    thread = FitThread(fit)
    thread.start()
    thread.wait(threading.Event())
    assert thread.failure is failure


def test_something_broken_ends_the_wait_and_not_the_fit() -> None:
    broken, go = threading.Event(), threading.Event()
    thread = FitThread(go.wait)
    thread.start()
    broken.set()
    thread.wait(broken)
    assert thread.is_alive()
    go.set()
    thread.join()
    assert thread.failure is None


@pytest.mark.usefixtures("interruptions")
def test_who_was_interrupted_can_still_wait_for_the_end() -> None:
    """Python 3.11 takes a thread for ended whose `join` was interrupted."""
    go = threading.Event()
    thread = FitThread(go.wait)
    thread.start()
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        thread.wait(threading.Event())
    hurried: list[int] = []

    def hurry() -> None:
        hurried.append(1)
        if len(hurried) == 2:
            go.set()

    thread.end(hurry)
    assert len(hurried) == 2
    thread.join()
    timer.join()


@pytest.mark.usefixtures("interruptions")
def test_an_interruption_that_python_lost_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: lost.append(info.exc_type))

    def collected(phase: str, details: dict[str, int]) -> None:
        if phase == "stop":
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(collected)
    gc.collect()
    gc.callbacks.remove(collected)
    assert lost == [KeyboardInterrupt]
    go = threading.Event()
    thread = FitThread(go.wait)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        thread.wait(threading.Event())
    go.set()
    thread.join()
