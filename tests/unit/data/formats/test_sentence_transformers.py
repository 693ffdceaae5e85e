from __future__ import annotations

import math

import pytest


def test_pairs_triplets_and_more(read, write) -> None:
    result = read(write("train.jsonl", [{"question": "a?", "answer": "a"}, {"question": "b?", "answer": "b"}]))
    assert (result.plan.format, result.plan.splits) == ("sentence-transformers", ("train",))
    assert result.positives() == [("a?", "a", 0), ("b?", "b", 0)]
    rows = [
        {"anchor": "a", "positive": "p", "negative_10": "n10", "negative_2": "n2", "negative": "n"},
        {"anchor": "b", "positive": "p", "negative": None, "negative_2": "m2", "negative_10": "m10"},
    ]
    result = read(write("triplet/dev.parquet", rows))
    assert result.plan.splits == ("dev",)
    assert result.positives() == [("a", "p", 0), ("b", "p", 0)]
    assert [(query, text, rank) for query, text, _, rank in result.negatives()] == [
        ("a", "n", 0),
        ("a", "n2", 1),
        ("a", "n10", 2),
        ("b", "m2", 0),
        ("b", "m10", 1),
    ]
    assert {row.origin for row in result.records.negatives} == {"dense"}


def test_a_teachers_scores_next_to_negatives(read, write) -> None:
    row = {"query": "a", "positive": "p", "negative_1": "n", "negative_2": "m"}
    result = read(write("train.jsonl", [row | {"label": [9.5, 1, -2.5]}, row | {"label": 3.0}, row | {"label": [1.0]}]))
    scores = [one.score for one in result.records.negatives]
    assert scores[:2] == [1.0, -2.5]
    assert all(math.isnan(score) for score in scores[2:])
    assert result.bad == ['"label" has 1 scores for 3 in "positive and negatives"']


@pytest.mark.parametrize(
    ("columns", "score"),
    [
        (("sentence1", "sentence2", "score"), "score"),
        (("sentence1", "sentence2", "similarity_score"), "similarity_score"),
        (("anchor", "positive", "label"), "label"),
    ],
)
def test_scored_pairs(read, write, columns: tuple[str, str, str], score: str) -> None:
    values = [0.5, 0.49, 1, 0, 2, 1.0, -1, 4.2, None, "1", True]
    rows = [dict(zip(columns, ("a", f"text {n}", value), strict=True)) for n, value in enumerate(values)]
    result = read(write("train.jsonl", rows))
    assert [row.score for row in result.records.judgements] == [1, 0, 1, 0, 2, 1]
    assert [(text, origin) for _, text, origin, _ in result.negatives()] == [("text 1", "gold"), ("text 3", "gold")]
    assert [row.score for row in result.records.negatives] == [0.49, 0.0]
    assert [row.rank for row in result.records.judgements] == [0] * 6
    message = "neither a grade from 0 nor within 0 and 1: divide by its largest"
    assert result.bad == [
        f'"{score}" is -1, {message}',
        f'"{score}" is 4.2, {message}',
        f'"{score}" is NoneType, not a number',
        f'"{score}" is str, not a number',
        f'"{score}" is bool, not a number',
    ]


@pytest.mark.parametrize("columns", [("query", "docs", "labels"), ("question", "answer", "scores")])
@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet"])
def test_scored_lists(read, write, columns: tuple[str, str, str], name: str) -> None:
    rows = [
        dict(zip(columns, ("a", ["x", "y", "z"], [0, 1, 2]), strict=True)),
        dict(zip(columns, ("b", ["x"], [1, 0]), strict=True)),
    ]
    result = read(write(name, rows))
    assert result.positives() == [("a", "y", 0), ("a", "z", 1)]
    assert result.negatives() == [("a", "x", "gold", 0)]
    assert result.bad == [f'"{columns[2]}" is not a list of 1 scores, one for each in "{columns[1]}"']


def test_a_text_that_is_query_and_document_has_two_ids(read, write) -> None:
    result = read(write("train.jsonl", [{"anchor": "same", "positive": "same"}]))
    assert result.records.queries[0].id != result.records.documents[0].id
