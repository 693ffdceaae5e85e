"""Validation of checkpoints by retrieval from dev data, as a background job of training.

1. At a validation step the checkpoint is saved and waits for its validation. It is not removed before that has ended.
2. Validations run one after another, in the order of the steps. All workers adopt a value after the same step.
3. A step waits only where too many validations are pending. The end of training waits for all that count.

Values count in the order of the steps, up to the one that ends patience; the checkpoints of later steps do not count.
So the best checkpoint does not depend on when a value became known, or on restarts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from raytriever.errors import StorageError
from raytriever.losses.distributed import WorkerGroup
from raytriever.store.commit import read_manifest
from raytriever.training.background import (
    RUNNING,
    BackgroundJob,
    JobError,
    JobMessage,
    JobStage,
    JobStatus,
    broadcast_json,
)
from raytriever.training.checkpoint import Progression, checkpoint_path
from raytriever.training.config import DEV_LOSS, TrainingConfig
from raytriever.training.validation.records import (
    Record,
    Stop,
    ValidationSummary,
    read_records,
    read_stop,
    remove_later,
    summarize,
    write_stop,
)


@dataclass(frozen=True)
class EvaluationResult:
    """Result of an evaluation: its record, which is on disk, or the reason why there is none."""

    record: Record | None = None
    reason: str = ""


class EvaluatorClient(Protocol):
    """Access to the process that evaluates; used by the first worker alone, for one checkpoint at a time."""

    def submit(self, step: int, checkpoint: Path) -> None:
        """Start the evaluation of a committed checkpoint; its record will be in the folder. Does not wait."""

    def poll(self) -> EvaluationResult | None:
        """Return the result; None while the evaluation is running. Does not wait."""


@dataclass(frozen=True, kw_only=True)
class ValidationPlan:
    """Plan of the validations of a run.

    Args:
        folder: Folder of the records, seen by every worker.
        behind: validations that may be pending before training waits.
        evaluator: on the first worker; None on the others.
        on_metrics: called on the first worker with the step of each validated checkpoint and its metrics. After a
            restart it is called again for earlier validations.
        last_logged_step: the last step that an earlier call has logged, the same on every worker. Training stops no
            earlier, so that its curves end where it does.
        digest: Digest of the dev data and of how it is measured; a run resumes with no other.
    """

    folder: Path
    behind: int
    evaluator: EvaluatorClient | None
    on_metrics: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None
    last_logged_step: int = 0
    digest: str = ""


class ValidationJob(BackgroundJob):
    """Validations of one run, on one worker."""

    def __init__(
        self,
        plan: ValidationPlan,
        settings: TrainingConfig,
        total_steps: int,
        checkpoints: Path,
        workers: WorkerGroup,
        log: Callable[[str], None],
    ) -> None:
        stages = [JobStage(self._check_checkpoint), JobStage(self._check_evaluation, self._submit_evaluation)]
        super().__init__(stages, workers, log)
        self._plan, self._settings, self._total_steps = plan, settings, total_steps
        self._checkpoints = checkpoints
        self._values: dict[int, float] = {}
        self._pending: list[int] = []  # steps, the first of which the running job validates
        self._stop: Stop | None = None
        self._retained_steps: frozenset[int] = frozenset()  # replaced as a whole: another thread reads it

    # ------------------------------------------------------------------------------------------------------- hooks

    def start(self, progression: Progression) -> Progression:
        """Resume; raises `StorageError` where a record is damaged."""
        return self._judge(super().start(progression))

    def after_step(self, progression: Progression) -> Progression:
        """Add a validation that is due, poll the running one, and wait where too many are pending."""
        step = progression.step
        with self.count_wait():
            if self.needs_checkpoint(step) and step not in self._pending:
                self._pending.append(step)
                self._submit_next()
            self.poll(step)
            self.wait_while(lambda: len(self._pending) > self._plan.behind, step)
        return self._judge(progression)

    def finish(self, progression: Progression) -> Progression:
        """Wait for all pending validations."""
        if self._pending:
            self.log(f"Training is done. Waiting for the validation of steps {', '.join(map(str, self._pending))}.")
        self.wait_while(lambda: bool(self._pending), progression.step)
        return self._judge(progression)

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the seconds that validations kept steps waiting since the last call."""
        return {"evaluation_wait_seconds": self.take_wait_seconds()}

    def needs_checkpoint(self, step: int) -> bool:
        """Return whether the checkpoint after `step` steps is validated; none is after patience has ended."""
        return self._stop is None and (step % self._settings.eval_steps == 0 or step == self._total_steps)

    @property
    def retained_steps(self) -> frozenset[int]:
        """The best checkpoint, where validations decide on it, and those that wait for validation."""
        return self._retained_steps

    # --------------------------------------------------------------------------------------------------------- job

    def recover(self, step: int) -> None:
        """Use the recorded values, and validate the checkpoints that have none."""
        state = self._recorded_state(step) if self.is_first else {}
        state = broadcast_json(state, self.workers)
        self._values = dict(state["values"])
        self._pending = state["pending"]
        self._stop = Stop(*state["stop"]) if state["stop"] else None
        self._submit_next()

    def adopt(self, step: int, result: float) -> None:
        """Use the value of the oldest pending checkpoint; stop training where it ends patience."""
        self._values[self._pending.pop(0)] = result
        decided = self._summary.decided if self._is_deciding else None
        if decided is not None:
            self._stop = Stop(decided, max(step, self._plan.last_logged_step))
            self._pending.clear()
        self._submit_next()

    def reject(self, step: int, reason: str) -> None:
        """Leave the oldest pending checkpoint without a value."""
        self.log(f"The validation of step {self._pending.pop(0)} failed ({reason}). Training continues without it.")
        self._submit_next()

    def describe(self) -> str:
        """See `BackgroundJob.describe`."""
        return f"the validation of step {self._pending[0]}"

    @property
    def _summary(self) -> ValidationSummary:
        return summarize(self._values, self._settings.patience, self._settings.min_delta)

    @property
    def _is_deciding(self) -> bool:
        """True where validations decide which checkpoint is best and when training stops."""
        return self._settings.best_metric != DEV_LOSS

    def _judge(self, progression: Progression) -> Progression:
        """Return the progression with the best checkpoint and the stop that the validations decide on."""
        if not self._is_deciding:
            return progression
        summary, step = self._summary, progression.step
        has_stopped = progression.stopped or (self._stop is not None and step >= self._stop.at)
        return Progression(step, summary.best_step, looks_without=summary.validations_without, stopped=has_stopped)

    def _submit_next(self) -> None:
        best = {self._summary.best_step} if self._is_deciding else set()
        self._retained_steps = frozenset({*best, *self._pending})
        if self._pending and not self.is_running:
            self.submit()

    def _check_checkpoint(self, step: int) -> JobMessage:
        is_committed = self.is_first and checkpoint_path(self._checkpoints, self._pending[0]).is_dir()
        return JobMessage(JobStatus.DONE) if is_committed else RUNNING

    def _submit_evaluation(self, step: int) -> None:
        if self._plan.evaluator is not None:
            self._plan.evaluator.submit(self._pending[0], checkpoint_path(self._checkpoints, self._pending[0]))

    def _check_evaluation(self, step: int) -> JobMessage:
        result = self._plan.evaluator.poll() if self._plan.evaluator is not None else None
        if result is None:
            return RUNNING
        if result.record is None:
            raise JobError(result.reason)
        self._record_stop(result.record, step)
        self._plan.on_metrics(result.record.step, result.record.measured)
        return JobMessage(JobStatus.DONE, result.record.value)

    def _record_stop(self, record: Record, step: int) -> None:
        """Write the early stop where this record ends patience, before any worker acts on it."""
        settings = self._settings
        summary = summarize({**self._values, record.step: record.value}, settings.patience, settings.min_delta)
        if self._is_deciding and summary.decided is not None:
            stop = Stop(summary.decided, max(step, self._plan.last_logged_step))
            write_stop(self._plan.folder, stop)
            metric = f"{settings.best_metric} has not improved since step {summary.best_step}"
            self.log(f"{metric}. Training stops at step {stop.at}.")

    def _recorded_state(self, step: int) -> dict[str, Any]:
        """Return, on the first worker, values, pending steps and the stop of an earlier call, as JSON."""
        folder, settings = self._plan.folder, self._settings
        remove_later(folder, step)
        records, stop = read_records(folder), read_stop(folder)
        for record in records:
            self._plan.on_metrics(record.step, record.measured)
        values = {record.step: record.value for record in records}
        if self._is_deciding:
            self._remove_damaged(values)
            decided = summarize(values, settings.patience, settings.min_delta).decided
            if decided is not None and stop is None:  # killed after the record and before the stop was written
                stop = Stop(decided, max(step, self._plan.last_logged_step))
                write_stop(folder, stop)
        last = [step] if step == self._total_steps else []
        due = {*range(settings.eval_steps, step + 1, settings.eval_steps), *last} - {record.step for record in records}
        return {
            "values": list(values.items()),
            "stop": [stop.decided, stop.at] if stop is not None else None,
            "pending": [
                one
                for one in sorted(due)
                if (stop is None or one <= stop.decided) and checkpoint_path(self._checkpoints, one).is_dir()
            ],
        }

    def _remove_damaged(self, values: dict[int, float]) -> None:
        """Remove the best values until the checkpoint of the best one is undamaged."""
        settings, has_logged = self._settings, False
        while best := summarize(values, settings.patience, settings.min_delta).best_step:
            try:
                read_manifest(checkpoint_path(self._checkpoints, best))
            except StorageError as error:
                if not has_logged:
                    self.log(f"{error}. The best checkpoint is chosen from the others and from later ones.")
                has_logged = True
                del values[best]
            else:
                return
