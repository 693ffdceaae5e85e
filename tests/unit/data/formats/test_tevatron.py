from __future__ import annotations

import math
from pathlib import Path

import pytest

from raytriever.errors import DataError

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


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz", "train.json", "train-00000-of-00001.parquet"])
def test_the_first_generation(read, write, name: str) -> None:
    row = FIRST
    if name.endswith("parquet"):  # a column is of one type
        row = FIRST | {"negative_passages": [p | {"docid": str(p["docid"])} for p in FIRST["negative_passages"]]}
    result = read(write(name, [row]))
    assert (result.plan.format, result.plan.splits) == ("tevatron", ("train",))
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
    assert (result.plan.format, result.plan.splits) == ("tevatron", ("test", "train"))
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
    with pytest.raises(DataError, match=r"no corpus of docid, text in it; it holds train\.jsonl"):
        read(write("train.jsonl", SECOND))
    with pytest.raises(DataError, match=r"no file of queries in it"):
        read(write("corpus.jsonl", CORPUS))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query_id": None}, '"query_id" is NoneType, not a string'),
        ({"negative_passages": [{"docid": [], "text": "x"}]}, '"docid" is list, not a string'),
        ({"negative_passages": [{"docid": "0", "text": "x", "score": "high"}]}, '"score" is str, not a number'),
        ({"positive_passages": [{"text": "x", "source": "gpt"}]}, "source 'gpt' is none of human, llm"),
        ({"negative_passages": [{"text": "x", "origin": []}]}, "origin '[]' is none of gold, bm25"),
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
        ({"negative_scores": [1.0]}, '"negative_scores" has 1 scores for 2 in "negative_document_ids"'),
        ({"positive_sources": ["llm"]}, '"positive_sources" has 1 for 2 in "positive_document_ids"'),
        ({"positive_document_ids": [None]}, '"positive_document_ids[0]" is NoneType, not a string'),
        ({"negative_document_ids": "c"}, '"negative_document_ids" is str, not a list'),
    ],
)
def test_lists_that_do_not_go_along(tmp_path: Path, read, write, change: dict[str, object], reason: str) -> None:
    write("corpus.jsonl", CORPUS)
    write("train.jsonl", [SECOND[0] | change, SECOND[1]])
    assert read(tmp_path / "set").bad == [reason]


def test_a_language_of_miracl_with_its_corpus(read, write) -> None:
    passages = [{"docid": f"{row}#0", "title": "细胞", "text": f"第{row}段"} for row in range(3)]
    query = {"query": "什么是细胞", "positive_passages": passages[:1], "negative_passages": passages[1:2]}
    for split in ("train", "dev"):
        write(f"{split}.jsonl.gz", [{"query_id": f"{split}#0", **query}])
    result = read(write("docs-0.jsonl.gz", passages).parent)
    assert (result.plan.format, set(result.plan.splits)) == ("tevatron", {"train", "dev"})
    assert {(row.split, row.document) for row in result.records.judgements} == {("train", "0#0"), ("dev", "0#0")}
    assert {row.id for row in result.records.documents} == {"0#0", "1#0", "2#0"}
