"""Find the texts at which an encoder's process dies.

Before each batch an encoder writes the batch number to a mark file, so the next process knows at which batch the
last one died. `find_fatal_texts` then encodes the texts of that batch one by one in a child process; a text that killed
two of them has had its three tries. Each such text costs two processes."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypedDict

from numpy import ndarray

from raytriever.encoding.encode import encode_contents
from raytriever.errors import ModelError, StorageError
from raytriever.interruption import end_with_parent
from raytriever.models.retriever import Retriever, Side
from raytriever.reading.structured import read_json

LOADING = -1  # stands for the batch before the encoder is there


class _Left(TypedDict):
    deaths: list[int]
    examined: list[int]
    killers: dict[str, str]


@dataclass
class CrashRecord:
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
    def of(cls, folder: Path, number: int) -> CrashRecord:
        """The mark of a shard as it was left in the folder of marks, or a new one."""
        return cls.read(folder / f"{number:06d}.json")

    @classmethod
    def read(cls, file: Path) -> CrashRecord:
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


_DEATHS = 2  # of these processes, by one text
MOST = 16  # what kills more often than this is not the texts


def find_fatal_texts(load: Callable[[], Retriever], contents: Sequence[ndarray], side: Side) -> dict[int, str]:
    """The places of the texts that kill, and how.

    Args:
        load: loads the encoder; sent to the processes.
        contents: see `Retriever.contents`.
        side: which tower.

    Raises:
        ModelError: more than `MOST` do, or a process dies before it has an encoder.
    """
    killers: dict[int, str] = {}
    first = died_here = 0
    while first < len(contents):
        process, ours = _start(load, contents[first:], side)
        told = -1  # how many texts are done; -1 while it loads
        try:
            while told < len(contents) - first:
                told = ours.recv()
        except EOFError:
            pass
        finally:
            ours.close()
            process.join()
        if told < 0:
            raise ModelError(f"its process ends with code {process.exitcode}", "loading the encoder", "free memory")
        if told == len(contents) - first:
            break
        died_here = died_here + 1 if told == 0 else 1
        first += told
        if died_here == _DEATHS:
            code = process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            killers[first] = f"kills the encoder's process ({how})"
            first, died_here = first + 1, 0
        if len(killers) > MOST:
            raise ModelError(
                f"{len(killers)} texts of one shard kill its process",
                "the encoder",
                "look at its first death, and mend it",
            )
    return killers


def _start(load: Callable[[], Retriever], contents: Sequence[ndarray], side: Side) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, load, list(contents), side), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _child(connection: Connection, load: Callable[[], Retriever], contents: list[ndarray], side: Side) -> None:
    end_with_parent()
    retriever = load()
    connection.send(0)
    for done, content in enumerate(contents, 1):
        encode_contents(retriever, [content], side)
        connection.send(done)
    connection.close()
