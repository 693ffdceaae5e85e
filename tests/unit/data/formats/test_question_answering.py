"""SQuAD, the test sets of ragas, and the data sets of LlamaIndex."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source
from raytriever.data.formats.known_formats import recognize
from raytriever.data.prepare.open_dataset import open_all_splits
from raytriever.data.records_and_bad_rows import NO_ANSWER

CONTEXT = "Ada Lovelace wrote the first program in 1843."
ANSWERED = {"id": "q1", "question": "who?", "answers": [{"text": "Ada", "answer_start": 0}], "is_impossible": False}
IMPOSSIBLE = {"id": "q2", "question": "why?", "answers": [], "is_impossible": True, "plausible_answers": []}


def squad(*questions: Any, context: Any = CONTEXT) -> dict[str, Any]:
    paragraphs = [{"context": context, "qas": list(questions)}, {"context": "No question.", "qas": []}]
    return {"version": "v2.0", "data": [{"title": "Ada", "paragraphs": paragraphs}]}


def written(folder: Path, name: str, content: Any, indent: int | None = None) -> Path:
    file = folder / name
    file.write_text(json.dumps(content, indent=indent))
    return file


@pytest.mark.parametrize("indent", [None, 1])
def test_squad(tmp_path: Path, read, indent: int | None) -> None:
    result = read(written(tmp_path, "dev-v2.0.json", squad(ANSWERED, IMPOSSIBLE), indent))
    assert (result.plan.format, result.splits, result.bad) == ("squad", ("dev",), [])
    [answered, impossible] = result.records.judgements
    assert (answered.query, result.texts[answered.document]) == ("q1", CONTEXT)
    assert (impossible.query, impossible.document) == ("q2", NO_ANSWER)
    assert result.records.answers == [("q1", "Ada")]
    assert {(document.title, document.text) for document in result.records.documents} == {
        ("Ada", CONTEXT),
        ("Ada", "No question."),
    }


@pytest.mark.parametrize("name", ["train-00000-of-00001.parquet", "train.jsonl"])
def test_squad_as_on_the_hub(read, write, name: str) -> None:
    row = {"id": "q1", "title": "Ada", "context": CONTEXT, "question": "who?"}
    empty = row | {"id": "q2", "question": "why?", "answers": {"text": [], "answer_start": []}}
    result = read(write(name, [row | {"answers": {"text": ["Ada"], "answer_start": [0]}}, empty]))
    assert (result.plan.format, result.records.answers, result.bad) == ("squad", [("q1", "Ada")], [])
    assert [judgement.document == NO_ANSWER for judgement in result.records.judgements] == [False, True]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (squad(ANSWERED | {"answers": [{"text": "Ada", "answer_start": 4}]}), '"answer_start" is 4, but the context'),
        (squad(ANSWERED | {"answers": [{"text": "Ada", "answer_start": "0"}]}), '"answer_start" is 0, but the cont'),
        (squad(ANSWERED | {"answers": [{"text": "Bob"}]}), "the context does not contain the answer 'Bob'"),
        (squad(ANSWERED | {"answers": [{"answer_start": 0}]}), 'no field "text"; the fields are answer_start'),
        (squad(ANSWERED | {"answers": "Ada"}), '"answers" is str, not a list'),
        (squad(ANSWERED | {"answers": {"text": ["Ada"], "answer_start": [0, 1]}}), '"answer_start" has 2 positions fo'),
        (squad(ANSWERED | {"answers": []}), 'empty "answers", but "is_impossible" is false'),
        (squad(ANSWERED | {"is_impossible": True}), 'conflicting: "is_impossible" is true, but "answers" is not empty'),
        (squad({"id": "q1", "question": "who?"}), 'no "answers"'),
        (squad(ANSWERED | {"question": " "}), 'empty "question"'),
        (squad(ANSWERED | {"id": [1]}), '"id" is list, not a string'),
        (squad("who?"), '"question" is NoneType, not a string'),
        (squad(ANSWERED, context=None), '"context" is NoneType, not a string'),
        ({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [ANSWERED]}]}, 7]}, '"context" is NoneType, not a str'),
    ],
)
def test_a_bad_question_of_squad(tmp_path: Path, read, content: Any, reason: str) -> None:
    result = read(written(tmp_path, "train.json", content))
    [bad] = result.bad
    assert bad.startswith(reason)
    assert not any(query.id == "q1" for query in result.records.queries) or content["data"][1:] == [7]


ROWS = {"queries": {"a": "who?", "b": "when?"}, "corpus": {"1": CONTEXT, "2": "In 1843."}}
QA: dict[str, Any] = {**ROWS, "relevant_docs": {"a": ["1"], "b": ["2", "1"]}, "mode": "text"}


@pytest.mark.parametrize("indent", [None, 4])  # with 4 as LlamaIndex writes it
def test_a_data_set_of_llama_index(tmp_path: Path, read, indent: int | None) -> None:
    result = read(written(tmp_path, "val_dataset.json", QA, indent))
    assert (result.plan.format, result.splits, result.bad) == ("llamaindex", ("dev",), [])
    assert result.positives() == [("who?", CONTEXT, 0), ("when?", "In 1843.", 0), ("when?", CONTEXT, 1)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"relevant_docs": {"a": ["1"]}}, "\"relevant_docs\" names no passage for the query 'b'"),
        ({"relevant_docs": {"a": ["1"], "b": ["2"], "c": ["1"]}}, "the id 'c' has no text"),
        ({"relevant_docs": {"a": ["1"], "b": "2"}}, '"relevant_docs" is str, not a list'),
        ({"corpus": {"1": CONTEXT, "2": None}}, "the id '2' has no text"),
        ({"queries": {"a": "who?", "b": ""}}, 'empty "text"'),
    ],
)
def test_a_bad_row_of_llama_index(tmp_path: Path, read, change: dict[str, Any], reason: str) -> None:
    [bad] = read(written(tmp_path, "train.json", QA | change)).bad
    assert bad.startswith(reason)


def test_an_id_that_is_not_in_the_corpus_is_a_bad_row(tmp_path: Path) -> None:
    written(tmp_path, "train.json", QA | {"relevant_docs": {"a": ["1"], "b": ["9"]}})
    with pytest.raises(DataError, match=r"unknown document id '9'"):
        open_all_splits(tmp_path, max_bad_rows=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.json", QA | {"corpus": []}, '"corpus" is list, not an object; write it in the format llamaindex: q'),
        ("train.json", {"data": []}, "in no known format; it contains "),
        ("train.json", QA | {"queries": {}, "corpus": {}, "relevant_docs": {}}, "in no known format"),
    ],
)
def test_an_object_that_cannot_be_read_is_one_line(tmp_path: Path, name: str, content: Any, message: str) -> None:
    written(tmp_path, name, content)
    with pytest.raises(DataError) as caught:
        recognize(Source.open(tmp_path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_object_that_is_cut_off_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "train.json"
    file.write_text(json.dumps(squad(ANSWERED), indent=1)[:-9])
    with pytest.raises(DataError, match=r"train\.json: is not JSON \(Expecting .* of line \d+\); write it again"):
        recognize(Source.open(tmp_path))


TESTSET = [
    {"user_input": "who?", "reference_contexts": ["<1-hop>\n\nAda.", "<2-hop>\n\nBob."], "reference": "Ada", "x": "y"},
    {"user_input": "when?", "reference_contexts": ["In 1843."], "reference": "1843", "x": "y"},
]
POSITIVES = [("who?", "Ada.", 0), ("who?", "Bob.", 1), ("when?", "In 1843.", 0)]


def test_a_test_set_of_ragas(tmp_path: Path, read, write) -> None:
    result = read(write("test.jsonl", TESTSET))
    assert (result.plan.format, result.splits, result.positives()) == ("ragas", ("test",), POSITIVES)
    lines = [f'{row["user_input"]},"{row["reference_contexts"]}",-' for row in TESTSET]  # as pandas writes lists
    (tmp_path / "test.csv").write_text("\n".join(["user_input,reference_contexts,reference", *lines]))
    assert read(tmp_path / "test.csv").positives() == POSITIVES


def test_a_labeled_data_set_of_llama_index(tmp_path: Path, read) -> None:
    examples = [{"query": row["user_input"], "reference_contexts": row["reference_contexts"]} for row in TESTSET]
    result = read(written(tmp_path, "rag_dataset.json", {"examples": [*examples, {"query": "who?"}]}, 4))
    assert (result.plan.format, result.positives()) == ("ragas", POSITIVES)
    assert result.bad == ['no field "reference_contexts"; the fields are query']


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"user_input": [{"content": "who?"}], "reference_contexts": ["Ada"]}, '"user_input" is list, not a string'),
        ({"user_input": "who?", "reference_contexts": []}, 'empty "reference_contexts"'),
        ({"user_input": "who?", "reference_contexts": None}, '"reference_contexts" is NoneType, not a string'),
        ({"user_input": "who?", "reference_contexts": ["<1-hop>\n\n"]}, 'empty "reference_contexts"'),
    ],
)
def test_a_bad_row_of_ragas(read, write, row: dict[str, Any], reason: str) -> None:
    assert read(write("train.jsonl", [TESTSET[0], row])).bad == [reason]
