"""Background jobs of training. A job works on a committed checkpoint; all workers adopt its result after the same step.

A job has phases. While a job runs, and only then, the workers exchange one small message after each step. A phase ends
when the first worker has finished it. A phase that needs all workers ends when all have finished with the same result.
A phase ends on all workers after the same step.

1. `submit` starts a job. When the job's checkpoint is committed, its path is passed to another process or a thread.
2. `poll` checks the work after each step and exchanges the messages.
3. `adopt` applies the result of the last phase. `reject` logs why a job failed; a failed job never ends training.
4. `recover` applies recorded results after a restart. It submits unfinished work again, with the same checkpoint."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from raytriever.core.errors import UserError
from raytriever.losses.distributed import WorkerGroup
from raytriever.training.batch_loader import Batch
from raytriever.training.checkpoint import checkpoint_path
from raytriever.training.early_stopping import TrainerState

Result = TypeVar("Result", covariant=True)
POLL_SECONDS = 0.02  # interval of polls while training waits for a job
LOG_SECONDS = 60.0  # interval of log lines while training waits for a job


class JobStatus(IntEnum):
    """Status of one worker in a phase of a job."""

    RUNNING, DONE, FAILED = range(3)


class JobMessage(NamedTuple):
    """Message of one worker to all workers: its status, and its result of the phase as a float64 number."""

    status: JobStatus = JobStatus.RUNNING
    result: float = 0.0


RUNNING = JobMessage()


def all_rows(row: list[float], workers: WorkerGroup) -> list[list[float]]:
    """Gather a row of numbers from each worker, by rank, in one small CPU collective. All workers call this."""
    rows: list[list[float]] = workers.all_gather(torch.tensor([row], dtype=torch.float64)).tolist()
    return rows


def all_texts(text: str, workers: WorkerGroup) -> list[str]:
    """Gather a text from each worker, by rank, in two CPU collectives. All workers call this function."""
    raw = text.encode()
    length = max(int(row[0]) for row in all_rows([len(raw)], workers))
    own = torch.frombuffer(bytearray(raw.ljust(length + 1, b"\0")), dtype=torch.uint8)[None]
    return [bytes(row).rstrip(b"\0").decode() for row in workers.all_gather(own).tolist()]


class JobError(Exception):
    """Failure of a job. Its text is a line for the user, from the process that does the work."""


class JobClient(Protocol[Result]):
    """Client of the process that does the work. Only the first worker has a client, which submits one job at a time."""

    def submit(self, number: int, checkpoint: Path) -> None:
        """Start job `number` on a committed checkpoint. Does not wait."""

    def poll(self) -> Result | None:
        """Return the result of the job, or None while it is running. Does not wait. Raises an error if it failed."""


@dataclass(frozen=True)
class JobPhase:
    """One phase of a job."""

    # Function that returns this worker's message without waiting. It is called after each step, with the number of
    # steps done, until the message is no longer `RUNNING`.
    check: Callable[[int], JobMessage]
    # Called on every worker, with the number of steps done, when the previous phase has ended.
    start: Callable[[int], None] = lambda step: None
    # If True, the phase ends when all workers have the same result; if False, when rank 0 has a result.
    needs_all: bool = False

    def is_done(self, messages: Sequence[JobMessage]) -> bool:
        """Return True if the phase has ended with a result."""
        if not self.needs_all:
            return messages[0].status is JobStatus.DONE
        return all(message == messages[0] for message in messages) and messages[0].status is JobStatus.DONE

    def has_failed(self, messages: Sequence[JobMessage]) -> bool:
        """Return True if a worker has failed, or if workers that must agree have different results."""
        if any(message.status is JobStatus.FAILED for message in messages):
            return True
        are_done = all(message.status is JobStatus.DONE for message in messages)
        return self.needs_all and are_done and not self.is_done(messages)


def exchange_messages(message: JobMessage, workers: WorkerGroup) -> list[JobMessage]:
    """Gather the messages of all workers by rank, in one small collective. All workers call this function."""
    rows = all_rows([float(message.status), message.result], workers)
    return [JobMessage(JobStatus(int(status)), result) for status, result in rows]


def broadcast_json(value: Any, workers: WorkerGroup) -> Any:
    """Broadcast the first worker's JSON value to all workers. All workers call this function."""
    return json.loads(all_texts(json.dumps(value) if workers.rank == 0 else "", workers)[0])  # noqa: TID251 - ours


