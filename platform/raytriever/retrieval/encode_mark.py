"""What the processes that die over a shard leave behind, so that the next one knows at which batch that was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from raytriever.errors import StorageError
from raytriever.reading.structured import read_json

LOADING = -1  # stands for the batch before the encoder is there


class _Left(TypedDict):
    deaths: list[int]
    examined: list[int]
    killers: dict[str, str]


@dataclass
class Mark:
    """What dying processes leave of a shard.

    Args:
        file: where.
        deaths: the batch at hand of each process that died.
        examined: the batches whose texts were tried one by one since.
        killers: rows of the shard that kill, and how.
    """

    file: Path
    deaths: list[int] = field(default_factory=list)
    examined: list[int] = field(default_factory=list)
    killers: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, number: int) -> Mark:
        """The mark of a shard as it was left in the folder of marks, or a new one."""
        return cls.read(folder / f"{number:06d}.json")

    @classmethod
    def read(cls, file: Path) -> Mark:
        """What the file says, if it is there."""
        mark = cls(file)
        with suppress(OSError, StorageError):
            left = read_json(mark.file, _Left, "encode again")
            mark.deaths, mark.examined = left["deaths"], left["examined"]
            mark.killers = {int(row): why for row, why in left["killers"].items() if row.isdecimal()}
        return mark

    def forgive_loading(self) -> None:
        """A new attempt may have more memory: deaths before the encoder was there count no more."""
        self._write([batch for batch in self.deaths if batch != LOADING])

    def unexamined(self, batches: int) -> list[int]:
        """The batches, of so many, at which a process died and whose texts were not looked at."""
        return sorted({batch for batch in self.deaths if 0 <= batch < batches} - set(self.examined))

    @contextmanager
    def at(self, batch: int) -> Iterator[None]:
        """Leave the mark; what ends in this process by an exception was no death."""
        self.leave(batch)
        try:
            yield
        except BaseException:
            self._write(self.deaths)
            raise

    def leave(self, batch: int) -> None:
        """Take note that a batch is at hand."""
        self._write([*self.deaths, batch])

    def remove(self) -> None:
        """The shard stands."""
        self.file.unlink(missing_ok=True)

    def _write(self, deaths: list[int]) -> None:
        # Not synced, as it is about the death of processes, and whole or absent, as they die at any time.
        aside = self.file.with_suffix(".aside")
        aside.write_text(json.dumps({"deaths": deaths, "examined": self.examined, "killers": self.killers}))
        aside.replace(self.file)
