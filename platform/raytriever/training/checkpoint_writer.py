"""Writer of checkpoints, in a thread, while training continues.

1. At a step, every worker copies its slices of the state to CPU memory. The step waits for this copy only.
2. One thread of each worker writes its copies. The first worker writes into a hidden directory. If
   the state is sharded, each other worker commits a directory of its own next to the hidden one.
3. The first worker's thread waits for the shards of the others, moves them into its directory, and commits the
   checkpoint with one rename. Then it removes the checkpoints that need not be kept.

So a checkpoint with a manifest is complete, even if a process died. After each step, the workers exchange in one
collective whether they are writing, have failed, or need a checkpoint. So all workers decide alike, and an error of
one writer ends the next step on all workers."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import Tensor

from raytriever.core.errors import StorageError, disk_errors
from raytriever.core.store.commit import FileEntry, committed_directory, push_piece, take_piece
from raytriever.core.store.object_stores import address_of
from raytriever.losses.distributed import WorkerGroup
from raytriever.models.checkpoint_model import Slice
from raytriever.training.background_jobs import all_rows, all_texts
from raytriever.training.checkpoint import State, checkpoint_path, prune, write_slices, write_state
from raytriever.training.early_stopping import TrainerState

T = TypeVar("T")
POLL_SECONDS = 0.02
GRACE_SECONDS = 2.0  # at its end, a run waits this long for the shards of other workers, which may have died


@dataclass(frozen=True)
class WriterStatus:
    """Status that all workers know after a step."""

    is_writing: bool  # True if at least one worker is writing
    is_due: bool  # True if a checkpoint is due by the first worker's clock
    seconds: tuple[float, ...]  # seconds of each worker's own work in the step, by rank


class CheckpointWriter:
    """Writer of the checkpoints of one run. Use it in a `with` statement. At its end, all checkpoints are written.

    Args:
        folder: folder of the checkpoints, shared by all workers.
        workers: group whose collectives use CPU tensors; all workers make every call in the same order.
        device: device of the state.
        keep: number of newest checkpoints to keep in addition to the best.
        has_state: True if this worker has state to write.
        before_commit: called on the first worker with a step whose checkpoint is written but not yet committed.
        retained_steps: returns the steps of other checkpoints to keep; called in the first worker's thread.
    """

    def __init__(
        self,
        folder: Path,
        workers: WorkerGroup,
        device: torch.device,
        keep: int,
        has_state: bool,
        before_commit: Callable[[int], None] = lambda step: None,
        retained_steps: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._folder, self._workers, self._device, self._keep = folder, workers, device, keep
        self._before_commit, self._retained_steps = before_commit, retained_steps
        table = all_rows([float(has_state), float(secrets.randbits(40))], workers)
        self._writers = [rank for rank, row in enumerate(table) if row[0]]
        self._token = f"{int(table[0][1]):010x}"  # distinguishes this process's shards from those of a killed process
        self._buffers: dict[str, Tensor] = {}
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._is_leaving = False

    def status(self, is_due: bool = False, seconds: float = 0.0) -> WriterStatus:
        """Exchange the status of all workers.

        Args:
            is_due: True if a checkpoint is due by this worker's clock; only the first worker's value is used.
            seconds: seconds of this worker's own work in the step.

        Raises:
            StorageError: a worker could not write its shard; earlier checkpoints are unchanged.
        """
        is_writing = self._thread is not None and self._thread.is_alive()
        row = [float(is_writing), float(is_due), float(self._error is not None), seconds]
        table = all_rows(row, self._workers)
        if any(row[2] for row in table):
            self._fail(next(rank for rank, row in enumerate(table) if row[2]))
        return WriterStatus(any(row[0] for row in table), bool(table[0][1]), tuple(row[3] for row in table))

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is committed. Raises the errors of `status`."""
        while self.status().is_writing:
            if self._thread is not None:
                self._thread.join(POLL_SECONDS)

    def save(self, slices: Iterable[Slice], state: State) -> None:
        """Wait until the previous checkpoint is committed, then start to write a new one."""
        self.wait()
        copied = self._copy(slices)
        if self._workers.rank in (0, *self._writers):
            self._start(lambda: self._write(copied, state))

    def prune(self, trainer_state: TrainerState) -> None:
        """On the first worker, remove checkpoints that need not be kept. Call it only while none is being written."""
        if self._workers.rank == 0:
            prune(self._folder, trainer_state, self._keep, self._retained_steps())

    def allocate_buffers(self, slices: Iterable[Slice]) -> None:
        """Allocate the CPU memory for copies of the state in advance, because touching new pages is slower than a copy.

        Buffers for GPU tensors are pinned before this method returns; other buffers are allocated in the thread."""
        values_by_name = {piece.name: piece.values for piece in slices}
        # The CUDA driver holds locks while any thread pins memory. A step that is launched meanwhile would wait until
        # gigabytes are pinned. So the loop calls this between two steps, while the GPU still computes the first step.
        pinned = {name: values for name, values in values_by_name.items() if values.is_cuda}
        self._buffers.update({name: _buffer_for(values) for name, values in pinned.items()})
        others = {name: values for name, values in values_by_name.items() if name not in pinned}
        if others:
            self._start(lambda: self._buffers.update({name: _buffer_for(values) for name, values in others.items()}))

    def _copy(self, slices: Iterable[Slice]) -> list[Slice]:
        copied = []
        for piece in slices:
            buffer = self._buffers.get(piece.name)
            if buffer is None or buffer.numel() != piece.values.numel():
                buffer = self._buffers[piece.name] = _buffer_for(piece.values)
            buffer.copy_(piece.values, non_blocking=True)
            copied.append(replace(piece, values=buffer))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return copied

    def _start(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread. If `work` raises an error, the next call of `status` raises it."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        self._thread = Thread(target=run, name="saver", daemon=True)
        self._thread.start()

    def _write(self, slices: list[Slice], state: State) -> None:
        """Write this worker's shard; the first worker also collects the shards and commits the checkpoint."""
        path = checkpoint_path(self._folder, state.trainer_state.step)
        shard = self._shard(path, self._workers.rank)
        try:
            with disk_errors(path):
                if self._workers.rank == 0:
                    self._commit(slices, state, path)
                elif address_of(path) is not None:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    with TemporaryDirectory(dir=self._folder, prefix=".shard-") as folder:
                        write_slices(slices, Path(folder), self._workers.rank, self._workers.size)
                        push_piece(Path(folder), path, shard.name)
                else:
                    with committed_directory(shard) as hidden:
                        write_slices(slices, hidden, self._workers.rank, self._workers.size)
        except StorageError as error:
            # Errors name the checkpoint, which the user knows, not the temporary path of a shard.
            named = error.at(error.where and error.where.replace(shard.name, path.name))
            # The error is raised on all workers, so it must name the host that could not write.
            raise (named.on_host(socket.gethostname()) if self._workers.size > 1 else named) from error

    def _commit(self, slices: list[Slice], state: State, path: Path) -> None:
        uploaded: dict[str, FileEntry] = {}  # files that other workers have already put into the object store
        with committed_directory(path, replace=True, entries=uploaded) as hidden:
            write_slices(slices, hidden, 0, self._workers.size)
            write_state(state, hidden)
            for rank in self._writers:
                if rank and address_of(path) is not None:
                    uploaded.update(self._wait_for(partial(take_piece, path, self._shard(path, rank).name)))
                elif rank:
                    self._move_shard(self._shard(path, rank), hidden)
            self._before_commit(state.trainer_state.step)
        self.prune(state.trainer_state)

    def _move_shard(self, shard: Path, folder: Path) -> None:
        self._wait_for(lambda: shard.is_dir() or None)
        for file in shard.glob("*.safetensors"):
            os.rename(file, folder / file.name)
        shutil.rmtree(shard)

    def _wait_for(self, look: Callable[[], T | None]) -> T:
        """Call `look` until it returns what another worker has written, instead of None. Return that value."""
        until, pause = math.inf, POLL_SECONDS
        while (found := look()) is None:
            if self._is_leaving:
                until = min(until, time.monotonic() + GRACE_SECONDS)
            if time.monotonic() > until:
                raise StorageError("another worker did not write its shard of the checkpoint")
            time.sleep(pause)
            pause = min(1.5 * pause, 1.0)
        return found

    def _shard(self, path: Path, rank: int) -> Path:
        return path.with_name(f".{path.name}-part-{rank}-{self._token}")

    def _fail(self, rank: int) -> None:
        """Raise the error of worker `rank`'s thread on every worker."""
        error = self._error
        fields = (error.what, error.where, error.remedy) if isinstance(error, StorageError) else (repr(error),)
        received = all_texts("\n".join(field or "" for field in fields), self._workers)[rank]
        if error is not None and not isinstance(error, StorageError):
            raise error
        what, where, remedy, *_ = [*received.split("\n"), "", ""]
        raise StorageError(what, where or None, remedy or None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Finish writing, so that an interruption loses only the steps since the last checkpoint."""
        self._is_leaving = True
        if self._thread is not None:
            self._thread.join()


def _buffer_for(values: Tensor) -> Tensor:
    if values.is_cuda:
        return torch.empty_like(values, device="cpu", pin_memory=True)  # pinning touches the pages
    buffer = torch.empty_like(values, device="cpu")
    buffer.view(torch.uint8).numpy().fill(0)  # numpy, because torch would start a pool of threads for this thread
    return buffer
