"""Chat-completions services of the test's own, and jobs that ask them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from beir import write_beir


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    """A data set in BEIR layout: of each of 40 topics four passages, the later the longer, and a query that shares its
    name with them. People judged the first passage of a topic relevant, and of the first ten topics the last 0."""
    rng = np.random.default_rng(3)
    names = ["".join(rng.choice(list("abcdefghij"), 7)) for _ in range(40)]
    passages = [
        {"_id": f"d{i}-{j}", "title": "", "text": f"{name} no {j}" + " and so on" * j}
        for i, name in enumerate(names)
        for j in range(4)
    ]
    judged = {
        split: [(i, f"{i}-0") for i in members] + [(i, f"{i}-3", 0) for i in members if i < 10]
        for split, members in {"train": range(24), "dev": range(24, 28), "test": range(28, 32)}.items()
    }
    return write_beir(tmp_path / "topics", passages, [f"{name} is?" for name in names], **judged)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
