"""Prompts by data set: the order of MTEB, the prompts of the user, and wrong input."""

from __future__ import annotations

import json

import pytest

from raytriever.models.prompts import MTEB_TASKS, Prompts, PromptTable, merge_prompts, names_of_task, read_prompts

STORED = {"SciFact-query": "1", "SciFact": "2", "Retrieval-query": "3", "Retrieval": "4", "Retrieval-document": "5"}


def test_a_data_set_uses_the_most_specific_prompt() -> None:
    names = list(STORED)
    expected = {"query": ["1", "2", "3", "4"], "passage": ["2", "2", "5", "5"]}
    for skipped in range(4):
        table = PromptTable("q", "p", {name: STORED[name] for name in names[skipped:]})
        actual = table.of("scifact")
        assert (actual.query, actual.passage) == (expected["query"][skipped], expected["passage"][skipped])
    assert PromptTable("q", "p").of("scifact") == Prompts("q", "p")
    assert PromptTable("q", "p", {"SciFact": "2"}).of("nfcorpus") == Prompts("q", "p")


def test_a_data_set_of_beir_has_the_name_of_its_task() -> None:
    from raytriever.evaluation.evaluated_datasets import BEIR

    for name, member in BEIR.items():
        assert MTEB_TASKS.get(name, member.task) == member.task
        assert PromptTable(stored={f"{member.task}-query": "x"}).of(name).query == "x", name
    assert not MTEB_TASKS.keys() - BEIR.keys()


def test_a_task_of_another_type_uses_the_prompts_of_its_type() -> None:
    table = PromptTable("q", "p", stored=STORED | {"Reranking-query": "6", "STS": "7", "fiqa-document": "8"})
    assert table.of(*names_of_task("AskUbuntuDupQuestions"), task_type="Reranking")["query"] == "6"
    assert table.of(*names_of_task("AskUbuntuDupQuestions"), task_type="Reranking")["passage"] == "p"
    assert table.of(*names_of_task("FiQA2018"))["passage"] == "8"
    assert table.of_texts("STS12", task_type="STS") == "7"
    assert table.of_texts("SciFact", task_type="Retrieval") == "2"
    assert table.of_texts("Banking77", task_type="Classification") == ""


def test_a_file_has_its_name_without_the_ending() -> None:
    table = PromptTable("q", "p", {"Train.v2-query": "x"}, fixed=frozenset())
    for name in ("train.v2", "train.v2.jsonl", "train.v2.jsonl.gz", "train.v2.parquet"):
        assert table.of(name).query == "x", name
    assert table.of("train").query == "q"
    assert PromptTable("q", "p", {"train-query": "x"}, fixed=frozenset({"query"})).named("train.jsonl") == {
        "train-query": "q"
    }


def test_prompts_of_the_user_precede_those_of_the_model() -> None:
    stored = {"scifact-query": "stored", "scifact-document": "stored too"}
    assert PromptTable("q", "p", stored, fixed=frozenset({"query"})).of("scifact") == Prompts(
        "q", "stored too", "", "scifact-document"
    )
    own = {"SciFact-query": "own"}
    table = PromptTable("q", "p", merge_prompts(stored, own), own, frozenset({"query"}))
    assert table.of("scifact").query == "own"
    assert table.of("other").query == "q"


def test_a_trained_model_stores_what_it_needs_to_choose_the_same() -> None:
    stored = {"SciFact-query": "old", "nq-query": "kept"}
    cases = [
        PromptTable("new", "p", stored, fixed=frozenset({"query"})),  # --query-prompt
        PromptTable("new", "p", stored, {"scifact": "own"}),  # a less specific name
        PromptTable("new", "p", stored, {"scifact-query": "own"}),
        PromptTable("new", "p", stored),
    ]
    for table in cases:
        used = table.of("scifact")
        merged = merge_prompts(merge_prompts(table.stored, table.own), table.named("scifact"))
        later = PromptTable("new", "p", merged).of("scifact")
        assert (later.query, later.passage) == (used.query, used.passage)
        assert merged["nq-query"] == "kept"
    assert cases[3].named("scifact") == {}
    assert cases[0].named("scifact") == {"scifact-query": "new"}


def test_forms_of_prompts_by_data_set() -> None:
    nested = {"scifact": {"query": "a", "passage": "b"}, "nq": "c", "fiqa": {"document": "d"}}
    flat = {"scifact-query": "a", "scifact-document": "b", "nq": "c", "fiqa-document": "d"}
    assert read_prompts(nested) == read_prompts(json.dumps(nested)) == read_prompts(flat) == flat


@pytest.mark.parametrize(
    "value", ["Find: ", "[]", 3, {"scifact": 3}, {"scifact": {"anchors": "a"}}, {"": "a"}, {"query": "a"}, '{"a": {"b"']
)
def test_another_form_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="give"):
        read_prompts(value)
