"""Checkpoints are written behind the steps' back, one at a time.

1. At a step every worker copies its slices of the state to the processor's memory; that is all a step waits for.
2. One thread a worker writes them: the first worker into the checkpoint, set aside; the others, where the state is
   sharded, each into a committed directory of its own beside it.
3. The first worker's thread waits for the others' parts, moves them in, and commits the whole with one rename; then
   what need not be kept is removed.

So what has a manifest is whole, whoever died. Between steps the workers tell each other, in one collective, who is
still writing, who failed and whether time has passed: every decision is taken by all alike, and a mistake of one
writer ends the next step on all of them.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from raytriever.errors import StorageError
from raytriever.losses.engine.workers import Workers
from raytriever.storage import committed_directory, disk_errors
from raytriever.training.checkpoint import Progression, State, checkpoint_path, prune, write_slices, write_state
from raytriever.training.parallel.model_state import Slice

POLL_SECONDS = 0.02
# How long a run that ends in an error still waits for the parts of workers that may have died.
GRACE_SECONDS = 2.0
_MESSAGE_BYTES = 2048


@dataclass(frozen=True)
class Standing:
    """What all workers know alike at a step.

    Args:
        writing: whether any of them still writes.
        due: whether the first worker's clock asks for a checkpoint.
        seconds: of each worker's own, by rank.
    """

    writing: bool
    due: bool
    seconds: tuple[float, ...]


class Saver:
    """Writes the checkpoints of one run; to be used in a `with` statement, which ends when all is written.

    Args:
        folder: where checkpoints lie, seen by every worker.
        workers: the group; all make every call, in the same order.
        device: where the group's collectives take their tensors.
        keep: newest checkpoints kept beside the best.
        writes: whether this worker has anything to write.
        heard: called on the first worker with the step of a checkpoint that is written, before it is committed.
        retained: the steps of checkpoints that are kept too; asked in the first worker's thread.
    """

    def __init__(
        self,
        folder: Path,
        workers: Workers,
        device: torch.device,
        keep: int,
        writes: bool,
        heard: Callable[[int], None] = lambda step: None,
        retained: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._folder, self._workers, self._device, self._keep = folder, workers, device, keep
        self._heard, self._retained = heard, retained
        table = self._table([float(writes), float(secrets.randbits(40))])
        self._writers = [rank for rank, row in enumerate(table) if row[0]]
        self._token = f"{int(table[0][1]):010x}"  # tells this call's parts from those of one that was killed
        self._buffers: dict[str, Tensor] = {}
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._leaving = False

    def standing(self, due: bool = False, seconds: float = 0.0) -> Standing:
        """Ask all workers how they stand.

        Args:
            due: the first worker's clock; the others' is not heard.
            seconds: this worker's own work of the step.

        Raises:
            StorageError: a worker could not write its part; what stood before still stands.
        """
        writing = self._thread is not None and self._thread.is_alive()
        table = self._table([float(writing), float(due), float(self._error is not None), seconds])
        if any(row[2] for row in table):
            self._fail(next(rank for rank, row in enumerate(table) if row[2]))
        return Standing(any(row[0] for row in table), bool(table[0][1]), tuple(row[3] for row in table))

    def settle(self) -> None:
        """Wait until what was begun stands; raises as `standing` does."""
        while self.standing().writing:
            if self._thread is not None:
                self._thread.join(POLL_SECONDS)

    def save(self, slices: Iterable[Slice], state: State) -> None:
        """Begin a checkpoint of a state, after the one that is being written stands.

        Args:
            slices: of this worker; copied before this returns.
            state: what is written beside them.
        """
        self.settle()
        copied = self._copy(slices)
        if self._workers.rank in (0, *self._writers):
            self._begin(lambda: self._write(copied, state))

    def tidy(self, progression: Progression) -> None:
        """Remove on the first worker what need not be kept; only while nothing is being written."""
        if self._workers.rank == 0:
            prune(self._folder, progression, self._keep, self._retained())

    def make_room(self, slices: Iterable[Slice]) -> None:
        """Have the memory that states are copied to made in the background: the first touch takes longer than a copy.

        Args:
            slices: of this worker, as large as they will be saved.
        """
        alike = [(one.name, one.values) for one in slices]
        self._begin(lambda: self._buffers.update({name: _room_for(values) for name, values in alike}))

    def _copy(self, slices: Iterable[Slice]) -> list[Slice]:
        copied = []
        for one in slices:
            buffer = self._buffers.get(one.name)
            if buffer is None or buffer.numel() != one.values.numel():
                buffer = self._buffers[one.name] = _room_for(one.values)
            buffer.copy_(one.values, non_blocking=True)
            copied.append(replace(one, values=buffer))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return copied

    def _begin(self, work: Callable[[], None]) -> None:
        """Do something in the thread."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # raised where the run asks
                self._error = error

        self._thread = Thread(target=run, name="saver", daemon=True)
        self._thread.start()

    def _write(self, slices: list[Slice], state: State) -> None:
        """This worker's part, or the whole where it is the first."""
        path = checkpoint_path(self._folder, state.progression.step)
        part = self._part(path, self._workers.rank)
        try:
            with disk_errors(path):
                if self._workers.rank == 0:
                    self._commit(slices, state, path)
                else:
                    with committed_directory(part) as aside:
                        write_slices(slices, aside, self._workers.rank, self._workers.size)
        except StorageError as error:
            # A person knows the checkpoint, not where its parts stand meanwhile.
            where = error.where and error.where.replace(str(part), str(path))
            raise StorageError(error.what, where, error.remedy) from error

    def _commit(self, slices: list[Slice], state: State, path: Path) -> None:
        with committed_directory(path, replace=True) as aside:
            write_slices(slices, aside, 0, self._workers.size)
            write_state(state, aside)
            for rank in self._writers:
                if rank:
                    self._take(self._part(path, rank), aside)
            self._heard(state.progression.step)
        self.tidy(state.progression)

    def _take(self, part: Path, aside: Path) -> None:
        """Wait for another worker's part, and move its files here."""
        until = math.inf
        while not part.is_dir():
            if self._leaving:
                until = min(until, time.monotonic() + GRACE_SECONDS)
            if time.monotonic() > until:
                raise StorageError("another worker did not write its part", str(part))
            time.sleep(POLL_SECONDS)
        for file in part.glob("*.safetensors"):
            os.rename(file, aside / file.name)
        shutil.rmtree(part)

    def _part(self, path: Path, rank: int) -> Path:
        return path.with_name(f".{path.name}-part-{rank}-{self._token}")

    def _table(self, row: list[float]) -> list[list[float]]:
        """Every worker's row."""
        if self._workers.size == 1:
            return [row]
        own = torch.tensor([row], dtype=torch.float64, device=self._device)
        table: list[list[float]] = self._workers.gather_values(own).tolist()
        return table

    def _fail(self, rank: int) -> None:
        """Raise on every worker what the thread of one of them raised."""
        error = self._error
        told = error.args if isinstance(error, StorageError) else (repr(error),)
        text = "\n".join(part or "" for part in told).encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\0")
        own = torch.frombuffer(bytearray(text), dtype=torch.uint8)[None].to(self._device)
        heard = bytes(self._workers.gather_values(own)[rank].tolist()).rstrip(b"\0").decode(errors="replace")
        if error is not None and not isinstance(error, StorageError):
            raise error
        what, where, remedy, *_ = [*heard.split("\n"), "", ""]
        raise StorageError(what, where or None, remedy or None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """What was begun is written, so that an interruption costs no more than the steps since."""
        self._leaving = True
        if self._thread is not None:
            self._thread.join()


def _room_for(values: Tensor) -> Tensor:
    room = torch.empty_like(values, device="cpu", pin_memory=values.is_cuda)
    room.view(torch.uint8).numpy().fill(0)  # touched by numpy: torch would start a pool of threads for this one
    return room
