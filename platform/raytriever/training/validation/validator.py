"""Checkpoints evaluated by somebody else while training goes on.

1. At a look the checkpoint is saved and joins those that are waited for. It is not removed before its verdict.
2. Only while any is waited for, the workers hear after every step, in one small collective, what the first one knows of
   the oldest: they all learn of a verdict at the same step, and stop at the same step.
3. A step waits only where more than so many are waited for; and the end of training waits for all that count.

Verdicts count in the order of the steps, up to the one that ends patience: what came of training after that one is
thrown away. So the best checkpoint is the same however late verdicts come, and whatever was killed and done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

import torch

from raytriever.errors import StorageError, UserError
from raytriever.losses.engine.workers import Workers
from raytriever.storage import read_manifest
from raytriever.training.checkpoint import checkpoint_path
from raytriever.training.config import DEV_LOSS, TrainingConfig
from raytriever.training.validation.records import (
    Record,
    Stop,
    ValidationPlan,
    Verdict,
    forget_later,
    judge,
    read_records,
    read_stop,
    write_stop,
)

WAIT_SECONDS = 0.05
# How often a person hears that training waits.
TOLD_SECONDS = 60.0


class _Kind(IntEnum):
    """What a row says that the first worker tells the others: nothing, or of a step its value, that it is waited for,
    that nothing came of it, or that it was the last that counted."""

    NOTHING, VALUE, WAITED_FOR, FAILED, STOP = range(5)


class Validator:
    """The evaluations of one run on one worker; all workers make every call alike, in the same order.

    Args:
        plan: who evaluates, and where.
        settings: what the best is best by, when there is a look, and when training stops.
        total_steps: after which training ends at the latest.
        checkpoints: where they lie.
        workers, device: the group, and where its collectives take their tensors.
        notice: hears on the first worker what a person should know.
    """

    def __init__(
        self,
        plan: ValidationPlan,
        settings: TrainingConfig,
        total_steps: int,
        checkpoints: Path,
        workers: Workers,
        device: torch.device,
        notice: Callable[[str], None],
    ) -> None:
        self._plan, self._settings, self._total = plan, settings, total_steps
        self._checkpoints, self._workers, self._device, self._notice = checkpoints, workers, device, notice
        self._values: dict[int, float] = {}
        self._waiting: list[int] = []
        self._stop: Stop | None = None
        self._begun = False
        self._waited = 0.0
        # Replaced whole, because the thread that writes checkpoints reads it.
        self.retained: frozenset[int] = frozenset()

    @property
    def verdict(self) -> Verdict:
        """What is known so far."""
        return judge(self._values, self._settings.patience, self._settings.min_delta)

    @property
    def decides(self) -> bool:
        """Whether evaluations decide what is best and when training stops."""
        return self._settings.best_metric != DEV_LOSS

    def is_due(self, step: int) -> bool:
        """Whether the checkpoint after `step` steps is evaluated."""
        # When patience has ended, what is evaluated later counts for nothing.
        return self._stop is None and (step % self._settings.eval_steps == 0 or step == self._total)

    def stops(self, step: int) -> bool:
        """Whether training ends early after `step` steps."""
        return self._stop is not None and step >= self._stop.at

    def start(self, step: int) -> None:
        """Go on after `step` steps: with what was evaluated, and what is left to be.

        Raises:
            StorageError: a record is torn.
        """
        rows = self._read(step) if self._workers.rank == 0 else []
        for kind, at, value in self._shared(rows):
            if kind == _Kind.STOP:
                self._stop = Stop(int(at), int(value))
            elif kind == _Kind.VALUE:
                self._values[int(at)] = value
            else:
                self._waiting.append(int(at))
        self._retain()

    def after(self, step: int) -> None:
        """What is to be done when `step` steps are done and, where it is due, their checkpoint is being written."""
        began = time.monotonic()
        if self.is_due(step) and step not in self._waiting:
            self._waiting.append(step)
            self._retain()
        self._advance(step)
        self._wait(step, self._plan.behind)
        self._waited += time.monotonic() - began

    def finish(self, step: int) -> None:
        """Wait for all that counts, when `step` steps are done, no more are to come, and all checkpoints stand."""
        if self._waiting and self._workers.rank == 0:
            self._notice(f"training is done; waiting for the evaluation of steps {', '.join(map(str, self._waiting))}")
        self._wait(step, 0)

    def told(self) -> dict[str, float]:
        """For the tracker: the seconds that evaluations kept steps waiting since this was asked."""
        waited, self._waited = self._waited, 0.0
        return {"evaluation_wait_seconds": waited}

    def _wait(self, step: int, behind: int) -> None:
        began = told = time.monotonic()
        while len(self._waiting) > behind:
            time.sleep(WAIT_SECONDS)
            self._advance(step)
            if self._waiting and time.monotonic() - told > TOLD_SECONDS and self._workers.rank == 0:
                told = time.monotonic()
                since = f"training has waited {told - began:.0f} s for the evaluation of step {self._waiting[0]}"
                self._notice(f"{since}; see `ray status` for whether its process has a place")

    def _advance(self, step: int) -> None:
        """Hear of the oldest that is waited for."""
        if not self._waiting:
            return
        kind, value = self._exchange(self._look(step) if self._workers.rank == 0 else (_Kind.NOTHING, 0.0))
        if kind == _Kind.NOTHING:
            return
        first = self._waiting.pop(0)
        if kind == _Kind.VALUE:
            self._values[first] = value
        decided = self.verdict.decided if self.decides else None
        if decided is not None:
            self._stop = Stop(decided, max(step, self._plan.told))
            self._waiting.clear()
        self._retain()

    def _look(self, step: int) -> tuple[int, float]:
        """What the first worker knows of the oldest; nothing that goes wrong here ends the training."""
        evaluator, first = self._plan.evaluator, self._waiting[0]
        assert evaluator is not None
        try:
            if not self._begun:
                path = checkpoint_path(self._checkpoints, first)
                if path.is_dir():  # committed
                    evaluator.begin(first, path)
                    self._begun = True
                return _Kind.NOTHING, 0.0
            answer = evaluator.answer()
            if answer is None:
                return _Kind.NOTHING, 0.0
            self._begun = False
            if answer.record is not None:
                self._hear(answer.record, step)
                return _Kind.VALUE, answer.record.value
            reason = answer.reason
        except Exception as error:
            self._begun = False
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        self._notice(f"the evaluation of step {first} failed ({reason}); training goes on without it")
        return _Kind.FAILED, 0.0

    def _hear(self, record: Record, step: int) -> None:
        """Write down first that training stops, where it does."""
        settings, values = self._settings, {**self._values, record.step: record.value}
        verdict = judge(values, settings.patience, settings.min_delta)
        if self.decides and verdict.decided is not None:
            at = max(step, self._plan.told)
            write_stop(self._plan.folder, Stop(verdict.decided, at))
            self._notice(
                f"{settings.best_metric} has not got better since step {verdict.best_step}: training stops at {at}"
            )
        self._plan.tell(record.step, record.measured)

    def _read(self, step: int) -> list[tuple[int, float, float]]:
        """On the first worker, what an earlier call left."""
        folder = self._plan.folder
        forget_later(folder, step)
        records, stop = read_records(folder), read_stop(folder)
        for record in records:
            self._plan.tell(record.step, record.measured)
        values = {record.step: record.value for record in records}
        if self.decides:
            self._without_lost(values)
        decided = judge(values, self._settings.patience, self._settings.min_delta).decided if self.decides else None
        if decided is not None and stop is None:  # killed between the two
            stop = Stop(decided, max(step, self._plan.told))
            write_stop(folder, stop)
        rows = [(int(_Kind.VALUE), float(at), value) for at, value in values.items()]
        if stop is not None:
            rows.append((int(_Kind.STOP), float(stop.decided), float(stop.at)))
        known = {record.step for record in records}
        every = range(self._settings.eval_steps, step + 1, self._settings.eval_steps)
        left = sorted({*every, *([step] if step == self._total else [])} - known)
        return rows + [
            (int(_Kind.WAITED_FOR), float(due), 0.0)
            for due in left
            if (stop is None or due <= stop.decided) and checkpoint_path(self._checkpoints, due).is_dir()
        ]

    def _without_lost(self, values: dict[int, float]) -> None:
        """Leave out what was best where its weights cannot be had any more."""
        settings = self._settings
        told = False
        while best := judge(values, settings.patience, settings.min_delta).best_step:
            try:
                read_manifest(checkpoint_path(self._checkpoints, best))
            except StorageError as error:
                if not told:
                    self._notice(f"{error}; the best from here on counts")
                told = True
                del values[best]
            else:
                return

    def _retain(self) -> None:
        best = {self.verdict.best_step} if self.decides else set()
        self.retained = frozenset({*best, *self._waiting})

    def _exchange(self, word: tuple[int, float]) -> tuple[int, float]:
        """The first worker's word."""
        if self._workers.size == 1:
            return word
        own = torch.tensor([word], dtype=torch.float64, device=self._device)
        kind, value = self._workers.gather_values(own)[0].tolist()
        return int(kind), value

    def _shared(self, rows: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
        """The first worker's rows."""
        if self._workers.size == 1:
            return rows
        count = int(self._workers.sum(torch.tensor(len(rows), device=self._device)))
        table = torch.zeros((count, 3), dtype=torch.float64, device=self._device)
        if rows:
            table[:] = torch.tensor(rows, dtype=torch.float64)
        heard = self._workers.gather_values(table)[:count].tolist() if count else []
        return [(int(kind), at, value) for kind, at, value in heard]
