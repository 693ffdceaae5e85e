"""Find the texts that kill an encoder's process.

Before each batch an encoder writes to a crash record which batches it encodes from then on, so the next process knows
at which batches the last one died. `find_fatal_texts` then encodes their texts one by one in a child process. A text
that kills two child processes has had three tries. Each such text costs two processes."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Collection, Iterator, Sequence
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
from raytriever.models.retriever import Retriever
from raytriever.prompts import Side
from raytriever.reading.structured import read_json

LOADING = -1  # batch number while the encoder is loading
_DEATHS = 2  # child processes that a text may kill
MOST = 16  # a larger number of fatal texts has another cause


class _Content(TypedDict):
    deaths: list[int]
    examined: list[int]
    killers: dict[str, str]


@dataclass
class CrashRecord:
    """Record of the processes that died while they encoded a shard.

    Args:
        deaths: numbers of the batches at which processes died.
        examined: batches whose texts were then encoded one by one.
        killers: rows of the shard that kill the process, with the reason.
    """

    file: Path
    deaths: list[int] = field(default_factory=list)
    examined: list[int] = field(default_factory=list)
    killers: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, number: int) -> CrashRecord:
        """Read the record of a shard from the folder of records, or create a new one."""
        return cls.read(folder / f"{number:06d}.json")

    @classmethod
    def read(cls, file: Path) -> CrashRecord:
        """Read a record; it is empty if the file does not exist or is damaged."""
        record = cls(file)
        with suppress(OSError, StorageError):
            content = read_json(record.file, _Content, "encode again")
            record.deaths, record.examined = content["deaths"], content["examined"]
            record.killers = {int(row): reason for row, reason in content["killers"].items() if row.isdecimal()}
        return record

    def forget_loading(self) -> None:
        """Remove deaths while the encoder was loading, because a new attempt may have more memory."""
        self._write([batch for batch in self.deaths if batch != LOADING])

    def unexamined_batches(self, batches: int) -> list[int]:
        """Return the batches, out of `batches`, that killed a process and were not examined yet."""
        return sorted({batch for batch in self.deaths if 0 <= batch < batches} - set(self.examined))

    @contextmanager
    def recording(self, batch: int) -> Iterator[None]:
        """Record a batch; an exception in this process removes the entry, because it is no death."""
        self.record([batch])
        try:
            yield
        except BaseException:
            self._write(self.deaths)
            raise

    def record(self, batches: Collection[int]) -> None:
        """Record that these batches are encoded from now on."""
        self._write([*self.deaths, *batches])

    def remove(self) -> None:
        """Delete the record, because the shard is committed."""
        self.file.unlink(missing_ok=True)

    def _write(self, deaths: list[int]) -> None:
        # Not synced: only processes die, not the machine. Renamed: a process may die while it writes.
        temporary = self.file.with_suffix(".aside")
        temporary.write_text(json.dumps({"deaths": deaths, "examined": self.examined, "killers": self.killers}))
        temporary.replace(self.file)


def find_fatal_texts(load: Callable[[], Retriever], contents: Sequence[ndarray], side: Side) -> dict[int, str]:
    """Return the indices of the texts that kill the encoder's process, with the reason; `load` is sent to processes.

    Raises:
        ModelError: more than `MOST` texts do, or a process dies while it loads the encoder.
    """
    killers: dict[int, str] = {}
    first = deaths = 0
    while first < len(contents):
        process, connection = _start(load, contents[first:], side)
        done = -1  # number of encoded texts; -1 while the encoder is loading
        try:
            while done < len(contents) - first:
                done = connection.recv()
        except EOFError:
            pass
        finally:
            connection.close()
            process.join()
        if done < 0:
            reason = f"the process ended with code {process.exitcode}"
            raise ModelError(reason, "loading the encoder", "free some memory")
        if done == len(contents) - first:
            break
        deaths = deaths + 1 if done == 0 else 1
        first += done
        if deaths == _DEATHS:
            code = process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            killers[first] = f"kills the encoder's process ({how})"
            first, deaths = first + 1, 0
        if len(killers) > MOST:
            raise ModelError(
                f"{len(killers)} texts of one shard kill its process",
                "the encoder",
                "correct the cause of the first death",
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
