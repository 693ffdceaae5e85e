"""All benchmarks import what there is; that for a GPU runs on a CPU too, with small sizes."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def section(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module(request.param)


def imported_names() -> set[tuple[str, str]]:
    """Return each module of the package and name in it that a benchmark imports, also within its functions."""
    trees = [ast.parse(file.read_text()) for file in BENCHMARKS.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        (node.module, name.name)
        for node in nodes
        if node.module is not None and node.module.startswith("raytriever")
        for name in node.names
    }


def test_benchmarks_import_what_there_is() -> None:
    names = imported_names()
    assert len(names) > 100
    absent = [
        f"{module}.{name}"
        for module, name in sorted(names)
        if not hasattr(importlib.import_module(module), name) and importlib.util.find_spec(f"{module}.{name}") is None
    ]
    assert absent == []


@pytest.mark.fast_every(4)  # of the losses
@pytest.mark.parametrize(
    "section",
    [
        "on_gpu.losses",
        "on_gpu.retrieval",
        *(pytest.param(f"on_gpu.{name}", marks=pytest.mark.slow) for name in ("repeat", "kernels")),
    ],
    indirect=True,
)
def test_small_sizes_run_on_a_cpu(section: ModuleType, tmp_path: Path) -> None:
    ends = {title: end for _, figures in section.cases(CPU, "tiny", tmp_path) for title, end in figures}
    assert all(end.value > 0 for name, end in ends.items() if not name.endswith(("(GB)", "without a kernel")))
    assert all(end.holds for end in ends.values() if end.target == "1")


@pytest.mark.parametrize("section", ["on_gpu.losses"], indirect=True)
def test_the_baselines_are_the_same_loss(section: ModuleType) -> None:
    inputs = section.embeddings(24, 32, CPU)
    stored, streaming = section.stored(*inputs)(), section.streaming(*inputs, block=40)()
    for value, other in zip(stored, streaming, strict=True):
        torch.testing.assert_close(value.float(), other.float(), atol=0.03 * float(value.abs().max()), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("section", ["on_gpu.training"], indirect=True)
def test_both_libraries_train_on_the_same_tokens(section: ModuleType, tmp_path: Path) -> None:
    case = section.CASES["tiny"][0]
    directory = section.write_model(tmp_path, case.shape, CPU)
    rates = section.ours(case, directory, CPU)
    columns = list(section._their_batch(case, directory, 0))
    assert len(columns) == 2 + section.NEGATIVES
    expected = sum(int(column["attention_mask"].sum()) for column in columns)
    texts = [len(column["attention_mask"]) for column in columns]
    assert texts == [case.queries] * len(columns)
    assert expected / case.queries == pytest.approx(rates["tokens_per_second"] / rates["queries_per_second"])
    assert all(rate > 0 for _, rate, _ in section.theirs(case, directory, CPU))


@pytest.mark.parametrize("section", ["gpu"], indirect=True)
def test_a_missing_gpu_is_one_line(section: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        section.main()
    line = "torch finds no CUDA device: use a machine with one, or --device cpu --size tiny"
    assert str(ended.value) == f"benchmarks/gpu.py: {line}"


def sit(name: str, own: dict[str, str]) -> str:
    """Return what a sitting prints."""
    command = ["bash", str(BENCHMARKS / "on_gpu" / "sitting.sh"), name]
    done = subprocess.run(
        command, env={**os.environ, **own}, cwd=BENCHMARKS.parent, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_sittings_on_a_gpu_run_without_one(tmp_path: Path) -> None:
    own = {"DEVICE": "cpu", "SIZE": "tiny", "SHAPE": "tiny", "STRATEGIES": "zero1", "MARK": "not gpu", "WORKERS": "2"}
    own |= {
        "TESTS": "tests/unit/models/test_packed_attention.py",
        "PARTS": "losses:60:mw retrieval:60:search kernels:60:mw",
    }
    own |= {"PYTHON": sys.executable, "OUT": str(tmp_path / "out"), "WORK": str(tmp_path / "work")}
    printed = {name: sit(name, own) for name in ("right", "worth")}
    assert "5 of 5 checks ran" in printed["right"]
    assert re.search(r"\d+ passed in", printed["right"])
    assert "same bits True" in printed["right"], printed["right"]
    assert "exit status" not in printed["worth"], printed["worth"]
    names = {path.name.partition("-20")[0] for path in (tmp_path / "out").glob("gpu-*.json")}
    assert names == {"gpu-losses", "gpu-retrieval", "gpu-kernels"}
