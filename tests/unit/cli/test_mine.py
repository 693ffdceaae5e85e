"""`mine` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.data.hard_negatives import read_negatives
from raytriever.data.prepare.open_dataset import open_dataset


def cells(out: str) -> dict[str, list[int]]:
    """Return the numbers of the printed table by row."""
    results = {}
    for line in out.split("\n\n")[0].splitlines()[1:]:
        words = line.split()
        numbers = [int(word.replace(",", "")) for word in words if word.replace(",", "").isdigit()]
        results[" ".join(words[: -len(numbers)])] = numbers
    return results


def test_a_table_that_training_reads(
    letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(letters), "--method", "dense,random", "--model", str(tiny_encoder), "--output", "table"]
    words += ["--range-min", "2", "--range-max", "40", "--num-negatives", "4"]
    words += ["--max-score", "0.99", "--round", "3", "--seed", "5"]
    assert run("mine", words) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["dense", "random"]
    expected = cells(out)
    for method in (0, 1):
        removed = [numbers[method] for name, numbers in expected.items() if name != "candidates"]
        assert expected["candidates"][method] == sum(removed)
    assert expected["before the range"] == [96 * 2, 0]
    assert "96 queries; " in out
    assert f"raytriever train --dataset {letters} --negatives-table table" in out
    dataset = open_dataset(letters, ["train", "dev", "test"])
    table = read_negatives("table", dataset)
    assert [table.counts()[name] for name in ("dense", "random")] == expected["kept"]
    assert set(table.rounds.tolist()) == {3}
    assert (table.scores <= 0.99).all()
    meta = json.loads(Path("table/manifest.json").read_text())["meta"]
    assert meta["counts"]["dense"]["candidates"] == expected["candidates"][0]
    assert meta["settings"]["range_max"] == 40
    assert meta["dataset"] == dataset.digest
    assert (meta["scores"], meta["seed"], meta["split"]) == ("encoder", 5, "train")


@pytest.mark.slow
def test_matching_embeddings_are_used_and_others_refused(
    error_line: Callable[..., str], letters: Path, tiny_encoder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ["--dataset", str(letters), "--model", str(tiny_encoder), "--precision", "fp32"]
    for name, more in {"passages": [], "queries": ["--side", "query"], "short": ["--passage-length", "9"]}.items():
        assert run("encode", [*model, *more, "--output", name]) == 0
    words = ["--method", "dense", "--num-negatives", "4"]
    assert run("mine", [*model, *words, "--output", "own"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(
            "raytriever.retrieval.mining.mining_job.embed_corpus", None
        )  # so that no passage could be encoded
        assert run("mine", [*model, *words, "--output", "given", "--embeddings", "passages"]) == 0
    dataset = open_dataset(letters, ["train", "dev", "test"])
    own, given = (read_negatives(name, dataset) for name in ("own", "given"))
    assert own.documents.tolist() == given.documents.tolist()
    for name, expected in {
        "queries": "queries: holds queries ('query', here 'passage'); name the passages of letters as `raytriever",
        "short": "short: holds embeddings of texts cut at another length (9, here 64); name the passages",
        "none": "embeddings none: no such embeddings; ",
    }.items():
        assert expected in error_line("mine", *model, *words, "--output", "other", "--embeddings", name)
    expected = error_line("mine", *model, "--output", "other", "--embeddings", "passages")
    assert "embeddings: has no effect with method bm25; leave it out, or give method dense or cross-query" in expected
    assert not (work / "other").exists()


def test_counts_explain_an_empty_table(error_line: Callable[..., str], letters: Path) -> None:
    line = error_line("mine", "--dataset", letters, "--output", "table")
    # No two passages share a word, and a query's own is its positive.
    assert line == (
        "letters: no negative is left; bm25: candidates 96, relevant 96, kept 0; loosen the filters that removed them"
    )


def test_an_existing_table_is_kept(error_line: Callable[..., str], letters: Path, work: Path) -> None:
    (work / "table").mkdir()
    assert "table: already exists; give another output" in error_line("mine", "--output", "table")


def test_the_language_of_bm25_is_named_in_a_line(letters: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset", str(letters), "--method", "bm25,random", "--num-negatives", "2", "--output"]
    assert run("mine", [*words, "recognized"]) == 0
    assert "Analyzer of BM25" not in capsys.readouterr().err  # English is the rule
    assert run("mine", [*words, "named", "--bm25-language", "ko"]) == 0
    assert "Analyzer of BM25 for Korean, --bm25-language ko: terms of 2 adjacent" in capsys.readouterr().err
