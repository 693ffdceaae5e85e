"""Formats that the fields of a row identify."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from raytriever.core.errors import DataError
from raytriever.data.records_and_bad_rows import content_id

# As Tevatron publishes MS MARCO.
FIRST = {
    "query_id": "1185869",
    "query": ")what was the immediate impact of the success of the manhattan project?",
    "positive_passages": [
        {"docid": "0", "title": "Introduction", "text": "The presence of communication amid scientific minds."},
        {"docid": "7", "title": "", "text": "The Manhattan Project and its atomic bomb.", "source": "llm"},
    ],
    "negative_passages": [
        {"docid": "2942565", "title": "Manhattan", "text": "The approval came before Pearl Harbor."},
        {"docid": 2942570, "title": None, "text": "The Manhattan Project began.", "score": 31.5, "origin": "dense"},
    ],
}


@pytest.mark.parametrize("name", ["train.jsonl", "train-00000-of-00001.parquet"])
def test_the_first_generation(read, write, name: str) -> None:
    row = FIRST
    if name.endswith("parquet"):  # a column is of one type
        row = FIRST | {"negative_passages": [p | {"docid": str(p["docid"])} for p in FIRST["negative_passages"]]}
    result = read(write(name, [row]))
    assert (result.plan.format, result.splits) == ("tevatron", ("train",))
    assert [query.id for query in result.records.queries] == ["1185869"]
    assert [(row.document, row.source, row.rank, row.score) for row in result.records.judgements] == [
        ("0", "human", 0, 1),
        ("7", "llm", 1, 1),
    ]
    assert [(row.document, row.origin, row.rank) for row in result.records.negatives] == [
        ("2942565", "bm25", 0),
        ("2942570", "dense", 0),
    ]
    assert math.isnan(result.records.negatives[0].score)
    assert result.records.negatives[1].score == 31.5
    assert [(row.id, row.title) for row in result.records.documents] == [
        ("0", "Introduction"),
        ("7", ""),
        ("2942565", "Manhattan"),
        ("2942570", ""),
    ]


SECOND = [
    {
        "query_id": "q1",
        "query_text": "what is a cell",
        "positive_document_ids": ["a", 2],
        "negative_document_ids": ["c", "b"],
        "negative_scores": [3.5, 2],
        "positive_sources": ["human", "llm"],
    },
    {"query_id": 2, "query_text": "second", "positive_document_ids": [], "negative_document_ids": None},
]
CORPUS = [{"docid": "a", "title": "A", "text": "text a"}, {"docid": 2, "text": "two"}, {"docid": "c", "text": "c"}]


def test_the_second_generation(tmp_path: Path, read, write) -> None:
    write("corpus.jsonl", CORPUS)
    write("train.jsonl", SECOND)
    write("test.jsonl", SECOND[1:])
    result = read(tmp_path / "set")
    assert (result.plan.format, result.splits) == ("tevatron", ("test", "train"))
    assert [part.split for part in result.plan.parts] == [None, "test", "train"]
    assert [row.id for row in result.records.documents] == ["a", "2", "c"]
    assert [row.id for row in result.records.queries] == ["2", "q1", "2"]
    assert [(row.document, row.source, row.rank) for row in result.records.judgements] == [
        ("a", "human", 0),
        ("2", "llm", 1),
    ]
    assert [(row.document, row.origin, row.rank, row.score) for row in result.records.negatives] == [
        ("c", "bm25", 0, 3.5),
        ("b", "bm25", 1, 2.0),
    ]


def test_a_part_alone_is_reported(read, write) -> None:
    with pytest.raises(DataError, match=r"has no corpus of docid, text; it contains train\.jsonl"):
        read(write("train.jsonl", SECOND))
    with pytest.raises(DataError, match=r"has no file of queries"):
        read(write("corpus.jsonl", CORPUS))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query_id": None}, '"query_id" is NoneType, not a string'),
        ({"negative_passages": [{"docid": [], "text": "x"}]}, '"docid" is list, not a string'),
        ({"negative_passages": [{"docid": "0", "text": "x", "score": "high"}]}, '"score" is str, not a number'),
        ({"positive_passages": [{"text": "x", "source": "gpt"}]}, "source 'gpt' is not one of human, llm"),
        ({"negative_passages": [{"text": "x", "origin": []}]}, "origin '[]' is not one of gold, bm25"),
    ],
)
def test_a_bad_row_adds_nothing(read, write, change: dict[str, object], reason: str) -> None:
    result = read(write("train.jsonl", [FIRST | change, FIRST]))
    assert len(result.bad) == 1
    assert result.bad[0].startswith(reason)
    assert (len(result.records.queries), len(result.records.documents)) == (1, 4)
    assert (len(result.records.judgements), len(result.records.negatives)) == (2, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"negative_scores": [1.0]}, '"negative_scores" has 1 scores for 2 values in "negative_document_ids"'),
        ({"positive_sources": ["llm"]}, '"positive_sources" has 1 values for 2 in "positive_document_ids"'),
        ({"positive_document_ids": [None]}, '"positive_document_ids[0]" is NoneType, not a string'),
        ({"negative_document_ids": "c"}, '"negative_document_ids" is str, not a list'),
    ],
)
def test_lists_that_do_not_go_along(tmp_path: Path, read, write, change: dict[str, object], reason: str) -> None:
    write("corpus.jsonl", CORPUS)
    write("train.jsonl", [SECOND[0] | change, SECOND[1]])
    assert read(tmp_path / "set").bad == [reason]


BIG_LITTLE_LIES = {"title": "Big Little Lies", "text": "series garnered", "passage_id": "18768923"}
ROW = {
    "dataset": "nq_train_psgs_w100",
    "question": "big little lies season 2 how many episodes",
    "answers": ["seven"],
    "positive_ctxs": [
        BIG_LITTLE_LIES | {"score": 1000, "title_score": 1},
        BIG_LITTLE_LIES | {"score": 14.1, "title_score": 0},
        {"title": "Big Little Lies 2", "text": "another", "score": 1, "title_score": 0, "psg_id": 5},
    ],
    "negative_ctxs": [{"title": "Cormac", "text": "chores of the house", "score": 0, "title_score": 0}],
    "hard_negative_ctxs": [
        {"title": "Little", "text": "season of", "score": 12.5, "title_score": 0, "passage_id": "3"}
    ],
}


@pytest.mark.parametrize("name", ["nq-train.json.gz", "nq-train.parquet"])
def test_contexts(read, write, name: str) -> None:
    result = read(write(name, [ROW]))
    assert (result.plan.format, result.splits) == ("dpr", ("train",))
    question = content_id(ROW["question"])
    assert [row.id for row in result.records.queries] == [question]
    # A positive that is listed twice is one.
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
def test_the_pack_as_lines_and_as_one_array(data_packs: Path, tmp_path: Path, read) -> None:
    result = read(data_packs / "dpr-tiny")
    assert (result.plan.format, result.splits, result.bad) == ("dpr", ("train",), [])
    assert len(result.records.queries) == 20
    packed = b"".join((data_packs / "dpr-tiny" / f"{name}.jsonl.gz").read_bytes() for name in ("nq", "squad1"))
    rows = [json.loads(line) for line in gzip.decompress(packed).split(b"\n") if line]
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


SCORED = {
    "query": "how tall is it",
    "pos": ["one", "two"],
    "neg": ["three", "four"],
    "pos_scores": [0.9, 0.8],
    "neg_scores": [0.4, 1],
    "prompt": "Given a question, find its answer.",
    "type": "normal",
}


@pytest.mark.parametrize("name", ["train.json", "x/train-00000-of-00001.parquet"])
def test_lists(read, write, name: str) -> None:
    result = read(write(name, [SCORED]))
    assert (result.plan.format, result.splits, result.bad) == ("flagembedding", ("train",), [])
    assert result.positives() == [("how tall is it", "one", 0), ("how tall is it", "two", 1)]
    assert result.negatives() == [("how tall is it", "three", "dense", 0), ("how tall is it", "four", "dense", 1)]
    assert [row.score for row in result.records.negatives] == [0.4, 1.0]


def test_a_score_beyond_all_numbers_is_bad(tmp_path: Path, read) -> None:
    rows = [
        json.dumps(SCORED).replace("[0.4, 1]", scores) for scores in ("[0.4, 1e999]", "[NaN, 1]", f"[1, 1{'0' * 400}]")
    ]
    (tmp_path / "train.jsonl").write_text("\n".join([*rows, json.dumps(SCORED | {"neg_scores": []})]))
    result = read(tmp_path / "train.jsonl")
    assert [reason[:30] for reason in result.bad] == [
        '"neg_scores[1]" is inf, not a ',
        "not JSON (NaN is not a number ",
        '"neg_scores[1]" is 10000000000',
    ]
    assert all(math.isnan(row.score) for row in result.records.negatives)


ROWS = [
    {"premise": "Two women embrace.", "hypothesis": "Women touch.", "label": "entailment", "split": "validation"},
    {"premise": "Two women embrace.", "hypothesis": "Men fight.", "label": "contradiction", "split": "validation"},
    {"premise": "A man plays.", "hypothesis": "He is glad.", "label": "neutral", "split": "train"},
]


def test_what_labels_mean(read, write) -> None:
    result = read(write("pairs.jsonl.gz", ROWS))
    assert (result.plan.format, result.splits) == ("pairs", ())
    assert result.plan.parts[0].split is None
    assert result.positives() == [("Two women embrace.", "Women touch.", 0)]
    assert result.negatives() == [("Two women embrace.", "Men fight.", "gold", 0)]
    assert {row.split for row in result.records.judgements} == {"dev"}
    assert {row.text for row in result.records.documents} == {"Women touch.", "Men fight.", "He is glad."}
    assert {row.text for row in result.records.queries} == {"Two women embrace.", "A man plays."}


def test_numbers_as_the_hub_has_them(read, write) -> None:
    rows = [{key: row[key] for key in ("premise", "hypothesis")} | {"label": n} for n, row in enumerate(ROWS[:1] * 4)]
    rows[3]["label"] = -1
    result = read(write("plain_text/validation-00000-of-00001.parquet", rows))
    assert (result.plan.format, result.splits) == ("pairs", ("dev",))
    assert (len(result.records.judgements), len(result.records.negatives)) == (1, 1)
    assert result.records.judgements[0].split == "dev"
    assert result.bad == ["label '-1' is not one of entailment, neutral, contradiction or 0, 1, 2"]


@pytest.mark.parametrize("split", ["../../x", "/x", "..", "a" * 200, "a\x00"])
def test_a_split_is_a_name_and_no_path(read, write, split: str) -> None:
    result = read(write("pairs.jsonl", [ROWS[0] | {"split": split}, ROWS[0]]))
    assert result.bad == [f"split {split[:20]!r} is not a name; use letters, digits, '_', '.' and '-'"]
    assert {row.split for row in result.records.judgements} == {"dev"}


def test_pairs_triplets_and_more(read, write) -> None:
    result = read(write("train.jsonl", [{"question": "a?", "answer": "a"}, {"question": "b?", "answer": "b"}]))
    assert (result.plan.format, result.splits) == ("sentence-transformers", ("train",))
    assert result.positives() == [("a?", "a", 0), ("b?", "b", 0)]
    rows = [
        {"anchor": "a", "positive": "p", "negative_10": "n10", "negative_2": "n2", "negative": "n"},
        {"anchor": "b", "positive": "p", "negative": None, "negative_2": "m2", "negative_10": "m10"},
    ]
    result = read(write("triplet/dev.parquet", rows))
    assert result.splits == ("dev",)
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
    scores = [negative.score for negative in result.records.negatives]
    assert scores[:2] == [1.0, -2.5]
    assert all(math.isnan(score) for score in scores[2:])
    assert result.bad == ['"label" has 1 scores for 3 values in "positive and negatives"']


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
    assert [row.score for row in result.records.judgements] == [0.5, 0.49, 1, 0, 2, 1]
    assert [(text, origin) for _, text, origin, _ in result.negatives()] == [("text 1", "gold"), ("text 3", "gold")]
    assert [row.score for row in result.records.negatives] == [0.49, 0.0]
    assert [row.rank for row in result.records.judgements] == [0] * 6
    message = "neither a grade (0, 1, ...) nor in [0, 1]: divide by the largest"
    assert result.bad == [
        f'"{score}" is -1, {message}',
        f'"{score}" is 4.2, {message}',
        f'"{score}" is NoneType, not a number',
        f'"{score}" is str, not a number',
        f'"{score}" is bool, not a number',
    ]


@pytest.mark.parametrize(
    ("columns", "name"),
    [(("query", "docs", "labels"), "train.jsonl"), (("question", "answer", "scores"), "train.parquet")],
)
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
