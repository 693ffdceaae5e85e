"""What evaluating checkpoints needs from outside the loop: a folder, and someone who evaluates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raytriever.training.validation_record import Record


@dataclass(frozen=True)
class Answer:
    """What became of an evaluation: its record, which is written down, or why there is none."""

    record: Record | None = None
    reason: str = ""


class Evaluator(Protocol):
    """Who evaluates; spoken to by the first worker alone, of one checkpoint at a time."""

    def begin(self, step: int, checkpoint: Path) -> None:
        """Begin with a committed checkpoint. Its record is to stand in the folder. Does not wait for it."""

    def answer(self) -> Answer | None:
        """What became of it; None while it is under way. Does not wait."""


@dataclass(frozen=True)
class ValidationPlan:
    """How a run's checkpoints are evaluated.

    Args:
        folder: where records stand, seen by every worker.
        behind: evaluations that may be waited for before training waits for one of them.
        evaluator: on the first worker; None on the others.
        tell: hears on the first worker of each evaluation: the checkpoint's step and what was measured. After a restart
            it hears again what it had heard.
        told: the last step that an earlier call has told of, the same on every worker: training ends no earlier, so
            that its curves end where it does.
        digest: of the dev data and of how it is measured; a run goes on with no other.
    """

    folder: Path
    behind: int
    evaluator: Evaluator | None
    tell: Callable[[int, Mapping[str, float]], None] = lambda step, measured: None
    told: int = 0
    digest: str = ""
