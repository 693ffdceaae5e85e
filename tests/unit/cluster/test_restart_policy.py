"""Restart policy: conditions under which a failed worker group may start again."""

from __future__ import annotations

import itertools

import pytest
import torch

from raytriever.cluster.events_and_restarts import IDLE_RESTARTS, RestartPolicy
from raytriever.cluster.train.controller_callbacks import Failures, GroupMessages
from raytriever.training.parallel.gradient_caching import OutOfMemory


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


def test_a_resize_is_no_failure() -> None:
    restarts = RestartPolicy(idle=0)
    assert all(restarts.may_start() for _ in range(10))


def test_repeated_reports_of_one_failure_count_once() -> None:
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
