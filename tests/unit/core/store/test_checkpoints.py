"""Checkpoints in a bucket with shards of several MB, written by the workers of two hosts: every host reads all of them.

A host is a folder of copies of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from torch import nn

from raytriever.api.models import path_of
from raytriever.core.errors import StorageError
from raytriever.core.store.commit import committed_directory, complete, push_piece, take_piece
from raytriever.core.store.remote_folders import SMALL_BYTES, pull
from raytriever.experiments.operation.cache_inventory import size_of
from raytriever.losses.distributed import WorkerGroup
from raytriever.models.checkpoint_model import Slice
from raytriever.training.checkpoint import (
    State,
    TrainerState,
    checkpoint_path,
    load_best,
    resume,
    write_slices,
    write_state,
)
from raytriever.training.optimizer_and_schedule import build_optimizer
from raytriever.training.parallel.model_state import replicated_state, restore_replicated

STEP, BEST = 20, 10
CPU = torch.device("cpu")


class Worker(WorkerGroup):
    """A worker that runs after the first one has chosen the checkpoint."""

    def all_reduce(self, value: torch.Tensor, op: str = "sum") -> torch.Tensor:
        return value if self.rank == 0 or value.numel() == 1 else torch.tensor([STEP, 1])


def build(seed: int) -> tuple[nn.Module, torch.optim.AdamW]:
    """Return a model of 4.2 MB after one step."""
    torch.manual_seed(seed)
    model = nn.Linear(1024, 1024)
    optimizer = build_optimizer(model, 0.1, 0.0)
    model(torch.randn(4, 1024)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def half(model: nn.Module, optimizer: torch.optim.AdamW, rank: int) -> list[Slice]:
    """Return the slices that one of two workers has of a sharded model."""
    slices = []
    for part in replicated_state(model, optimizer):
        middle = len(part.values) // 2
        own = slice(middle) if rank == 0 else slice(middle, None)
        if len(part.values[own]):
            slices.append(Slice(part.name, part.values[own].clone(), part.start + (own.start or 0), part.shape))
    return slices


def write(folder: Callable[[], Path], step: int, machine: Callable[[str], None], tmp_path: Path) -> None:
    """Write a checkpoint as two workers do, the first on host `first` and the other on host `second`."""
    model, optimizer = build(step)
    machine("second")
    shard = tmp_path / f"shard-{step}"
    shard.mkdir()
    write_slices(half(model, optimizer, 1), shard, 1, 2)
    assert min(file.stat().st_size for file in shard.iterdir()) > SMALL_BYTES
    push_piece(shard, checkpoint_path(folder(), step), "part-1")
    machine("first")
    uploaded = take_piece(checkpoint_path(folder(), step), "part-1")
    assert uploaded is not None
    with committed_directory(checkpoint_path(folder(), step), entries=uploaded) as aside:
        write_slices(half(model, optimizer, 0), aside, 0, 2)
        write_state(State(TrainerState(STEP, BEST, 0.5), {"data": "letters"}), aside)


@pytest.fixture
def folder(machine: Callable[[str], None], uri: str, tmp_path: Path) -> Callable[[], Path]:
    """Return the folder of the checkpoints of a run on the present host."""

    def on_this_host() -> Path:
        return path_of(uri) / "checkpoints"

    for step in (BEST, STEP):
        write(on_this_host, step, machine, tmp_path)
    return on_this_host


def resumed(folder: Path, rank: int) -> nn.Module:
    pull(folder)  # as a worker does when it joins its driver
    model, optimizer = build(99)
    strategy = SimpleNamespace(load_state=lambda slices: restore_replicated(slices, model, optimizer))
    lines: list[str] = []
    trainer_state = resume(folder, strategy, Worker(rank=rank, size=2), CPU, {"data": "letters"}, lines.append)
    assert trainer_state == TrainerState(STEP, BEST, 0.5)
    assert lines == ([f"Resumed from checkpoint step-{STEP}."] if rank == 0 else [])
    return model


@pytest.mark.parametrize("hosts", [("first", "second"), ("second", "first"), ("third", "fourth")])
def test_every_worker_resumes_on_any_host(
    machine: Callable[[str], None], folder: Callable[[], Path], hosts: tuple[str, str]
) -> None:
    expected = build(STEP)[0].state_dict()
    for rank, host in enumerate(hosts):
        machine(host)
        for name, values in resumed(folder(), rank).state_dict().items():
            assert torch.equal(values, expected[name]), (host, name)


@pytest.mark.parametrize("host", ["first", "second", "third"])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_worker_loads_the_best_weights_on_any_host(
    machine: Callable[[str], None], folder: Callable[[], Path], host: str, rank: int
) -> None:
    machine(host)
    model = build(99)[0]
    load_best(folder(), model, TrainerState(STEP, BEST, 0.5), Worker(rank=rank, size=2), CPU)
    for name, values in build(BEST)[0].state_dict().items():
        assert torch.equal(values, model.state_dict()[name]), name


def test_a_shard_that_is_damaged_on_one_host_is_named_and_nothing_should_go(
    machine: Callable[[str], None], folder: Callable[[], Path]
) -> None:
    machine("third")
    resumed(folder(), 1)
    shard = checkpoint_path(folder(), STEP) / "weights-0-of-2.safetensors"
    times = (shard.stat().st_atime_ns, shard.stat().st_mtime_ns)
    with shard.open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\xff")
    os.utime(shard, ns=times)  # a file with another time is copied again
    with pytest.raises(StorageError, match=r"weights-0-of-2.safetensors: has changed: its SHA-256") as caught:
        resumed(folder(), 1)
    assert "--fresh" not in str(caught.value)
    assert "remove" not in str(caught.value)


def test_the_size_of_a_run_is_that_of_its_objects(
    machine: Callable[[str], None], folder: Callable[[], Path], tmp_path: Path
) -> None:
    model, optimizer = build(STEP)
    sizes = []
    for host in ("first", "third"):
        machine(host)
        pull(folder())
        sizes.append(size_of(folder().parent))
    values = sum(len(part.values) for part in replicated_state(model, optimizer))
    assert 2 * 4 * values < sizes[0] < 2 * 4 * values + 20_000
    assert sizes[0] == sizes[1]


def test_a_model_in_a_folder_named_checkpoints_is_complete(machine: Callable[[str], None], uri: str) -> None:
    path = path_of(uri) / "checkpoints" / "model"
    with committed_directory(path) as aside:
        write_slices(half(*build(1), 0), aside, 0, 2)
    machine("second")
    complete(path_of(uri) / "checkpoints" / "model")
    with safe_open(path_of(uri) / "checkpoints" / "model" / "weights-0-of-2.safetensors", "pt") as tensors:
        assert list(tensors.keys()) == ["bias", "weight"]
