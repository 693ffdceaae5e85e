"""Validation of checkpoints by retrieval on dev data, as a background job of training.

1. At a validation step, the checkpoint is saved and queued. It is not removed before its validation has ended.
2. Validations run one after another, in the order of the steps. All workers adopt a result after the same step.
3. A step waits only if too many validations are pending. At the end, training waits for all pending validations.

Results are used in the order of the steps, up to the result that exhausts patience. Later results are ignored. So the
best checkpoint does not depend on restarts, or on the time at which a validation ended. The evaluator writes each
record, such as `evaluations/step-20.json`, only once. If a run is killed after patience is exhausted, the resumed run
stops at the last step that the killed run logged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raytriever.core.errors import StorageError
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import read_manifest, remove, write_atomically
from raytriever.losses.distributed import WorkerGroup
from raytriever.training.background_jobs import BackgroundJob, JobClient, broadcast_json
from raytriever.training.checkpoint import checkpoint_path
from raytriever.training.early_stopping import TrainerState, summarize
from raytriever.training.training_settings import DEV_LOSS, TrainingConfig

FOLDER = "evaluations"


@dataclass(frozen=True)
class Record:
    """Record of the validation of one checkpoint."""

    step: int  # step of the checkpoint
    value: float  # value of `best_metric`, higher is better; NaN if `best_metric` is the dev loss
    metrics: Mapping[str, float]  # all metrics, by name


def record_path(folder: Path, step: int) -> Path:
    """Return the path of the record of a step's checkpoint."""
    return folder / f"step-{step}.json"


def write_record(folder: Path, record: Record) -> None:
    """Write one record; raises `StorageError` if it cannot be written."""
    write_atomically(record_path(folder, record.step), json.dumps(asdict(record), indent=1) + "\n")


def read_record(folder: Path, step: int) -> Record | None:
    """Return the record of a step's checkpoint; None without a record. A damaged record raises `StorageError`."""
    try:
        return read_json(record_path(folder, step), Record, "remove it to validate the checkpoint again")
    except FileNotFoundError:
        return None


def read_records(folder: Path) -> list[Record]:
    """Return all records in the order of their steps; raises `StorageError` if one is damaged."""
    steps = [path.stem.removeprefix("step-") for path in folder.glob("step-*.json")]
    records = [read_record(folder, int(step)) for step in steps if step.isdigit()]
    return sorted((record for record in records if record is not None), key=lambda record: record.step)


