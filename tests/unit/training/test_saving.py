"""Checkpoints are written behind the steps, one at a time, whole or not at all."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread

import pytest
import torch
from thread_workers import Threads, on_workers

from raytriever.core.errors import StorageError
from raytriever.losses.distributed import ALONE
from raytriever.models.checkpoint_model import Slice, whole_tensors
from raytriever.training import checkpoint_writer as saving
from raytriever.training.checkpoint import OPTIMIZER, WEIGHTS, State, newest_checkpoint, read_slices, read_state
from raytriever.training.checkpoint_writer import CheckpointWriter
from raytriever.training.early_stopping import TrainerState

CPU = torch.device("cpu")


def together(size: int, run: Callable[[Threads], object]) -> list[object]:
    """What each worker answers, or raises."""

    def guarded(worker: Threads) -> object:
        try:
            return run(worker)
        except Exception as error:
            return error

    return on_workers(size, guarded)


def slices(value: float, rank: int = 0, size: int = 1, count: int = 6000) -> list[Slice]:
    """This worker's fraction of one weight and one moment, all of one value."""
    own = count // size
    return [
        Slice(name, torch.full((own,), value), rank * own, (2, count // 2)) for name in ("weight", "weight:exp_avg")
    ]


def state(step: int, best: int = 0) -> State:
    return State(TrainerState(step, best or step, 0.5), {"data": "abc"})


def saved_value(path: Path) -> float:
    """The one value of a checkpoint."""
    results = dict(whole_tensors(read_slices(path, WEIGHTS, OPTIMIZER)))
    assert [(name, tuple(tensor.shape)) for name, tensor in results.items()] == [
        ("weight", (2, 3000)),
        ("weight:exp_avg", (2, 3000)),
    ]
    (value,) = {float(item) for tensor in results.values() for item in tensor.unique()}
    return value


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Event:
    """No slice is written before this is set."""
    gate, write = Event(), saving.write_slices

    def wait(*arguments: object) -> None:
        assert gate.wait(60)
        write(*arguments)

    monkeypatch.setattr(saving, "write_slices", wait)
    return gate


def test_a_save_is_of_its_moment_and_holds_no_step_up(tmp_path: Path, held_back: Event) -> None:
    mine = slices(1.0)
    with CheckpointWriter(tmp_path, ALONE, CPU, 1, has_state=True) as writer:
        writer.save(mine, state(1))
        for piece in mine:
            piece.values.fill_(2.0)  # the next step, while nothing is written yet
        assert writer.status().is_writing
        assert newest_checkpoint(tmp_path) == (None, [])
        held_back.set()
        writer.wait()
        assert not writer.status().is_writing
        assert saved_value(tmp_path / "step-1") == 1.0
        writer.save(mine, state(2))
    assert saved_value(tmp_path / "step-2") == 2.0  # leaving waits for what was begun
    assert read_state(tmp_path / "step-2") == state(2)


def test_a_checkpoint_is_committed_when_its_events_are_stored(tmp_path: Path) -> None:
    stored = Event()

    def events(step: int) -> None:
        assert step == 4
        assert stored.wait(60)

    with CheckpointWriter(tmp_path, ALONE, CPU, 1, True, events) as writer:
        writer.save(slices(1.0), state(4))
        time.sleep(0.2)
        assert writer.status().is_writing
        assert not (tmp_path / "step-4").exists()
        stored.set()
        writer.wait()
        assert saved_value(tmp_path / "step-4") == 1.0


def test_a_checkpoint_whose_events_are_not_stored_is_not_committed(tmp_path: Path) -> None:
    def events(step: int) -> None:
        raise RuntimeError("the driver listens no more")

    with CheckpointWriter(tmp_path, ALONE, CPU, 1, True, events) as writer:
        writer.save(slices(1.0), state(4))
        with pytest.raises(RuntimeError, match="listens no more"):
            writer.wait()
    assert newest_checkpoint(tmp_path)[0] is None


def test_one_is_written_at_a_time(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, ALONE, CPU, 10, has_state=True) as writer:
        for step in range(1, 8):
            writer.save(slices(float(step)), state(step))
            # The copy is made in memory that the one before was written from.
            for earlier in range(1, step):
                assert saved_value(tmp_path / f"step-{earlier}") == earlier
    assert saved_value(tmp_path / "step-7") == 7


def test_all_workers_get_the_same_clock_and_know_what_each_took() -> None:
    def run(workers: Threads) -> tuple[list[bool], tuple[float, ...]]:
        with CheckpointWriter(Path("none"), workers, CPU, 1, has_state=True) as writer:
            due = [writer.status(is_due=workers.rank == first).is_due for first in (0, 1, 2)]
            return due, writer.status(seconds=0.5 + workers.rank).seconds

    assert together(2, run) == [([True, False, False], (0.5, 1.5))] * 2


@pytest.mark.parametrize("writers", [(True, True, True), (True, False, True), (True, False, False)])
def test_workers_write_one_checkpoint_together(tmp_path: Path, writers: tuple[bool, ...]) -> None:
    places = [rank for rank, writes in enumerate(writers) if writes]

    def run(workers: Threads) -> None:
        writes = writers[workers.rank]
        with CheckpointWriter(tmp_path, workers, CPU, 1, writes) as writer:
            for step in (1, 2):
                mine = slices(float(step), places.index(workers.rank), len(places)) if writes else ()
                writer.save(mine, state(step))
            writer.wait()
            # Every worker sees it stand when it goes on.
            assert saved_value(tmp_path / "step-2") == 2.0

    assert together(3, run) == [None] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]
    assert len(list((tmp_path / "step-2").glob("weights-*"))) == len(places)


def test_nothing_is_committed_before_every_part_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, write = Event(), saving.write_slices

    def wait(mine: Iterable[Slice], folder: Path, rank: int, size: int) -> None:
        assert rank == 0 or gate.wait(60)
        write(mine, folder, rank, size)

    monkeypatch.setattr(saving, "write_slices", wait)

    def run(workers: Threads) -> None:
        with CheckpointWriter(tmp_path, workers, CPU, 1, has_state=True) as writer:
            writer.save(slices(1.0, workers.rank, 2), state(1))
            for _ in range(20):
                assert writer.status().is_writing
                assert newest_checkpoint(tmp_path) == (None, [])
            gate.set()
            writer.wait()
            assert saved_value(tmp_path / "step-1") == 1.0

    assert together(2, run) == [None] * 2


def test_what_one_worker_could_not_write_ends_all_and_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "GRACE_SECONDS", 0.1)
    write = saving.write_slices

    def fail(mine: list[Slice], folder: Path, rank: int, size: int) -> None:
        write(mine, folder, rank, size)
        if rank == 1 and float(mine[0].values[0]) == 2.0:
            raise OSError(28, "No space left on device", str(folder / "weights"))

    monkeypatch.setattr(saving, "write_slices", fail)

    def run(workers: Threads) -> None:
        with CheckpointWriter(tmp_path, workers, CPU, 1, has_state=True) as writer:
            for step in (1, 2):
                writer.save(slices(float(step), workers.rank, 2), state(step))
            for _ in range(500):
                writer.status()
                time.sleep(0.01)

    logged = together(2, run)
    assert [type(error) for error in logged] == [StorageError] * 2
    assert {str(error) for error in logged} == {
        f"host {socket.gethostname()}: {tmp_path}/step-2: no space left on the disk; free some space or write to "
        "another disk"
    }
    assert saved_value(tmp_path / "step-1") == 1.0
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-1", [])


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_gpus_buffers_are_pinned_before_the_next_step(
    name: str, cuda: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA may launch nothing while a thread pins memory; the first touch of other memory may take its time."""
    device, threads, allocate = cuda if name == "cuda" else CPU, list[str](), saving._buffer_for

    def note(values: torch.Tensor) -> torch.Tensor:
        threads.append(current_thread().name)
        return allocate(values)

    monkeypatch.setattr(saving, "_buffer_for", note)
    mine = [replace(piece, values=piece.values.to(device)) for piece in slices(3.0)]
    with CheckpointWriter(tmp_path, ALONE, device, 1, has_state=True) as writer:
        writer.allocate_buffers(mine)
        writer.wait()
        writer.save(mine, state(1))
    assert threads == [current_thread().name if name == "cuda" else "saver"] * len(mine)
    assert saved_value(tmp_path / "step-1") == 3.0


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    with CheckpointWriter(folder, ALONE, CPU, 1, has_state=True) as writer:
        if small_disk.is_mount():
            writer.save(slices(1.0, count=60), state(1))
            writer.wait()
        writer.save(slices(2.0, count=60000), state(2, best=1))
        with pytest.raises(StorageError, match=r"checkpoints/step-2: no space left on the disk; free some space"):
            writer.wait()
    if small_disk.is_mount():
        assert newest_checkpoint(folder) == (folder / "step-1", [])
        assert [path.name for path in folder.iterdir()] == ["step-1"]
    else:
        assert not list(folder.iterdir())
