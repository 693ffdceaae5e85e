"""The applications of the page on serving answer real requests, in batches and from several replicas."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import free_port, wait_for

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"
# Imported by the application: notes the size of each batch, and the process that answered it.
NOTING = """
import os
from pathlib import Path
import raytriever as rt
def noting(search):
    def noted(self, queries, **settings):
        with open(os.environ["NOTES"], "a") as notes:
            notes.write(f"{os.getpid()} {len(queries)}\\n")
        return search(self, queries, **settings)
    return noted
rt.Index.search = noting(rt.Index.search)
"""
SERVE = """
import sys, threading
import ray
from ray import serve
from serve_app import app
if __name__ == "__main__":
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(app)
    print("ready", flush=True)
    threading.Event().wait()
"""


def application(title: str) -> str:
    """The Python block of a section of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    [block] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(block.splitlines()) <= 30
    return str(block)


@contextmanager
def served(
    folder: Path, command: list[str], tiny_encoder: Path, tiny_dataset: Path
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a command with `PORT` in place of a free port, and yield the address when it answers."""
    port = free_port()
    own = {"RAYTRIEVER_CACHE": f"{folder}/cache", "OMP_NUM_THREADS": "1", "NOTES": f"{folder}/notes"}
    inputs = {"MODEL": str(tiny_encoder), "DATASET": str(tiny_dataset)}
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *(word.replace("PORT", str(port)) for word in command)],
            cwd=folder,
            env={**os.environ, **own, **inputs, "PYTHONPATH": paths},
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}/search"

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return bool(get(address, "what is abc"))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:
                raise AssertionError((folder / "log").read_text()) from error
            return False  # Ray Serve has no route yet
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        wait_for(answers, 300, process)
        yield address, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def get(address: str, query: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}?{urllib.parse.urlencode({'query': query})}", timeout=120) as answer:
        return dict(json.load(answer))


def notes(folder: Path) -> list[tuple[int, ...]]:
    """The process and the size of each batch."""
    return [tuple(map(int, line.split())) for line in (folder / "notes").read_text().splitlines()]


def check(address: str, folder: Path, tiny_dataset: Path) -> None:
    """Send a hundred requests, sixteen at a time, and compare with what the data set says."""
    rows = [json.loads(line) for line in (tiny_dataset / "corpus.jsonl").read_text().splitlines()]
    (folder / "notes").unlink()
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda row: get(address, row["text"]), rows[:100]))
        noted = notes(folder)
        for _ in range(20):  # a replica that is ready later answers later requests
            if len({process for process, _ in notes(folder)}) == 2:
                break
            list(threads.map(lambda row: get(address, row["text"]), rows))
    for row, answer in zip(rows, answers, strict=False):
        assert len(answer["hits"]) == 5
        assert {"document_id", "score", "text", "title", "probability"} == answer["hits"][0].keys()
        assert row["_id"] in {hit["document_id"] for hit in answer["hits"]}
        assert answer["answerable"] is None
    assert sum(size for _, size in noted) == 100
    assert max(size for _, size in noted) > 1
    assert len({process for process, _ in notes(folder)}) == 2
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(address, " ")
    assert refused.value.code == 422
    refused.value.close()


@pytest.mark.slow
def test_fastapi(tmp_path: Path, tiny_encoder: Path, tiny_dataset: Path) -> None:
    (tmp_path / "noting.py").write_text(NOTING)
    (tmp_path / "web_app.py").write_text("import noting\n" + application("With FastAPI"))
    command = ["-m", "uvicorn", "web_app:app", "--workers", "2", "--host", "127.0.0.1", "--port", "PORT"]
    with served(tmp_path, command, tiny_encoder, tiny_dataset) as (address, process):
        check(address, tmp_path, tiny_dataset)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_ray_serve(tmp_path: Path, tiny_encoder: Path, tiny_dataset: Path) -> None:
    (tmp_path / "noting.py").write_text(NOTING)
    # Ray Serve sends the class by value, so a replica imports what its methods import.
    code = application("With Ray Serve").replace("self.index =", "import noting\n        self.index =")
    (tmp_path / "serve_app.py").write_text(code)
    (tmp_path / "start.py").write_text(SERVE)
    with served(tmp_path, ["start.py", "PORT"], tiny_encoder, tiny_dataset) as (address, _):
        check(address, tmp_path, tiny_dataset)
