"""`index` from the command line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raytriever.cli.main import run
from raytriever.models.retriever import Retriever
from raytriever.retrieval.index.approximate.stored_index import read_meta


def test_an_index_is_built_then_opened_evaluated_and_searched_and_never_overwritten(
    letters: Path, tiny_encoder: Path, work: Path, error_line: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(letters), "--model", str(tiny_encoder), "--output", "made", "--index"]
    assert run("index", [*words, "roargraph"]) == 0
    assert "roargraph over 160 passages of dimension 32, built in" in capsys.readouterr().out
    more = ["--split", "test", "--query", "what is abcdef", "--top", "2", "--ef-search", "160"]
    before = {file: file.stat().st_mtime_ns for file in Path("made").rglob("*")}
    assert run("index", [*words, "roargraph", *more]) == 0
    out = capsys.readouterr().out
    assert "roargraph over 160 passages of dimension 32, opened" in out
    recalls = [line.split()[1] for line in out.splitlines() if line.startswith(("10 ", "100 "))]
    assert recalls == ["1.0000", "1.0000"]
    assert sum(" is " in line for line in out.splitlines() if line.startswith(" " * 10)) == 2
    assert {file: file.stat().st_mtime_ns for file in Path("made").rglob("*")} == before
    line = error_line("index", *words, "hnsw")
    assert "made: holds another index (roargraph of letters" in line
    assert ": its index is roargraph, not hnsw; give another output, or remove it" in line
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
    assert "ivf over 159 passages of dimension 32, built in" in out
    assert "new is newest" in out
    assert "made: letters has changed, so the index is built again" in err


def recall_of(evaluated: str) -> list[str]:
    return [line.split()[1] for line in evaluated.splitlines() if line.startswith(("10 ", "100 "))]
