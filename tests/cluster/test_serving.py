"""The applications of the page on serving answer real requests, in batches and from several replicas."""

from __future__ import annotations

import base64
import json
import signal
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from applications import WEB_APP, blocks, served
from starlette.testclient import TestClient

import raytriever as rt

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
    [block] = blocks("serve.md", title)
    return block


def get(address: str, query: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}/search?{urllib.parse.urlencode({'query': query})}", timeout=120) as answer:
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


def test_embeddings_of_the_application_are_those_of_the_model(
    other_encoder: Path, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", str(other_encoder))
    monkeypatch.setenv("DATASET", str(tiny_dataset))
    names: dict[str, Any] = {}
    exec(application("With FastAPI"), names)
    model, texts = rt.load_model(other_encoder), ["what is abc", "abc is cba"]
    sides = {"mine-query": model.encode_queries(texts), "mine": model.encode_passages(texts)}
    assert not np.allclose(sides["mine-query"], sides["mine"]), "the query prompt must matter"
    with TestClient(names["app"]) as client:

        def post(**body: Any) -> Any:
            return client.post("/v1/embeddings", json={"model": "mine", "input": texts} | body)

        for name, expected in sides.items():
            plain = post(model=name, user="somebody").json()
            assert plain["object"] == "list"
            assert plain["model"] == name
            assert [row["index"] for row in plain["data"]] == [0, 1]
            np.testing.assert_allclose([row["embedding"] for row in plain["data"]], expected, atol=1e-6)
            packed = [row["embedding"] for row in post(model=name, encoding_format="base64").json()["data"]]
            np.testing.assert_allclose(
                [np.frombuffer(base64.b64decode(item), "<f4") for item in packed], expected, atol=1e-6
            )
            [one] = post(model=name, input=texts[0]).json()["data"]
            np.testing.assert_allclose(one["embedding"], expected[0], atol=1e-6)
        for refused in ({"input": [[5, 6]]}, {"input": None}, {"dimensions": 8}, {"encoding_format": "int8"}):
            assert post(**refused).status_code == 422, refused


@pytest.mark.slow
def test_fastapi(tmp_path: Path, tiny_encoder: Path, tiny_dataset: Path) -> None:
    (tmp_path / "noting.py").write_text(NOTING)
    (tmp_path / "web_app.py").write_text("import noting\n" + application("With FastAPI"))
    with served(tmp_path, [*WEB_APP, "--workers", "2"], tiny_encoder, tiny_dataset) as (address, process):
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
