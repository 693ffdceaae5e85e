from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

ROW = {
    "query": "how tall is it",
    "pos": ["one", "two"],
    "neg": ["three", "four"],
    "pos_scores": [0.9, 0.8],
    "neg_scores": [0.4, 1],
    "prompt": "Given a question, find its answer.",
    "type": "normal",
}


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "x/train-00000-of-00001.parquet"])
def test_lists(read, write, name: str) -> None:
    result = read(write(name, [ROW]))
    assert (result.plan.format, result.plan.splits, result.bad) == ("flagembedding", ("train",), [])
    assert result.positives() == [("how tall is it", "one", 0), ("how tall is it", "two", 1)]
    assert result.negatives() == [("how tall is it", "three", "dense", 0), ("how tall is it", "four", "dense", 1)]
    assert [row.score for row in result.records.negatives] == [0.4, 1.0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pos_scores": [1.0, "x"]}, '"pos_scores[1]" is str, not a number'),
        ({"neg_scores": [1.0, True]}, '"neg_scores[1]" is bool, not a number'),
        ({"neg": ["three", " "]}, 'empty "neg[1]"'),
        ({"neg": ["three", "\ud800"]}, '"neg[1]" holds half of a surrogate pair'),
    ],
)
def test_a_bad_row_adds_nothing(tmp_path: Path, read, change: dict[str, object], reason: str) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(ROW | change) + "\n" + json.dumps(ROW) + "\n")
    result = read(tmp_path / "train.jsonl")
    assert result.bad == [reason]
    assert (len(result.records.queries), len(result.records.documents)) == (1, 4)


def test_a_score_beyond_all_numbers_is_bad(tmp_path: Path, read) -> None:
    rows = [
        json.dumps(ROW).replace("[0.4, 1]", scores) for scores in ("[0.4, 1e999]", "[NaN, 1]", f"[1, 1{'0' * 400}]")
    ]
    (tmp_path / "train.jsonl").write_text("\n".join([*rows, json.dumps(ROW | {"neg_scores": []})]))
    result = read(tmp_path / "train.jsonl")
    assert [reason[:30] for reason in result.bad] == [
        '"neg_scores[1]" is inf, not a ',
        "not JSON (NaN is not a number ",
        '"neg_scores[1]" is 10000000000',
    ]
    assert all(math.isnan(row.score) for row in result.records.negatives)


@pytest.mark.data
def test_the_pack(data_packs: Path, read, lines) -> None:
    result = read(data_packs / "scored-negatives-tiny")
    assert (result.plan.format, result.plan.splits, result.bad) == ("flagembedding", ("train",), [])
    rows = [
        row
        for name in ("msmarco", "nli", "nq")
        for row in lines(data_packs / "scored-negatives-tiny" / f"{name}.jsonl.gz")
    ]
    assert len(result.records.queries) == len(rows) == 30
    assert [row.score for row in result.records.negatives] == [score for row in rows for score in row["neg_scores"]]
    texts = result.texts
    assert [texts[row.document] for row in result.records.negatives] == [text for row in rows for text in row["neg"]]
