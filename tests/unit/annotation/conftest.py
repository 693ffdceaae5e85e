"""Chat-completions services of the test's own, and jobs that ask them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest

SERVER = Path(__file__).parents[2] / "support" / "llm_server.py"


@dataclass
class Served:
    """A server's process, and the file of its requests."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def events(self, kind: str) -> Counter[str]:
        """How often each prompt was `asked` or `answered`."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return Counter(line["digest"] for line in lines if line["event"] == kind)

    def times(self, kind: str) -> list[float]:
        return [line["at"] for line in map(json.loads, self.log.read_text().splitlines()) if line["event"] == kind]

    def hold(self) -> int:
        """No answer is sent from now on; how many were."""
        with urlopen(Request(f"{self.endpoint}/hold", method="POST"), timeout=30) as response:
            return int(json.load(response)["answered"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start a service; flags of `llm_server.py` as keywords."""
    started: list[Served] = []

    def start(**flags: object) -> Served:
        log = tmp_path / f"requests-{len(started)}.jsonl"
        words = [sys.executable, str(SERVER), "--log", str(log)]
        for name, value in flags.items():
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        served = Served(process, int(process.stdout.readline()), log)
        started.append(served)
        return served

    yield start
    for served in started:
        served.end()
        assert served.process.stdout is not None
        served.process.stdout.close()


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
