"""`prepare`, `encode` and `index` from the command line, also for two widths, which are never confused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raytriever.cli.main import run
from raytriever.models.retriever import Retriever
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.index.approximate.stored_index import read_meta


def test_it_prints_a_summary_and_the_next_command(
    tiny_dataset: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(tiny_dataset), "--model", str(tiny_encoder), "--output", "my data; rm"]
    words += ["--passage-length", "16"]
    assert run("prepare", words) == 0
    out, err = capsys.readouterr()
    lines = dict(line.split("  ", 1) for line in out.splitlines() if "  " in line and not line.startswith(" "))
    table = {name: value.strip() for name, value in lines.items()}
    assert table["documents"] == "160"
    assert table["train: positives a query"] == "1.00 (1 to 1)"
    # Six letters twice, "is", and two special tokens: every letter is a token.
    assert table["documents: tokens, 50 % / 90 % / 99 % / most"] == "16 / 16 / 16 / 16"
    assert table["documents: cut at 16 tokens"] == "0.0%"
    assert f"raytriever train --dataset 'my data; rm' --model {tiny_encoder}" in out
    assert "letters: preparing " in err
    assert run("prepare", words) == 0
    assert "prepared before" in capsys.readouterr().err


def test_a_corpus_without_queries_can_be_searched(
    work: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "docs").mkdir()
    (work / "docs" / "corpus.jsonl").write_text('{"_id": "a", "text": "steel"}\n')
    assert run("prepare", ["--dataset", "docs", "--model", str(tiny_encoder), "--output", "own"]) == 0
    out = capsys.readouterr().out
    assert "queries: tokens" not in out
    assert f"raytriever search --dataset own --model {tiny_encoder} 'a question'" in out.splitlines()[-1]


def test_the_next_command_needs_the_judgements_that_are_there(
    work: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "set" / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        (work / "set" / f"{name}.jsonl").write_text('{"_id": "a", "text": "steel"}\n')
    judgements = work / "set" / "qrels.tsv"
    judgements.write_text("query-id\tcorpus-id\tscore\na\ta\t1\n")
    model = ["--model", str(tiny_encoder)]
    assert run("prepare", ["--dataset", "set", *model, "--output", "unjudged"]) == 0
    printed = capsys.readouterr()
    assert f"raytriever search --dataset unjudged --model {tiny_encoder}" in printed.out.splitlines()[-1]
    assert "not read: qrels.tsv; judgements are read from qrels/<split>.tsv, such as qrels/test.tsv" in printed.err
    for split, more in (("dev", "--split dev "), ("test", "")):
        judgements = judgements.rename(work / "set" / "qrels" / f"{split}.txt")
        assert run("prepare", ["--dataset", "set", *model, "--output", split]) == 0
        line = capsys.readouterr().out.splitlines()[-1].strip()
        assert line == f"raytriever evaluate --datasets {split} {more}--model {tiny_encoder} --output evaluation"


def test_a_store_is_written_and_reused(
    letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(letters), "--model", str(tiny_encoder), "--precision", "fp32", "--output"]
    assert run("encode", [*words, "own"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "160 embeddings of dimension 32, fp32, 0.0 MB"
    assert "letters: 160 texts by" in err
    assert run("encode", [*words, "small", "--dtype", "int8", "--side", "query"]) == 0
    own, small = (EmbeddingStore.open(work / name) for name in ("own", "small"))
    assert (own.plan.side, small.plan.side, small.plan.dtype) == ("passage", "query", "int8")
    np.testing.assert_allclose(np.linalg.norm(small.array(), axis=1), 1, atol=1e-2)
    stamp = (work / "own" / "manifest.json").stat().st_mtime_ns
    assert run("encode", [*words, "own"]) == 0
    assert (work / "own" / "manifest.json").stat().st_mtime_ns == stamp


def test_an_index_is_built_then_opened_evaluated_and_searched_and_never_overwritten(
    letters: Path, tiny_encoder: Path, work: Path, error_line: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(letters), "--model", str(tiny_encoder), "--output", "made", "--index"]
    assert run("index", [*words, "roargraph"]) == 0
    assert "roargraph over 160 passages, dimension 32, built in" in capsys.readouterr().out
    more = ["--split", "test", "--query", "what is abcdef", "--top", "2", "--ef-search", "160"]
    before = {file: file.stat().st_mtime_ns for file in Path("made").rglob("*")}
    assert run("index", [*words, "roargraph", *more]) == 0
    out = capsys.readouterr().out
    assert "roargraph over 160 passages, dimension 32, opened" in out
    recalls = [line.split()[1] for line in out.splitlines() if line.startswith(("10 ", "100 "))]
    assert recalls == ["1.0000", "1.0000"]
    assert sum(" is " in line for line in out.splitlines() if line.startswith(" " * 10)) == 2
    assert {file: file.stat().st_mtime_ns for file in Path("made").rglob("*")} == before
    line = error_line("index", *words, "hnsw")
    assert "made: holds another index (roargraph of letters" in line
    assert ": its index is roargraph, not hnsw; give another output, or remove this one" in line
    other = {"fp32": "bf16", "bf16": "fp32"}[read_meta(Path("made"))["precision"]]
    line = error_line("index", *words, "roargraph", "--precision", other)
    assert f": its precision is {read_meta(Path('made'))['precision']}, not {other}; give precision " in line
    line = error_line("index", *words, "roargraph", "--passage-length", "9")
    assert "): its model has other weights or settings; give" in line
    assert "'tset'" in error_line("index", *words, "roargraph", "--training-split", "tset")


def test_an_existing_index_is_opened_from_its_own_files_and_built_again_for_other_passages(
    letters: Path, tiny_encoder: Path, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(shutil.copytree(letters, work / "letters"))
    words = ["--dataset", str(data), "--model", str(tiny_encoder), "--output", "made", "--index", "ivf"]
    search = [*words, "--split", "test", "--query", "what is abcdef", "--top", "2"]
    assert run("index", search) == 0
    built = capsys.readouterr().out
    encoded: list[int] = []
    real = Retriever.start

    def counted(retriever: Any, inputs: Any, rows: Any, side: str, **named: Any) -> Any:
        if side == "passage":
            encoded.append(len(inputs))
        return real(retriever, inputs, rows, side, **named)

    monkeypatch.setattr(Retriever, "start", counted)
    shutil.rmtree(Path(os.environ["RAYTRIEVER_CACHE"]) / "embeddings")  # as `cache prune` does
    assert run("index", search) == 0
    opened = capsys.readouterr().out
    assert encoded == []
    assert ", opened; " in opened
    results = [out.split("queries of test")[1] for out in (built, opened)]
    assert [recall_of(out) for out in results] == [recall_of(results[0])] * 2
    assert results[0].partition("\n\n")[2] == results[1].partition("\n\n")[2]  # the passages and their scores

    assert run("index", [*words, "--output", "other"]) == 0  # its embeddings are in the cache now
    encoded.clear()
    lines = (data / "corpus.jsonl").read_text().splitlines()
    (data / "corpus.jsonl").write_text("\n".join([*lines[2:], '{"_id": "new", "title": "", "text": "new is newest"}']))
    capsys.readouterr()
    assert run("index", [*words, "--query", "new is newest", "--top", "1"]) == 0
    out, err = capsys.readouterr()
    assert encoded == [1]
    assert "ivf over 159 passages, dimension 32, built in" in out
    assert "new is newest" in out
    assert "made: letters has changed, so the index is built again" in err


def recall_of(evaluated: str) -> list[str]:
    return [line.split()[1] for line in evaluated.splitlines() if line.startswith(("10 ", "100 "))]


ErrorLine = Callable[..., str]


def test_stores_and_indexes_of_two_dims_are_distinct(
    error_line: ErrorLine, letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--dataset", str(letters), "--model", str(tiny_encoder)]
    narrow = [*own, "--truncate-dim", "12"]
    assert run("encode", [*narrow, "--output", "made"]) == 0
    assert "160 embeddings of dimension 12" in capsys.readouterr().out
    store = EmbeddingStore.open(work / "made")
    assert (store.dim, store.plan.dim) == (12, 12)
    assert "made: is not empty, and has no embeddings" in error_line("encode", *own, "--output", "made")
    words = ["--embeddings", "made", "--output", "index"]
    assert "made: holds embeddings of another dimension (12, here 32)" in error_line("index", *own, *words)
    assert run("index", [*narrow, *words]) == 0
    assert "160 passages, dimension 12" in capsys.readouterr().out
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


@pytest.mark.slow
def test_the_command_writes_the_table_and_its_page(letters: Path, tiny_encoder: Path, work: Path) -> None:
    words = ["--datasets", str(letters), "--model", f"tiny={tiny_encoder}", "--output", "out", "--tracker", "none"]
    assert run("evaluate", [*words, "--dtype", "int8,binary", "--truncate-dim", "8,16"]) == 0
    page = (work / "out" / "report.html").read_text()
    assert "Quantized and truncated embeddings" in page
    assert "by bytes of a document, letters" in page
