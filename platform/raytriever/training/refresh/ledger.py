"""Rounds of a refresh as recorded on disk, and the table of hard negatives that the batch of each step uses.

1. A round begins at a step, with a snapshot of the weights there. It ends at a later step, with a table that is used
   from some step on, or with a failure.
2. `negatives/rounds.json` holds one entry per round. The file is replaced as a whole before any work on a round and
   before any worker uses its table. The table itself is in `negatives/round-0001/`; it is removed when no checkpoint
   is left from which a run could resume with it.
3. Given these entries, the table of step s is a function of s. A new table begins at a step that no worker has
   prepared yet, so a resumed run makes the same batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raytriever.errors import StorageError, setting
from raytriever.reading.structured import read_json
from raytriever.store.commit import remove, write_atomically
from raytriever.store.disk import disk_errors

ROUNDS = "rounds.json"


@dataclass(frozen=True)
class Round:
    """One round of refresh.

    Args:
        number: from 1; 0 is the table that training began with.
        due: the number of steps after which it was due, a multiple of `--refresh-every`.
        snapshot: the number of steps that its encoder was trained for; more than `due` where it was started again.
        ended: the number of steps done when it ended; None while it is running.
        used_from: the first step, counted from 0, whose batch uses its table; None where it failed.
        digest: Digest of its table.
        reason: why it failed.
        measured: metrics for the tracker.
    """

    number: int
    due: int
    snapshot: int
    ended: int | None = None
    used_from: int | None = None
    digest: str = ""
    reason: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """All rounds of a run in order; at most the last one is running."""

    rounds: tuple[Round, ...] = ()

    @property
    def running_round(self) -> Round | None:
        """The round that has not ended; None where all have."""
        return self.rounds[-1] if self.rounds and self.rounds[-1].ended is None else None

    @property
    def adopted_rounds(self) -> tuple[Round, ...]:
        """The rounds whose tables are used, each from a later step than the round before it."""
        return tuple(one for one in self.rounds if one.used_from is not None)

    def version(self, step: int) -> int:
        """Return the round whose table the batch of `step`, counted from 0, uses; 0 for the first table."""
        return max(
            (one.number for one in self.adopted_rounds if one.used_from is not None and one.used_from <= step),
            default=0,
        )

    def age(self, step: int) -> int:
        """Return the steps between `step` and the weights that mined its negatives; `step` for the first table."""
        return step - max((one.snapshot for one in self.adopted_rounds if one.number <= self.version(step)), default=0)

    @property
    def failures(self) -> int:
        """Number of rounds that ended without a table."""
        return sum(one.ended is not None and one.used_from is None for one in self.rounds)

    def is_due(self, step: int, every: int) -> bool:
        """Return whether a round starts when `step` steps are done.

        A step has at most one round, also where a resumed run repeats the step. It has none where another round was
        running.
        """
        if step == 0 or step % every:
            return False
        return not any(one.due == step or one.due < step < _end(one) for one in self.rounds)

    def with_round_started(self, due: int, snapshot: int) -> Ledger:
        """Return the ledger with one more round, or with the running round started again."""
        finished = self.rounds[:-1] if self.running_round else self.rounds
        return Ledger((*finished, Round(len(finished) + 1, due, snapshot)))

    def without_later(self, step: int) -> Ledger:
        """Return the ledger for a run that resumes after `step`, without a running round that was due later."""
        running = self.running_round
        return Ledger(self.rounds[:-1]) if running and running.due > step else self

    def with_round_ended(self, **fields: Any) -> Ledger:
        """Return the ledger with the running round ended; `fields` are fields of `Round`."""
        return Ledger((*self.rounds[:-1], replace(self.rounds[-1], **fields)))

    def write(self, folder: Path) -> None:
        """Replace the file; raises `StorageError` where it cannot be written."""
        write_atomically(folder / ROUNDS, json.dumps([asdict(one) for one in self.rounds], indent=1) + "\n")


def read_ledger(folder: Path) -> Ledger:
    """Return the rounds of an interrupted run; none where there is no file.

    Raises:
        StorageError: the file is damaged.
    """
    file = folder / ROUNDS
    if not file.is_file():
        return Ledger()
    with disk_errors(file, reading=True):
        rounds = read_json(file, list[Round], f"train again with {setting('fresh', True)}")
    for number, one in enumerate(rounds, 1):
        if one.number != number:
            raise StorageError(
                f"is damaged or changed: round {number} is missing",
                str(file),
                f"train again with {setting('fresh', True)}",
            )
    return Ledger(tuple(rounds))


def round_path(folder: Path, number: int) -> Path:
    """Return the path of the table of a round."""
    return folder / f"round-{number:04d}"


def remove_tables(folder: Path, checkpoints: Path) -> None:
    """Remove the tables that are used by no run that resumes from one of the checkpoints.

    Raises:
        StorageError: the ledger is damaged.
    """
    steps = [int(path.name[5:]) for path in checkpoints.glob("step-*") if path.name[5:].isdigit()]
    needed = read_ledger(folder).version(min(steps, default=0))
    for path in folder.glob("round-*"):
        if path.name[6:].isdigit() and int(path.name[6:]) < needed:
            remove(path)


def _end(one: Round) -> float:
    return float("inf") if one.ended is None else one.ended