@dataclass(frozen=True, kw_only=True)
class ValidationPlan:
    """Plan of the validations of a run."""

    folder: Path  # folder of the records
    behind: int  # number of validations that may be pending before training waits
    # Client of the evaluating process on the first worker; None on the others. The process gets the step of a committed
    # checkpoint and its path, writes the record to `folder`, and returns the record.
    evaluator: JobClient[Record] | None
    # Called on the first worker with the step of each validated checkpoint and its metrics. After a restart it is
    # called again for earlier validations.
    on_metrics: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None
    # Last step that an earlier process of the run has logged, equal on all workers. Training does not stop before
    # this step, so that the logged curves end where training ends.
    last_logged_step: int = 0
    digest: str = ""  # digest of the dev data and of the evaluation settings. A run resumes only with the same digest.


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
        log_status: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(plan.evaluator, checkpoints, workers, log, log_status)
        self._plan, self._settings, self._total_steps = plan, settings, total_steps
        self._values: dict[int, float] = {}
        self._pending: list[int] = []  # steps; the running job validates the first of them
        self._stops_at: int | None = None  # the step at which training stops early
        self._retained_steps: frozenset[int] = frozenset()  # replaced as a whole: another thread reads it

    def start(self, trainer_state: TrainerState) -> TrainerState:
        """Continue from the stored records. Raises `StorageError` if one is damaged."""
        return self._judge(super().start(trainer_state))

    def after_step(self, trainer_state: TrainerState) -> TrainerState:
        """Queue a validation that is due, poll the running validation, and wait if too many validations are pending."""
        step = trainer_state.step
        with self.count_wait():
            if self.needs_checkpoint(step) and step not in self._pending:
                self._pending.append(step)
                self._submit_next()
            self.poll(step)
            self.wait_while(lambda: len(self._pending) > self._plan.behind, step)
        return self._judge(trainer_state)

    def finish(self, trainer_state: TrainerState) -> TrainerState:
        """Wait for all pending validations."""
        if self._pending:
            self.log(f"Training is done. Waiting for the validation of steps {', '.join(map(str, self._pending))}.")
        self.wait_while(lambda: bool(self._pending), trainer_state.step)
        return self._judge(trainer_state)

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the seconds that steps have waited for validations since the last call."""
        return {"evaluation_wait_seconds": self.take_wait_seconds()}

    def needs_checkpoint(self, step: int) -> bool:
        """Return True if the checkpoint after `step` steps must be validated; False if patience is exhausted."""
        return self._stops_at is None and (step % self._settings.eval_steps == 0 or step == self._total_steps)

    @property
    def retained_steps(self) -> frozenset[int]:
        """Steps whose checkpoints wait for validation; also the best step, unless `best_metric` is the dev loss."""
        return self._retained_steps

    def recover(self, step: int) -> None:
        """Use the recorded values, and validate the checkpoints that have no record."""
        state = self._recorded_state(step) if self.is_first else {}
        state = broadcast_json(state, self.workers)
        self._values = dict(state["values"])
        self._pending = state["pending"]
        self._stops_at = state["stops_at"]
        self._submit_next()

    def receive(self, result: Record, step: int) -> float:
        """Report the metrics of a validation, and return the value of `best_metric`."""
        self._plan.on_metrics(result.step, result.metrics)
        return result.value

    def adopt(self, step: int, result: float) -> None:
        """Use `result`, the metric of the oldest pending checkpoint. Stop training if this result exhausts patience."""
        self._values[self._pending.pop(0)] = result
        summary = self._summary
        if self._is_deciding and summary.stopped:
            self._stops_at = max(step, self._plan.last_logged_step)
            self._pending.clear()
            metric = f"{self._settings.best_metric} has not improved since step {summary.best_step}"
            self.log(f"{metric}. Training stops at step {self._stops_at}.")
        self._submit_next()

    def reject(self, step: int, reason: str) -> None:
        """Leave the oldest pending checkpoint without a value."""
        self.log(f"The validation of step {self._pending.pop(0)} failed ({reason}). Training continues without it.")
        self._submit_next()

    def describe(self) -> str:
        """See `BackgroundJob.describe`."""
        return f"the validation of step {self._pending[0]}"

    @property
    def _summary(self) -> TrainerState:
        return summarize(self._values, self._settings.patience)

    @property
    def _is_deciding(self) -> bool:
        """True if validations, not the dev loss, decide which checkpoint is best and when training stops."""
        return self._settings.best_metric != DEV_LOSS

    def _judge(self, trainer_state: TrainerState) -> TrainerState:
        """Return the trainer state with the best checkpoint and the early stop that the validations imply."""
        if not self._is_deciding:
            return trainer_state
        summary, step = self._summary, trainer_state.step
        has_stopped = trainer_state.stopped or (self._stops_at is not None and step >= self._stops_at)
        return replace(summary, step=step, stopped=has_stopped)

    def _submit_next(self) -> None:
        best = {self._summary.best_step} if self._is_deciding else set()
        self._retained_steps = frozenset({*best, *self._pending})
        if self._pending and not self.is_running:
            self.submit(self._pending[0], self._pending[0])

    def _recorded_state(self, step: int) -> dict[str, Any]:
        """Return, on the first worker, the recorded values, the pending steps and the step of the early stop."""
        folder, settings = self._plan.folder, self._settings
        records, stops_at = [], None
        for record in read_records(folder):
            if record.step > step:
                remove(record_path(folder, record.step))  # the resumed run writes this record again
                continue
            records.append(record)
            self._plan.on_metrics(record.step, record.metrics)
        values = {record.step: record.value for record in records}
        if self._is_deciding:
            self._remove_damaged(values)
            summary = summarize(values, settings.patience)
            if summary.stopped:
                stops_at = max(step, self._plan.last_logged_step)
        last = [step] if step == self._total_steps else []
        due = {*range(settings.eval_steps, step + 1, settings.eval_steps), *last} - {record.step for record in records}
        return {
            "values": list(values.items()),
            "stops_at": stops_at,
            "pending": [
                step for step in sorted(due) if stops_at is None and checkpoint_path(self._checkpoints, step).is_dir()
            ],
        }

    def _remove_damaged(self, values: dict[int, float]) -> None:
        """Remove the best value from `values` until the best remaining value has a complete checkpoint."""
        settings, has_logged = self._settings, False
        while best := summarize(values, settings.patience).best_step:
            try:
                read_manifest(checkpoint_path(self._checkpoints, best))
            except StorageError as error:
                if not has_logged:
                    self.log(f"{error}. The best checkpoint will be chosen from the others and from later checkpoints.")
                has_logged = True
                del values[best]
            else:
                return
