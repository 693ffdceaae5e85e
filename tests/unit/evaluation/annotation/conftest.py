"""Chat-completions services of the test's own, and jobs that ask them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from services import Served, services


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start a service; flags of `llm_server.py` as keywords."""
    with services(tmp_path) as start:
        yield start


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the command, with no key in the environment."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for name in ("OPENAI_API_KEY", "RAY_ADDRESS", "RAYTRIEVER_RUNS"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    """A data set in BEIR layout: of each of 40 topics four passages, the later the longer, and a query that shares its
    name with them. People judged the first passage of a topic relevant, and of the first ten topics the last 0."""
    folder = tmp_path / "topics"
    (folder / "qrels").mkdir(parents=True)
    rng = np.random.default_rng(3)
    names = ["".join(rng.choice(list("abcdefghij"), 7)) for _ in range(40)]
    passages = [
        {"_id": f"d{i}-{j}", "title": "", "text": f"{name} no {j}" + " and so on" * j}
        for i, name in enumerate(names)
        for j in range(4)
    ]
    queries = [{"_id": f"q{i}", "text": f"{name} is?"} for i, name in enumerate(names)]
    for file, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, members in {"train": range(24), "dev": range(24, 28), "test": range(28, 32)}.items():
        lines = [f"q{i}\td{i}-0\t1\n" for i in members]
        lines += [f"q{i}\td{i}-3\t0\n" for i in members if i < 10]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
