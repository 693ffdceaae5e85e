"""The benchmark for a GPU also runs on a CPU, with a small encoder."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_large_steps_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    large = importlib.import_module("train_large")
    found = large.measured(torch.device("cpu"), large.SIZES["tiny"], "bf16")
    assert found["raytriever, examples a second"].value > 0
    rate = found["raytriever, tokens a second"].value / found["raytriever, examples a second"].value
    assert rate == pytest.approx(32 + 6 * 128)
