"""A chunk is found under a memory that really is small, and found once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from raytriever.errors import ConfigError
from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.models.config import ModelConfig
from raytriever.models.encoder import set_dropout
from raytriever.models.memory import is_out_of_memory
from raytriever.models.retriever import load_retriever
from raytriever.training.parallel import chunk_size as module
from raytriever.training.parallel.chunk_size import (
    FILE,
    activations,
    agreed,
    find_chunk,
    free_memory,
    trial,
)

CPU = torch.device("cpu")
HERE = "model tiny 1, length 8, device cpu"
UNDER_A_LIMIT = """
import json, resource
from pathlib import Path
import torch
from raytriever.training.parallel import chunk_size as module
torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.ones(1 << 10))
tried = []
def encode(texts):
    tried.append(texts)
    hidden = torch.ones(texts, 1 << 20)[:, : 1 << 20] * weight.sum()  # 8 MiB a text, kept: both factors
    return (hidden * hidden).sum(1, keepdim=True)
torch.autograd.grad(encode(1).sum(), weight)
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, held + ROOM))
tried.clear()
key = "model limited, length 8, device cpu"
try:
    print(json.dumps([module.find_chunk(encode, [weight], 256, torch.device("cpu"), key), tried]))
except Exception as error:
    print(json.dumps([str(error), tried]))
"""


def under_a_limit(room: int, folder: Path) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_LIMIT.replace("ROOM", str(room))],
        env={**os.environ, "RAYTRIEVER_CACHE": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    result: list[object] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_backs_off_where_memory_really_runs_out(tmp_path: Path) -> None:
    chunk, tried = under_a_limit(400 << 20, tmp_path)
    assert tried == [2, 4, 256, 128, 64, 32, 16][: len(tried)]
    assert len(tried) > 3
    assert chunk == tried[-1]
    assert json.loads((tmp_path / FILE).read_text()) == {
        "model limited, length 8, device cpu": [
            chunk,
            256,
            8 << 20,
        ]
    }
    assert under_a_limit(400 << 20, tmp_path) == [chunk, []]  # nothing is tried again


def test_says_when_nothing_fits(tmp_path: Path) -> None:
    logged, _ = under_a_limit(3 << 20, tmp_path)
    assert "not even one text fits" in str(logged)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[nn.Linear, list[int]]:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    return nn.Linear(1000, 1), []


def search(line: tuple[nn.Linear, list[int]], texts: int) -> int | None:
    layer, tried = line

    def encode(count: int) -> torch.Tensor:
        tried.append(count)
        return layer(torch.ones(count, 1000))

    return find_chunk(encode, list(layer.parameters()), texts, CPU, HERE)


def test_all_that_fits_is_not_cached(line: tuple[nn.Linear, list[int]]) -> None:
    assert search(line, 40) is None
    assert line[1] == [2, 4, 40]
    assert search(line, 30) is None  # what held for 40 holds for 30
    assert line[1] == [2, 4, 40]
    assert search(line, 50) is None  # but says nothing of 50
    assert line[1][3:] == [2, 4, 50]


def test_starts_from_the_memory_that_is_free(
    line: tuple[nn.Linear, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_memory", lambda device: 100 * 4000)
    assert search(line, 1000) == 70
    assert line[1] == [2, 4, 70]


def test_a_damaged_memory_remembers_nothing(line: tuple[nn.Linear, list[int]], tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"model tiny')
    assert search(line, 10) is None


def test_other_errors_are_not_taken_for_memory(line: tuple[nn.Linear, list[int]]) -> None:
    layer, _ = line
    with pytest.raises(RuntimeError, match="shapes"):
        find_chunk(lambda count: layer(torch.ones(count, 3)), list(layer.parameters()), 8, CPU, HERE)
    assert not is_out_of_memory(RuntimeError("something else"))
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))


def test_activations_are_what_is_kept() -> None:
    weight = torch.ones(1000, requires_grad=True)
    one = activations(lambda: torch.ones(2, 1000) * weight)
    assert activations(lambda: torch.ones(5, 1000) * weight) - one == 3 * 4000
    assert free_memory(CPU) > 0


def test_workers_agree_on_the_smallest() -> None:
    class Group(WorkerGroup):  # whose other worker found 24
        def all_reduce(self, value: torch.Tensor, op: str = "sum") -> torch.Tensor:
            assert op == "max"
            return value.clamp(min=-24)

    assert agreed(None, 64, Group(size=2), CPU) == 24
    assert agreed(None, 64, ALONE, CPU) is None
    assert agreed(8, 64, ALONE, CPU) == 8


def test_nothing_fits_is_an_error_of_the_user(
    line: tuple[nn.Linear, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_memory", lambda device: 1)

    def encode(count: int) -> torch.Tensor:
        if count == 1:
            raise MemoryError
        return line[0](torch.ones(count, 1000))

    with pytest.raises(ConfigError, match="not even one text fits"):
        find_chunk(encode, list(line[0].parameters()), 8, CPU, HERE)


def test_a_real_encoder_is_tried_without_a_trace(
    tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    set_dropout(retriever, 0.1)
    retriever.train()
    parameters = [parameter for parameter in retriever.parameters() if parameter.requires_grad]
    encode = trial(retriever, 16, "fp32", CPU)
    per_text = (activations(lambda: encode(6)) - activations(lambda: encode(2))) // 4
    monkeypatch.setattr(module, "free_memory", lambda device: 10 * per_text)
    before = torch.get_rng_state()
    result = find_chunk(encode, parameters, 64, CPU, HERE)  # seven tenths of ten texts, but for rounding
    assert result in (6, 7)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in parameters)
