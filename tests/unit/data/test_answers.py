"""Answers of queries, from the files of any format to the data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.formats.plan import answers_in
from raytriever.data.prepare.open import open_dataset
from raytriever.data.records import BadRow


def lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def by_id(dataset: RetrievalDataset) -> dict[str, list[str]]:
    assert dataset.answers is not None
    return {name: dataset.answers.of(index) for index, name in enumerate(dataset.queries.ids)}


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    lines(folder / "corpus.jsonl", [{"_id": "d", "title": "", "text": "text"}])
    rows = [{"_id": f"q{n}", "text": f"question {n}"} for n in range(4)]
    lines(folder / "queries.jsonl", [rows[0] | {"answers": ["own", "", 7]}, *rows[1:]])
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td\t1\n")
    return folder


def test_answers_are_in_their_own_file_or_in_the_rows_of_queries(beir: Path) -> None:
    rows = [("q3", ["c\u2028d", "e"]), ("other", ["x"]), ("q1", "alone"), ("q0", ["more"]), ("q2", [])]
    lines(beir / "answers.jsonl", [{"_id": name, "answers": answers} for name, answers in rows])
    dataset = open_dataset(beir, ["train"])
    assert by_id(dataset) == {"q0": ["own", "more"], "q1": ["alone"], "q2": [], "q3": ["c\u2028d", "e"]}
    assert not dataset.quarantine.total


def test_a_data_set_may_have_none(beir: Path) -> None:
    lines(beir / "queries.jsonl", [{"_id": "q0", "text": "question"}])
    before = open_dataset(beir, ["train"])
    assert before.answers is None
    lines(beir / "answers.jsonl", [{"_id": "q0", "answers": ["now"]}])
    dataset = open_dataset(beir, ["train"])
    assert by_id(dataset) == {"q0": ["now"]}
    assert dataset.digest == before.digest


@pytest.mark.parametrize(
    "row",
    [
        {"question": "who", "answers": ["me", "you"], "positive_ctxs": [{"title": "", "text": "text"}]},
        {"query_id": "1", "query": "who", "answers": ["me", "you"], "positive_passages": [{"docid": "1", "text": "x"}]},
    ],
)
def test_rows_of_other_formats_bring_theirs(tmp_path: Path, row: dict[str, Any]) -> None:
    lines(tmp_path / "train.jsonl", [row])
    assert list(by_id(open_dataset(tmp_path / "train.jsonl", ["train"])).values()) == [["me", "you"]]


def test_what_is_no_text_is_no_answer() -> None:
    assert answers_in({"answers": {"text": ["x"]}}) == answers_in({"answers": None}) == answers_in({}) == []
    with pytest.raises(BadRow, match="surrogate"):
        answers_in({"answers": ["\ud800"]})


@pytest.mark.data
def test_squads_answers_stand_in_their_paragraphs(data_packs: Path) -> None:
    dataset = open_dataset(data_packs / "dpr-tiny" / "squad1.jsonl.gz", ["train"])
    positives = dataset.positives("train")
    assert dataset.answers is not None
    for index, query in enumerate(positives.queries.tolist()):
        passages = " ".join(dataset.passage_text(int(each)) for each in positives.of(index)).lower()
        assert any(answer.lower() in passages for answer in dataset.answers.of(query))