class BackgroundJob(ABC):
    """State machine of one kind of background work, on one worker. One job runs at a time.

    All workers make every call in the same order, and call each hook of the training loop after the same step.

    Args:
        client: on the first worker, the client of the process that does the work; None on the other workers.
        workers: the group that exchanges messages on the CPU.
        phases: phases that follow the work itself.
    """

    def __init__(
        self,
        client: JobClient[Any] | None,
        checkpoints: Path,
        workers: WorkerGroup,
        log: Callable[[str], None],
        log_status: Callable[[str], None],
        phases: Sequence[JobPhase] = (),
    ) -> None:
        self._client, self._checkpoints = client, checkpoints
        self._phases = [JobPhase(self._check_checkpoint), JobPhase(self._check_work, self._submit_work), *phases]
        self.workers, self._log, self._log_status = workers, log, log_status
        self._number, self._checkpoint = 0, checkpoints
        self._phase: int | None = None
        self._message, self._reason = RUNNING, ""
        self._wait_seconds = 0.0
        # All workers call this before training waits. If a checkpoint could not be written, the call raises the error.
        self.wait_for_checkpoint: Callable[[], None] = lambda: None

    @abstractmethod
    def recover(self, step: int) -> None:
        """Resume after `step` steps: apply recorded results, and submit unfinished work again."""

    @abstractmethod
    def receive(self, result: Any, step: int) -> float:
        """Record the result of the work on the first worker, and return the number that all workers adopt."""

    @abstractmethod
    def adopt(self, step: int, result: float) -> None:
        """Apply a finished job after `step` steps. `result` is the first worker's result of the last phase."""

    @abstractmethod
    def reject(self, step: int, reason: str) -> None:
        """Drop the failed job. All workers call this after `step` steps; `reason` is empty if another worker failed."""

    @abstractmethod
    def describe(self) -> str:
        """Return a phrase for the running job, for the log line `Training has waited 60 s for PHRASE.`"""

    @property
    def is_first(self) -> bool:
        """True on the first worker, the only one that communicates with the process that does the work."""
        return self.workers.rank == 0

    @property
    def is_running(self) -> bool:
        """True while a job is running."""
        return self._phase is not None

    def start(self, trainer_state: TrainerState) -> TrainerState:
        """Resume from the checkpoint's trainer state. Return the state to train from. Called before the first batch."""
        self.recover(trainer_state.step)
        return trainer_state

    def prefetch_limit(self, step: int, end: int) -> int:
        """Return the first step whose batch must wait for the next `after_step`; `end` if no batch must wait."""
        return end

    def before_batch(self, step: int, batch: Batch) -> None:  # noqa: B027
        """Check the batch of `step` (the first step is 0) before the model learns from this batch."""

    @abstractmethod
    def after_step(self, trainer_state: TrainerState) -> TrainerState:
        """Act after a step, and return the trainer state, with `stopped` set if training ends. If a checkpoint is due
        at this step, it is already being written."""

    def finish(self, trainer_state: TrainerState) -> TrainerState:
        """Act after the last step, when all checkpoints are committed; returns the final trainer state."""
        return trainer_state

    def close(self) -> None:  # noqa: B027
        """Release threads; also called after an error."""

    @abstractmethod
    def needs_checkpoint(self, step: int) -> bool:
        """Return True if this job needs a checkpoint after `step` steps."""

    @property
    @abstractmethod
    def retained_steps(self) -> frozenset[int]:
        """Steps whose checkpoints must not be removed. The thread that writes checkpoints reads this set."""

    @abstractmethod
    def metrics(self, step: int) -> Mapping[str, float]:
        """Return metrics of `step` (the first step is 0) for the tracker."""

    def submit(self, number: int, step: int) -> None:
        """Start job `number` on the checkpoint of `step`, as soon as that checkpoint is committed."""
        self._number, self._checkpoint = number, checkpoint_path(self._checkpoints, step)
        self._enter(0, lambda: None)

    def poll(self, step: int) -> None:
        """Check the running job after `step` steps. Start its next phase if its phase has ended."""
        if self._phase is None:
            return
        phase = self._phases[self._phase]
        if self._message.status is JobStatus.RUNNING:
            with self._failing():
                self._message = phase.check(step)
        messages = exchange_messages(self._message, self.workers)
        if phase.has_failed(messages):
            self._phase = None
            self.reject(step, self._reason)
        elif phase.is_done(messages):
            following = self._phase + 1
            if following < len(self._phases):
                self._enter(following, lambda: self._phases[following].start(step))
            else:
                self._phase = None
                self.adopt(step, messages[0].result)

    def wait_while(self, must_wait: Callable[[], bool], step: int) -> None:
        """Poll until `must_wait` is false. Every `LOG_SECONDS`, log how long training has waited."""
        began = logged = time.monotonic()
        if must_wait():
            self._log_status(f"waiting for {self.describe()}")
            self.wait_for_checkpoint()
        while must_wait():
            time.sleep(POLL_SECONDS)
            self.poll(step)
            if must_wait() and time.monotonic() - logged > LOG_SECONDS:
                logged = time.monotonic()
                waited = f"Training has waited {logged - began:.0f} s for {self.describe()}."
                self.log(f"{waited} `ray status` shows whether a process for it can start or waits for resources.")

    def log(self, line: str) -> None:
        """Log a line for the user on the first worker."""
        if self.is_first:
            self._log(line)

    def take_wait_seconds(self) -> float:
        """Return the seconds that steps have waited for jobs since the last call."""
        seconds, self._wait_seconds = self._wait_seconds, 0.0
        return seconds

    @contextmanager
    def count_wait(self) -> Iterator[None]:
        """Add the duration of the `with` block to the seconds that steps have waited for jobs."""
        began = time.monotonic()
        yield
        self._wait_seconds += time.monotonic() - began

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Run a `with` block. An error in the block makes the job fail, but does not end training."""
        try:
            yield
        except Exception as error:
            self._message = JobMessage(JobStatus.FAILED)
            self._reason = str(error) if isinstance(error, UserError | JobError) else f"{type(error).__name__}: {error}"

    def _check_checkpoint(self, step: int) -> JobMessage:
        return JobMessage(JobStatus.DONE) if self.is_first and self._checkpoint.is_dir() else RUNNING

    def _submit_work(self, step: int) -> None:
        if self._client is not None:
            self._client.submit(self._number, self._checkpoint)

    def _check_work(self, step: int) -> JobMessage:
        result = self._client.poll() if self._client is not None else None
        return RUNNING if result is None else JobMessage(JobStatus.DONE, self.receive(result, step))

    def _enter(self, phase: int, start: Callable[[], None]) -> None:
        self._phase, self._message, self._reason = phase, RUNNING, ""
        with self._failing():
            start()
