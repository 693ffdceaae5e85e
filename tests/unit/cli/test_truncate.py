"""`--truncate-dim` and `--dtype` from the command line: stores and indexes of two dimensions are never confused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore

ErrorLine = Callable[..., str]
STAGES = {
    "encode": "--output made",
    "search": "x",
    "evaluate": "--output made --precision fp32",
    "export": "--output made",
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_dim_is_checked_against_the_encoder(
    error_line: ErrorLine, letters: Path, tiny_encoder: Path, stage: str
) -> None:
    data = {"evaluate": ["--datasets", letters], "export": []}.get(stage, ["--dataset", letters])
    words = [*STAGES[stage].split(), *data, "--model", tiny_encoder, "--truncate-dim"]
    assert "truncate_dim: 33 is out of range, embeddings of" in error_line(stage, *words, "33")
    assert "truncate_dim: 0 is out of range; give a value at least 1" in error_line(stage, *words, "0")


def test_stores_and_indexes_of_two_dims_are_distinct(
    error_line: ErrorLine, letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--dataset", str(letters), "--model", str(tiny_encoder)]
    narrow = [*own, "--truncate-dim", "12"]
    assert run("encode", [*narrow, "--output", "made"]) == 0
    assert "160 embeddings of dimension 12" in capsys.readouterr().out
    store = EmbeddingStore.open(work / "made")
    assert (store.dim, store.plan.dim) == (12, 12)
    assert "made: does not hold these embeddings" in error_line("encode", *own, "--output", "made")
    words = ["--embeddings", "made", "--output", "index"]
    assert "made: holds embeddings of another dimension (12, here 32)" in error_line("index", *own, *words)
    assert run("index", [*narrow, *words]) == 0
    assert "160 passages of dimension 12" in capsys.readouterr().out
    assert "index: holds another index" in error_line("index", *own, "--output", "index")


def test_search_reads_the_first_components(
    letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = []
    for dim in ("32", "4", "32"):  # what the cache holds of one is there for the next
        words = ["--model", str(tiny_encoder), "--truncate-dim", dim]
        assert run("search", ["what is abc", "--dataset", str(letters), *words]) == 0
        expected.append(capsys.readouterr().out)
    assert expected[0] == expected[2] != expected[1]


@pytest.mark.slow
def test_evaluate_prints_the_dim(letters: Path, tiny_encoder: Path, work: Path) -> None:
    words = ["--datasets", str(letters), "--model", str(tiny_encoder), "--truncate-dim", "4", "--output", "out"]
    assert run("evaluate", words) == 0
    results = json.loads((work / "out" / "results.json").read_text())
    assert [system["dim"] for system in results["systems"].values() if "dim" in system] == [4]


def test_bad_forms_are_one_line(error_line: ErrorLine, letters: Path, tiny_encoder: Path) -> None:
    own = ["--datasets", letters, "--output", "out", "--precision", "fp32", "--model"]
    dense = [*own, tiny_encoder]
    assert "dtype: 'int88,fp32' is invalid; did you mean 'int8'?" in error_line(
        "evaluate", *dense, "--dtype", "int88,fp32"
    )
    assert "dtype: bm25 has no embeddings; leave it out" in error_line("evaluate", *own, "bm25", "--dtype", "int8")
    line = error_line("evaluate", *dense, "--truncate-dim", "12,33")
    assert "truncate_dim: 33 is out of range, embeddings of encoder have 32 components; give at most 32" in line
    assert "truncate_dim: '12,x' is invalid; give whole numbers" in error_line(
        "evaluate", *dense, "--truncate-dim", "12,x"
    )
    assert "rescore_multiplier: has no effect without dtype" in error_line(
        "evaluate", *dense, "--rescore-multiplier", "4"
    )
    words = ["--suite", "mteb", "--tasks", "SciFact", "--output", "out", "--truncate-dim", "8,16"]
    assert "--truncate-dim: names several dimensions" in error_line("evaluate", *words)


@pytest.mark.slow
def test_the_command_writes_the_table_and_its_page(letters: Path, tiny_encoder: Path, work: Path) -> None:
    words = ["--datasets", str(letters), "--model", f"tiny={tiny_encoder}", "--output", "out", "--tracker", "none"]
    assert run("evaluate", [*words, "--dtype", "int8,binary", "--truncate-dim", "8,16"]) == 0
    page = (work / "out" / "report.html").read_text()
    assert "Quantized and truncated embeddings" in page
    assert "by bytes of a document, letters" in page
