"""Records of validations on disk, the best checkpoint that follows from them, and the interface to the evaluator.

`evaluations/step-20.json` is written once, by the evaluator; `evaluations/stop.json` by rank 0, before training stops
early. The best checkpoint is a function of the values by step. It does not depend on when a value became known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from raytriever.reading.structured import read_json
from raytriever.storage import disk_errors, write_atomically

T = TypeVar("T")
FOLDER, STOP = "evaluations", "stop.json"


@dataclass(frozen=True)
class Record:
    """One evaluation.

    Args:
        step: of the checkpoint.
        value: of the metric that decides; higher is better; NaN where it has none.
        measured: for the tracker.
    """

    step: int
    value: float
    measured: Mapping[str, float]


@dataclass(frozen=True)
class Stop:
    """Early stopping.

    Args:
        decided: the step of the checkpoint whose evaluation was one too many without a better one.
        at: the steps done when all workers knew it; no later one is ever done.
    """

    decided: int
    at: int


@dataclass(frozen=True)
class Verdict:
    """What evaluations say so far.

    Args:
        best_step: of the best checkpoint, 0 where there is none; of equal ones the first.
        value: its value.
        looks_without: evaluations since one was better by enough.
        decided: the step with whose evaluation patience ended; later ones count for nothing.
    """

    best_step: int = 0
    value: float = math.nan
    looks_without: int = 0
    decided: int | None = None


def judge(values: Mapping[int, float], patience: int, min_delta: float) -> Verdict:
    """The verdict over values by step.

    Args:
        values: higher is better; NaN is no better than anything.
        patience: evaluations that are not better by enough after which training stops.
        min_delta: what has to be exceeded by a value over the last one that was better by enough; the best is the best
            by however little.
    """
    found, best, reference = Verdict(), -math.inf, -math.inf
    for step, value in sorted(values.items()):
        best_step, without = found.best_step, found.looks_without + 1
        if value > best:
            best_step, best = step, value
        if value > reference and (reference == -math.inf or value - reference > min_delta):
            reference, without = value, 0
        found = Verdict(best_step, best if best_step else math.nan, without, step if without >= patience else None)
        if found.decided is not None:
            break
    return found


def record_path(folder: Path, step: int) -> Path:
    """Where the evaluation of a step's checkpoint stands."""
    return folder / f"step-{step}.json"


def write_record(folder: Path, record: Record) -> None:
    """Write one evaluation; raises `StorageError` where the disk does not take it."""
    write_atomically(record_path(folder, record.step), json.dumps(asdict(record), indent=1) + "\n")


def read_record(folder: Path, step: int) -> Record | None:
    """The evaluation of a step's checkpoint, if there is one; raises `StorageError` where it is torn."""
    return _read(record_path(folder, step), Record)


def read_records(folder: Path) -> list[Record]:
    """All evaluations, by step; raises `StorageError` where one is torn."""
    steps = [path.stem.removeprefix("step-") for path in folder.glob("step-*.json")]
    found = [read_record(folder, int(step)) for step in steps if step.isdigit()]
    return sorted((one for one in found if one is not None), key=lambda one: one.step)


def write_stop(folder: Path, stop: Stop) -> None:
    """Write where training stops; raises as `write_record`."""
    write_atomically(folder / STOP, json.dumps(asdict(stop)) + "\n")


def read_stop(folder: Path) -> Stop | None:
    """Where training stops early, where that is settled; raises `StorageError` where it is torn."""
    return _read(folder / STOP, Stop)


def forget_later(folder: Path, step: int) -> None:
    """Remove what is of checkpoints after `step`: a run that goes on from there makes them again."""
    for one in read_records(folder):
        if one.step > step:
            record_path(folder, one.step).unlink()
    stop = read_stop(folder)
    if stop is not None and stop.decided > step:
        (folder / STOP).unlink()


def _read(file: Path, kind: type[T]) -> T | None:
    try:
        with disk_errors(file, reading=True):
            return read_json(file, kind, "remove it to evaluate again, or train again with --fresh")
    except FileNotFoundError:
        return None


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
