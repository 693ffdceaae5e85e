"""The simulation of a billion documents: its sections run with few shards and check their own results."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    module = importlib.import_module("scale_simulation")
    monkeypatch.setattr(module, "K", 20)
    monkeypatch.setattr(module, "BATCH", 30)
    return module


def test_the_metadata_of_a_store_go_through(simulation: ModuleType) -> None:
    figures = simulation.manifests(50, 8)
    assert figures["encode: manifest (MB)"] > 0.01
    assert figures["encode: driver, seconds of a shard"] > 0


@pytest.mark.parametrize("nodes", [1, 9])
def test_two_levels_of_merging_give_the_same(simulation: ModuleType, nodes: int) -> None:
    assert simulation.merging(0, nodes)["search: merging, seconds of a key"] > 0


def test_reports_of_shards_are_counted(simulation: ModuleType) -> None:
    assert simulation.reports(1_000, 7)["prepare: reports, bytes of a shard"] >= 0
