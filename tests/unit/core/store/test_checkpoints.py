"""Checkpoints in a bucket, written by two hosts; and a store that refuses, is away, is silent, or is none."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from object_store import READER, ObjectStore, object_store
from safetensors import safe_open
from torch import nn

from raytriever.api.models import path_of
from raytriever.core.errors import StorageError
from raytriever.core.store import object_stores
from raytriever.core.store.commit import (
    committed_directory,
    complete,
    one_writer,
    push_piece,
    take_piece,
    write_atomically,
)
from raytriever.core.store.disk import check_writable
from raytriever.core.store.remote_folders import SMALL_BYTES, pull
from raytriever.data.formats.file_rows import numbered_rows
from raytriever.experiments.operation.cache_inventory import size_of
from raytriever.losses.distributed import WorkerGroup
from raytriever.models.checkpoint_model import Slice
from raytriever.training.checkpoint import State, checkpoint_path, load_best, resume, write_slices, write_state
from raytriever.training.early_stopping import TrainerState
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


@pytest.mark.parametrize("credentials", [READER, ("nobody", "wrong")])
def test_credentials_that_may_not_write_are_found_first(
    server: ObjectStore,
    machine: Callable[[str], None],
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    credentials: tuple[str, str],
) -> None:
    server.use(monkeypatch, credentials)
    with pytest.raises(StorageError, match=rf"^{uri}: the store refuses \(.*; check the name of the bucket"):
        check_writable(path_of(uri))
    with pytest.raises(StorageError, match=rf"^{uri}: the store refuses"), one_writer(path_of(uri)):
        pass


class _ReportedError(Exception):
    """Ends a wait with the line that it reports."""


def test_a_full_store_is_one_that_answers(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def report(line: str) -> None:
        raise _ReportedError(line)

    def fill() -> None:
        for number in range(50):
            object_stores.write_object(path_of(uri) / str(number), bytes(1 << 20))

    monkeypatch.setattr(object_stores, "_log", report)
    (tmp_path / "store").mkdir()
    with object_store(tmp_path / "store", "-volume.max=1", "-master.volumeSizeLimitMB=1") as full:
        full.use(monkeypatch)
        with pytest.raises(
            _ReportedError, match=r"^s3://bucket: the store answers with an error, as a full store does \("
        ):
            fill()
        monkeypatch.setattr(object_stores, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(StorageError, match=r"the store has answered with errors for .*; free space in it if it is"):
            fill()


def test_a_store_that_is_away_for_some_seconds_is_waited_for(
    server: ObjectStore, machine: Callable[[str], None], uri: str
) -> None:
    write_atomically(path_of(uri) / "a", "1")
    server.pause()
    threading.Timer(2, server.resume).start()
    began = time.monotonic()
    write_atomically(path_of(uri) / "a", "2")
    assert time.monotonic() - began > 1.5
    machine("two")
    complete(path_of(uri))
    assert (path_of(uri) / "a").read_text() == "2"


class _Html(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>no store</html>")

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("state", ["answers HTML", "closed", "silent"])
def test_an_endpoint_that_is_no_store_ends_in_one_line(
    machine: Callable[[str], None],
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: str,
) -> None:
    answers = state == "answers HTML"
    monkeypatch.setattr(object_stores, "FIRST_SECONDS", 8.0 if state == "closed" else 1.0)
    began = time.monotonic()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Html) as server:
        if answers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        if state == "closed":
            server.server_close()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        object_stores._store.cache_clear()
        with pytest.raises(StorageError) as caught:
            check_writable(path_of(uri))
        if answers:
            server.shutdown()
    assert time.monotonic() - began < 60  # a silent server is asked three times, not thirty
    assert state != "closed" or "s3://bucket: the store does not answer (" in capsys.readouterr().err
    where = f"{uri}: is not an object store: " if answers else "s3://bucket: the store has not answered for "
    assert re.match(where + r"[^\n]*; check the endpoint[^\n]*$", str(caught.value))


def test_a_store_that_has_never_answered_is_waited_for_shortly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a command it is a wrong address; in a worker the driver has reached it."""
    monkeypatch.setattr(object_stores, "_answered", set())
    monkeypatch.setattr(object_stores, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(object_stores, "PATIENCE_SECONDS", 0.6)
    failures: list[float] = []

    def refuse() -> None:
        failures.append(time.monotonic())
        raise OSError("Could not connect to server")

    def tries(uri: str, line: str) -> int:
        failures.clear()
        with pytest.raises(StorageError) as caught:
            object_stores.patiently(refuse, uri, None)
        assert str(caught.value).startswith(f"{uri}: the store has not answered for {line}")
        return len(failures)

    first = (
        "0 seconds (Could not connect to server); check the endpoint and the network, then give the same command again"
    )
    assert tries("s3://new", first) == 1
    assert capsys.readouterr().err == ""
    assert object_stores.patiently(lambda: 1, "s3://old", None) == 1
    assert tries("s3://old", "0.01 minutes (Could not connect to server); ") > 1
    assert "s3://old: the store does not answer (Could not connect to server)" in capsys.readouterr().err
    assert tries("s3://new", first) == 1
    object_stores.trust_stores()
    assert tries("s3://new", "0.01 minutes (Could not connect to server); ") > 1


@pytest.mark.slow
def test_a_store_that_goes_silent_while_an_input_is_read_is_waited_for(
    machine: Callable[[str], None], uri: str, server: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    row = b'{"text": "' + b"x" * 1000 + b'"}\n'
    object_stores.write_object(path_of(uri) / "rows.jsonl", 3000 * row)
    read = numbered_rows(f"{uri}/rows.jsonl")
    assert next(read)[0] == 1
    server.pause()
    threading.Timer(14, server.resume).start()  # after the first message
    assert [number for number, _ in read][-1] == 3000
    assert "s3://bucket: the store does not answer (" in capsys.readouterr().err
