from __future__ import annotations

import json
from pathlib import Path

import pytest

from raytriever.data.records import content_id

ROW = {
    "dataset": "nq_train_psgs_w100",
    "question": "big little lies season 2 how many episodes",
    "answers": ["seven"],
    "positive_ctxs": [
        {
            "title": "Big Little Lies",
            "text": "series garnered",
            "score": 1000,
            "title_score": 1,
            "passage_id": "18768923",
        },
        {
            "title": "Big Little Lies",
            "text": "series garnered",
            "score": 14.1,
            "title_score": 0,
            "passage_id": "18768923",
        },
        {"title": "Big Little Lies 2", "text": "another", "score": 1, "title_score": 0, "psg_id": 5},
    ],
    "negative_ctxs": [{"title": "Cormac", "text": "chores of the house", "score": 0, "title_score": 0}],
    "hard_negative_ctxs": [
        {"title": "Little", "text": "season of", "score": 12.5, "title_score": 0, "passage_id": "3"}
    ],
}


@pytest.mark.parametrize("name", ["biencoder-nq-train.json", "nq-train.json.gz", "nq-train.jsonl", "nq-train.parquet"])
def test_contexts(read, write, name: str) -> None:
    result = read(write(name, [ROW]))
    assert (result.plan.format, result.plan.splits) == ("dpr", ("train",))
    question = content_id(ROW["question"])
    assert [row.id for row in result.records.queries] == [question]
    # A positive that stands there twice is one.
    assert [(row.query, row.document, row.rank) for row in result.records.judgements] == [
        (question, "18768923", 0),
        (question, "5", 1),
    ]
    assert [(row.document, row.origin, row.rank, row.score) for row in result.records.negatives] == [
        ("3", "bm25", 0, 12.5),
        (content_id("Cormac", "chores of the house"), "random", 0, 0.0),
    ]
    assert not result.bad


@pytest.mark.data
def test_the_pack_as_lines_and_as_one_array(data_packs: Path, tmp_path: Path, read, lines) -> None:
    result = read(data_packs / "dpr-tiny")
    assert (result.plan.format, result.plan.splits, result.bad) == ("dpr", ("train",), [])
    assert len(result.records.queries) == 20
    rows = [row for name in ("nq", "squad1") for row in lines(data_packs / "dpr-tiny" / f"{name}.jsonl.gz")]
    assert len(result.records.negatives) == sum(
        len(row["negative_ctxs"]) + len(row["hard_negative_ctxs"]) for row in rows
    )
    assert {row.origin for row in result.records.negatives} == {"bm25", "random"}
    assert result.positives()[0][1] == rows[0]["positive_ctxs"][0]["text"]
    assert len(result.records.judgements) == sum(
        len({p.get("passage_id", p.get("psg_id")) for p in row["positive_ctxs"]}) for row in rows
    )
    # The published form is one array.
    (tmp_path / "train.json").write_text(json.dumps(rows, indent=4))
    array = read(tmp_path / "train.json", size=1000)
    assert array.records == result.records
