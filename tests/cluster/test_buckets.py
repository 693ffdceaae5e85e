"""Commands whose output is in a bucket write the files that they write to a folder; another machine finds them all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from object_store import ObjectStore

from raytriever.core.store import object_stores, remote_folders
from raytriever.core.store.commit import MANIFEST, complete, is_committed
from raytriever.evaluation.results import Results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CommandLine = Any
Outputs = Callable[..., tuple[Path, Path]]
# Times, and what follows from them.
TIMES = re.compile(r'"(?:evaluation_time|seconds|step_seconds|duration|started|ended|milliseconds)": [^,\n}]*')


@pytest.fixture
def outputs(
    server: ObjectStore, command_line: Callable[[], CommandLine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Outputs:
    """Run a command with a local output and with one in the bucket, and return both as another machine has them."""
    server.use(monkeypatch)

    def run(stage: str, *words: str) -> tuple[Path, Path]:
        line, uri = command_line(), f"s3://bucket/{tmp_path.name}/{stage}"
        for output in ("local", uri):
            out, err = line.run(stage, *words, "--tracker", "none", "--output", output)
            assert "remote/s3" not in out + err
        assert uri in out
        monkeypatch.setenv(object_stores.COPIES, str(tmp_path / "another machine"))
        copy = Path(remote_folders.copy_of(uri))
        complete(copy)
        for manifest in copy.rglob(MANIFEST):
            assert is_committed(manifest.parent)  # which fetches the shards of checkpoints too
        return tmp_path / "local", copy

    return run


def contents(folder: Path) -> dict[str, Any]:
    """Return the text of every JSON file without times; of other files, that they are there."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(".lock"))
    return {
        file.relative_to(folder).as_posix(): TIMES.sub("", file.read_text())
        if file.suffix in (".json", ".jsonl") and file.name != "manifest.json"
        else True
        for file in files
    }


def test_an_evaluation(outputs: Outputs, large_encoder: Path, tiny_dataset: Path) -> None:
    words = ["--model", "bm25", f"tiny={large_encoder}", "--datasets", str(tiny_dataset), "--precision", "fp32"]
    local, copy = outputs("evaluate", *words, "--calibrate", "f1")
    assert contents(copy) == contents(local)
    assert json.loads((copy / "results.json").read_text())["models"].keys() == {"bm25", "tiny"}


def test_a_sweep(outputs: Outputs, large_encoder: Path, tiny_dataset: Path, tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("loss:\n  temperature: [0.05, 0.1]\n")
    words = ["--search-space", str(space), "--max-steps", "4", "--trials-at-once", "1", "--precision", "fp32"]
    words += ["--dataset", str(tiny_dataset), "--model", str(large_encoder), "--batch-size", "16"]
    local, copy = outputs("tune", *words)
    there, here = contents(copy), contents(local)
    assert there.keys() == here.keys()
    for name in ("best.yaml", "trials/000/model/model.safetensors", "best/model/model.safetensors"):
        assert (copy / name).read_bytes() == (local / name).read_bytes()
    after = [Results.read(folder / "best/evaluation").models for folder in (copy, local)]
    assert after[0] == after[1]


def test_a_study(outputs: Outputs, large_encoder: Path, tiny_dataset: Path, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        f"""
seeds: 1
metrics: ndcg@10
data_sets: {{Letters: {tiny_dataset}}}
settings:
  model: {{model: {large_encoder}}}
  training: {{batch_size: 16, max_steps: 4, precision: fp32}}
variants:
  BM25: bm25
  MW: {{loss: {{loss: mw, temperature: 0.05}}}}
"""
    )
    local, copy = outputs("study", str(file))
    there, here = contents(copy), contents(local)
    assert there.keys() == here.keys()
    assert there["results.json"] == here["results.json"]
    metrics = json.loads((copy / "variants/MW-Letters/seed-0/evaluation/results.json").read_text())
    assert "remote/s3" not in json.dumps(metrics)
