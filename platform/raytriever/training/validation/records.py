"""Records of validations on disk, and the best checkpoint that follows from them.

`evaluations/step-20.json` is written once, by the evaluator; `evaluations/stop.json` by rank 0, before training stops
early. The best checkpoint is a function of the values by step. It does not depend on when a value became known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from raytriever.errors import setting
from raytriever.reading.structured import read_json
from raytriever.store.commit import remove, write_atomically
from raytriever.store.disk import disk_errors

T = TypeVar("T")
FOLDER, STOP = "evaluations", "stop.json"


@dataclass(frozen=True)
class Record:
    """One validation.

    Args:
        step: Step of the checkpoint.
        value: Value of the metric that decides; higher is better; NaN where no metric decides.
        measured: metrics for the tracker.
    """

    step: int
    value: float
    measured: Mapping[str, float]


@dataclass(frozen=True)
class Stop:
    """Early stopping.

    Args:
        decided: the step of the checkpoint whose validation ended patience.
        at: the number of steps after which training stops.
    """

    decided: int
    at: int


@dataclass(frozen=True)
class ValidationSummary:
    """Summary of the validations of a run.

    Args:
        best_step: Step of the best checkpoint, the first of equal ones; 0 where there is none.
        value: Value of the best checkpoint.
        validations_without: validations since the last one that was better by enough.
        decided: the step of the validation that ended patience; None where patience lasts. Later validations do not
            count.
    """

    best_step: int = 0
    value: float = math.nan
    validations_without: int = 0
    decided: int | None = None


def summarize(values: Mapping[int, float], patience: int, min_delta: float) -> ValidationSummary:
    """Return the summary of values by step.

    Args:
        values: higher is better; NaN is never better than another value.
        patience: validations that are not better by enough after which training stops.
        min_delta: a value is better by enough if it exceeds the last value that was by more than this. The best
            checkpoint is the one of the highest value, by any difference.
    """
    summary, best, reference = ValidationSummary(), -math.inf, -math.inf
    for step, value in sorted(values.items()):
        best_step, without = summary.best_step, summary.validations_without + 1
        if value > best:
            best_step, best = step, value
        if value > reference and (reference == -math.inf or value - reference > min_delta):
            reference, without = value, 0
        decided = step if without >= patience else None
        summary = ValidationSummary(best_step, best if best_step else math.nan, without, decided)
        if decided is not None:
            break
    return summary


def record_path(folder: Path, step: int) -> Path:
    """Return the path of the record of a step's checkpoint."""
    return folder / f"step-{step}.json"


def write_record(folder: Path, record: Record) -> None:
    """Write one record; raises `StorageError` where it cannot be written."""
    write_atomically(record_path(folder, record.step), json.dumps(asdict(record), indent=1) + "\n")


def read_record(folder: Path, step: int) -> Record | None:
    """Return the record of a step's checkpoint, if there is one; raises `StorageError` where it is damaged."""
    return _read(record_path(folder, step), Record)


def read_records(folder: Path) -> list[Record]:
    """Return all records by step; raises `StorageError` where one is damaged."""
    steps = [path.stem.removeprefix("step-") for path in folder.glob("step-*.json")]
    records = [read_record(folder, int(step)) for step in steps if step.isdigit()]
    return sorted((record for record in records if record is not None), key=lambda record: record.step)


def write_stop(folder: Path, stop: Stop) -> None:
    """Write the step at which training stops; raises as `write_record` does."""
    write_atomically(folder / STOP, json.dumps(asdict(stop)) + "\n")


def read_stop(folder: Path) -> Stop | None:
    """Return the early stop, if it is decided; raises `StorageError` where the file is damaged."""
    return _read(folder / STOP, Stop)


def remove_later(folder: Path, step: int) -> None:
    """Remove the records of checkpoints after `step`: a run that resumes from there makes them again."""
    for record in read_records(folder):
        if record.step > step:
            remove(record_path(folder, record.step))
    stop = read_stop(folder)
    if stop is not None and stop.decided > step:
        remove(folder / STOP)


def _read(file: Path, kind: type[T]) -> T | None:
    try:
        with disk_errors(file, reading=True):
            return read_json(file, kind, f"remove it to evaluate again, or train again with {setting('fresh', True)}")
    except FileNotFoundError:
        return None
