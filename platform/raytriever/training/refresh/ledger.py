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
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from raytriever.errors import StorageError
from raytriever.reading.structured import read_json
from raytriever.storage import disk_errors, write_atomically
from raytriever.training.batches import BatchSource

ROUNDS = "rounds.json"


@dataclass(frozen=True)
class Round:
    """One refresh.

    Args:
        number: from 1; 0 stands for the table that training began with.
        due: the step after which it was to begin, a multiple of `--refresh-every`.
        snapshot: the steps that its encoder had been trained for; more than `due` where it was begun again.
        ended: the steps done when it was decided what became of it; None while it is under way.
        used_from: the first step, counted from 0, whose batch draws from its table; None where it failed.
        digest: of its table.
        reason: why it failed.
        measured: what the tracker is told of it.
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
    """All rounds of a run, in their order; at most the last one is under way."""

    rounds: tuple[Round, ...] = ()

    @property
    def under_way(self) -> Round | None:
        """The round that has not ended."""
        return self.rounds[-1] if self.rounds and self.rounds[-1].ended is None else None

    @property
    def taken(self) -> tuple[Round, ...]:
        """The rounds whose tables are used, each from a later step than the one before."""
        return tuple(one for one in self.rounds if one.used_from is not None)

    def version(self, step: int) -> int:
        """The round whose table the batch of `step`, counted from 0, draws from; 0 for the first table."""
        return max((one.number for one in self.taken if one.used_from is not None and one.used_from <= step), default=0)

    def age(self, step: int) -> int:
        """Steps from the weights that found what the batch of `step` draws from; from the first for the first table."""
        return step - max((one.snapshot for one in self.taken if one.number <= self.version(step)), default=0)

    @property
    def failures(self) -> int:
        """Rounds that ended without a table."""
        return sum(one.ended is not None and one.used_from is None for one in self.rounds)

    def is_due(self, step: int, every: int) -> bool:
        """Whether a round is to begin when `step` steps are done.

        A step that has its round has had it, also where the run goes through the step again; one at which another
        round was under way has none.
        """
        if step == 0 or step % every:
            return False
        return not any(one.due == step or one.due < step < _end(one) for one in self.rounds)

    def begun(self, due: int, snapshot: int) -> Ledger:
        """With one more round, or with the one that is under way begun again."""
        done = self.rounds[:-1] if self.under_way else self.rounds
        return Ledger((*done, Round(len(done) + 1, due, snapshot)))

    def without_later(self, step: int) -> Ledger:
        """As a run that goes on after `step` sees it: a round that had begun later and not ended has not begun."""
        under_way = self.under_way
        return Ledger(self.rounds[:-1]) if under_way and under_way.due > step else self

    def ended(self, **found: Any) -> Ledger:
        """With what became of the round that is under way, by the fields of `Round`."""
        return Ledger((*self.rounds[:-1], replace(self.rounds[-1], **found)))

    def write(self, folder: Path) -> None:
        """Replace the file; raises `StorageError` where the disk does not take it."""
        write_atomically(folder / ROUNDS, json.dumps([asdict(one) for one in self.rounds], indent=1) + "\n")


def read_ledger(folder: Path) -> Ledger:
    """The rounds of an interrupted run; none where there is no file.

    Raises:
        StorageError: the file is not what was written.
    """
    file = folder / ROUNDS
    if not file.is_file():
        return Ledger()
    with disk_errors(file, reading=True):
        rounds = read_json(file, list[Round], "train again with --fresh")
    for number, one in enumerate(rounds, 1):
        if one.number != number:
            raise StorageError(f"is torn or changed: round {number} is missing", str(file), "train again with --fresh")
    return Ledger(tuple(rounds))


def round_path(folder: Path, number: int) -> Path:
    """Where the table of a round stands."""
    return folder / f"round-{number:04d}"


def remove_tables(folder: Path, checkpoints: Path) -> None:
    """Remove the tables that no run draws from any more, whichever checkpoint there is it goes on from.

    Raises:
        StorageError: the record is torn.
    """
    steps = [int(path.name[5:]) for path in checkpoints.glob("step-*") if path.name[5:].isdigit()]
    needed = read_ledger(folder).version(min(steps, default=0))
    for path in folder.glob("round-*"):
        if path.name[6:].isdigit() and int(path.name[6:]) < needed:
            shutil.rmtree(path, ignore_errors=True)


def _end(one: Round) -> float:
    return float("inf") if one.ended is None else one.ended


class _Version(NamedTuple):
    first: int
    source: BatchSource


class Versions:
    """Sources by the first step that draws from them; read by the loader's thread while the loop adds to them.

    Args:
        source: of step 0.
    """

    def __init__(self, source: BatchSource) -> None:
        # Replaced whole: a reader sees the old versions or the new ones.
        self._all: tuple[_Version, ...] = (_Version(0, source),)

    @property
    def newest(self) -> BatchSource:
        """The source of the last version there is."""
        return self._all[-1].source

    def at(self, step: int) -> BatchSource:
        """The source of the batch of `step`."""
        return next(version.source for version in reversed(self._all) if version.first <= step)

    def add(self, first: int, source: BatchSource) -> None:
        """A version from step `first` on; what no step from the next one on will draw from may be forgotten."""
        if first < self._all[-1].first:
            raise ValueError(f"a version from step {first} behind one from step {self._all[-1].first}")
        self._all = (*(version for version in self._all if version.first < first), _Version(first, source))

    def forget(self, step: int) -> None:
        """Drop what only steps before `step` drew from."""
        later = [number for number, version in enumerate(self._all) if version.first <= step]
        self._all = self._all[later[-1] :]
