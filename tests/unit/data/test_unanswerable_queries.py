"""Questions without an answer: every layout gives the same data set, and nothing that trains or measures sees them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from beir import write_rows

from raytriever.data.combine_datasets import combine
from raytriever.data.dataset_statistics import describe
from raytriever.data.prepare.open_dataset import open_all_splits, open_dataset
from raytriever.data.unanswerable_queries import with_questions
from raytriever.evaluation.annotation.annotated_dataset import write_annotated
from raytriever.evaluation.annotation.annotation_candidates import choose_queries

SIDES = {side: {"repeated": 0, "same_text": 0} for side in ("documents", "queries")}


def without_answer(folder: Path, split: str, names: Sequence[str], more: Sequence[str] = ()) -> Path:
    """Add queries without an answer to a folder in BEIR layout: those of `names` are new queries."""
    add_queries(folder, **{name: f"nobody knows {name}" for name in names})
    (folder / "unanswerable").mkdir(exist_ok=True)
    (folder / "unanswerable" / f"{split}.tsv").write_text("query-id\n" + "".join(f"{n}\n" for n in (*names, *more)))
    return folder


def add_queries(folder: Path, **texts: str) -> None:
    with (folder / "queries.jsonl").open("a") as stream:
        stream.writelines(json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts.items())


def test_they_are_no_part_of_anything_but_their_own_list(small: Path) -> None:
    before = open_all_splits(small)
    without_answer(small, "test", ["u1", "u2"])
    dataset = open_all_splits(small)
    assert {split: rows.tolist() for split, rows in dataset.unanswerable.items()} == {"test": [40, 41]}
    assert (dict(dataset.absent), before.unanswerable) == ({}, {})
    for split in ("train", "test"):
        for column in ("queries", "documents", "scores"):
            assert (getattr(dataset.judgements[split], column) == getattr(before.judgements[split], column)).all()
        assert dataset.positives(split).queries.tolist() == dataset.relevant_queries(split).tolist()
    assert dataset.counts() == before.counts() | {"queries": 42, "test_unanswerable": 2}
    lines = describe(dataset, SIDES, {}, 0)
    assert lines["test: queries that no document answers"] == "2"


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "parquet"])
def test_the_layouts_give_one_digest(small: Path, kind: str) -> None:
    without_answer(small, "test", ["u1", "u2"])
    digest = open_all_splits(small).digest
    file = small / "unanswerable" / "test.tsv"
    if kind != "tsv":
        file.unlink()
    if kind == "jsonl":
        file.with_suffix(".jsonl").write_text('{"query-id": "u1"}\n{"query-id": "u2"}\n')
    if kind == "parquet":
        pq.write_table(pa.table({"query-id": ["u2", "u1"]}), small / "unanswerable" / "test-00000-of-00001.parquet")
    assert open_all_splits(small).digest == digest


def test_a_split_may_hold_nothing_else(small: Path) -> None:
    without_answer(small, "calibration", ["u1"])
    dataset = open_all_splits(small)
    assert len(dataset.judgements["calibration"]) == 0
    assert dataset.unanswerable["calibration"].tolist() == [40]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("q30", "conflicting: the query has no answer, but it has a relevant document in split 'test'"),
        ("gone", "unknown query id 'gone'"),
        ("u1\tu2", "2 columns, not 1"),
        (" ", None),
    ],
)
def test_bad_rows(small: Path, row: str, reason: str | None) -> None:
    without_answer(small, "test", ["u1"], [row])
    dataset = open_all_splits(small, max_bad_rows=0.5)
    assert dataset.unanswerable["test"].tolist() == [40]
    assert [(entry["row"], entry["reason"]) for entry in dataset.quarantine.entries] == (
        [(3, reason)] if reason else []
    )
    assert len(dataset.positives("test")) == 10


def test_a_query_with_only_an_absent_document_has_an_answer(small: Path) -> None:
    with (small / "qrels" / "test.tsv").open("a") as stream:
        stream.write("u1\tlost\t1\n")
    without_answer(small, "test", ["u1"])
    dataset = open_all_splits(small, max_bad_rows=1.0)
    assert dataset.unanswerable == {}
    assert "conflicting" in dataset.quarantine.entries[-1]["reason"]


def test_dev_taken_from_train_takes_its_fraction(small: Path) -> None:
    without_answer(small, "train", [f"u{n}" for n in range(20)])
    whole, lent = open_dataset(small, ["train"]), open_dataset(small, ["train", "dev"])
    assert len(whole.unanswerable["train"]) == 20
    parts = [lent.unanswerable[split].tolist() for split in ("train", "dev")]
    assert [len(part) for part in parts] == [18, 2]
    assert sorted([*parts[0], *parts[1]]) == whole.unanswerable["train"].tolist()
    assert "test" not in open_dataset(small, ["train"]).unanswerable


def test_writers_keep_them_and_combined_data_sets_shift_them(small: Path, tmp_path: Path) -> None:
    without_answer(small, "test", [f"u{n}" for n in range(10)])
    dataset = open_all_splits(small)
    write_annotated(tmp_path / "annotated", dataset, "train", {}, {}, "human", {"kind": "annotations"})
    assert open_all_splits(tmp_path / "annotated").unanswerable["test"].tolist() == list(range(40, 50))
    both = combine([dataset, dataset])
    assert both.unanswerable["test"].tolist() == [*range(40, 50), *range(90, 100)]
    assert both.queries.texts[90] == "nobody knows u0"


def test_annotation_leaves_them_out(small: Path) -> None:
    without_answer(small, "train", ["u1"])
    add_queries(small, open="unjudged")
    dataset = open_all_splits(small)
    assert [dataset.queries.ids[row] for row in choose_queries(dataset, "new", None)] == ["open"]


def test_rows_of_questions_and_passages(tmp_path: Path) -> None:
    pairs = "".join(f"q{n},p{n},{yes}\n" for n, yes in enumerate(["yes", "true", "1", "", "Yes", "YES"] * 3))
    (tmp_path / "faq.csv").write_text(f"question,passage,answerable\n{pairs}u1,,no\nu2,,0\nu3,,False\n")
    dataset = open_all_splits(tmp_path / "faq.csv")
    texts = [dataset.queries.texts[row] for rows in dataset.unanswerable.values() for row in rows]
    assert sorted(texts) == ["u1", "u2", "u3"]
    assert len(dataset.documents) == 18


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "a", "answerable": "no"}, 'conflicting: "answerable" is no, but "answer" is not empty'),
        ({"answer": "a", "answerable": "maybe"}, "\"answerable\" is 'maybe', neither yes nor no"),
        ({"answer": "", "answerable": "yes"}, 'empty "answer"'),
        ({"answer": "", "answerable": ""}, 'empty "answer"'),
        ({"answer": "a", "answerable": 2}, "\"answerable\" is '2', neither yes nor no"),
        ({"answer": None, "answerable": False}, None),
        ({"answer": "", "answerable": 0}, None),
    ],
)
def test_rows_that_contradict_themselves(tmp_path: Path, row: dict[str, object], reason: str | None) -> None:
    good = {"query": "q", "answer": "a", "answerable": True}
    dataset = open_all_splits(write_rows(tmp_path / "test.jsonl", [good, {"query": "bad", **row}]), max_bad_rows=0.5)
    assert [entry["reason"] for entry in dataset.quarantine.entries] == ([reason] if reason else [])
    assert ("test" in dataset.unanswerable) == (reason is None)


def test_one_text_with_and_without_an_answer_is_bad(tmp_path: Path) -> None:
    rows = [{"query": "q", "answer": "a", "answerable": True}, {"query": "q", "answer": "", "answerable": "no"}]
    dataset = open_all_splits(write_rows(tmp_path / "test.jsonl", rows), max_bad_rows=0.5)
    assert (dataset.quarantine.total, dataset.unanswerable) == (1, {})


def test_queries_are_appended(small: Path) -> None:
    dataset = open_all_splits(small)
    more = with_questions(dataset, "test", ["who painted it", "why"], "foreign")
    again = with_questions(more, "test", ["what"], "other")
    assert (more.unanswerable["test"].tolist(), again.unanswerable["test"].tolist()) == ([40, 41], [40, 41, 42])
    assert [again.queries.ids[row] for row in (0, 40, 41, 42)] == ["q0", "foreign:0", "foreign:1", "other:0"]
    assert [again.queries.texts[row] for row in (0, 40, 42)] == ["query 0", "who painted it", "what"]
    assert len({dataset.digest, more.digest, again.digest}) == 3
    assert len(again.queries.hashes) == 43
    assert more.judgements["test"].queries.tolist() == dataset.judgements["test"].queries.tolist()
    other = with_questions(dataset, "calibration", ["why"], "foreign")
    assert (len(other.judgements["calibration"]), other.unanswerable["calibration"].tolist()) == (0, [40])
    with pytest.raises(ValueError, match=r"query id 'foreign:0' exists already"):
        with_questions(more, "test", ["x"], "foreign")
