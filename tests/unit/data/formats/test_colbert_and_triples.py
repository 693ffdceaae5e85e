"""Files without headers: triples of texts, and the folders of ColBERT."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from raytriever.core.errors import DataError
from raytriever.data.data_settings import SplitConfig
from raytriever.data.data_sources import Source
from raytriever.data.formats.known_formats import recognize
from raytriever.data.prepare.open_dataset import open_all_splits

COLLECTION = "0\tWipe it with a cloth.\n1\tTurn it slowly, by hand.\tManual\r\n2\tWait.\n"
QUERIES = "7\thow do I clean it\n8\thow do I turn it\n"
QRELS = "7\t0\t0\t1\n8\t0\t1\t2\n"


def folder(path: Path, **files: str) -> Path:
    for name, text in {"collection": COLLECTION, "queries": QUERIES, **files}.items():
        file = path / name.replace("__", ".")
        (file if file.suffix else file.with_suffix(".tsv")).write_text(text)
    return path


def test_a_folder_of_colbert(tmp_path: Path, read) -> None:
    result = read(folder(tmp_path, qrels__dev__small__tsv=QRELS))
    assert (result.plan.format, result.splits, result.bad) == ("colbert", ("dev",), [])
    assert result.positives() == [
        ("how do I clean it", "Wipe it with a cloth.", 0),
        ("how do I turn it", "Turn it slowly, by hand.", 0),
    ]
    assert [document.title for document in result.records.documents] == ["", "Manual", ""]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("triples__train__json", "[7, 0, 1, 2]\n[8, [1, 9.5], [0, 3.5]]\n"),
        ("qidpidtriples__train__tsv", "7\t0\t1\n7\t0\t2\n8\t1\t0\n"),
    ],
)
def test_triples_of_ids(tmp_path: Path, read, name: str, text: str) -> None:
    result = read(folder(tmp_path, **{name: text}))
    assert (result.plan.format, result.splits, result.bad) == ("colbert", ("train",), [])
    assert {(judgement.query, judgement.document) for judgement in result.records.judgements} == {
        ("7", "0"),
        ("8", "1"),
    }
    assert [(negative.query, negative.document) for negative in result.records.negatives] == [
        ("7", "1"),
        ("7", "2"),
        ("8", "0"),
    ]
    dataset = open_all_splits(tmp_path, max_bad_rows=0)
    assert dataset.counts()["train_positives"] == 2


def test_a_folder_without_splits_is_divided(tmp_path: Path) -> None:
    folder(
        tmp_path,
        queries="".join(f"{n}\tquestion {n}\n" for n in range(40)),
        qrels="".join(f"{n}\t0\t{n % 3}\t1\n{n}\t0\t{(n + 1) % 3}\t1\n" for n in range(40)),
    )
    lines: list[str] = []
    counts = open_all_splits(tmp_path, log=lines.append).counts()
    assert "qrels.tsv: of its queries train has 16, dev has 12, test has 12, by their digest" in lines[0]
    assert [counts[f"{split}_positives"] for split in ("train", "dev", "test")] == [32, 24, 24]


def test_a_collection_may_be_alone(tmp_path: Path, read) -> None:
    (tmp_path / "collection.tsv.gz").write_bytes(gzip.compress(COLLECTION.encode()))
    result = read(tmp_path)
    assert (result.plan.has_queries, len(result.records.documents)) == (False, 3)


@pytest.mark.parametrize(
    ("files", "reasons"),
    [
        (
            {"collection": "0\n1\tTurn it.\n", "qrels__train__tsv": QRELS},
            ["1 column, not 2 or 3: passage id, text and perhaps a t"],
        ),
        ({"collection": "0\t \n1\tTurn it.\n", "qrels__train__tsv": QRELS}, ['empty "text"']),
        ({"queries": "7\n8\twhat\n", "qrels__train__tsv": QRELS}, ["one column, not id and text separated by a tab"]),
        ({"qrels__train__tsv": "7\t0\t1\n8\t0\t1\t1\n"}, ["3 columns, not 4: query id, Q0, document id, grade"]),
        (
            {"triples__train__tsv": "7\t0\n8\t1\t0\n"},
            ["2 columns, not 3 or more: ids of the query, the positive and negatives"],
        ),
        (
            {"triples__train__json": "[7, 0]\n[7, null, 1]\n[7, 0, [1]]\n[7\n[8, 1, 0]\n"},
            ["2 columns", '"id" is', '"id"', "not J"],
        ),
    ],
)
def test_a_bad_row_of_colbert(tmp_path: Path, read, files: dict[str, str], reasons: list[str]) -> None:
    bad = read(folder(tmp_path, **files)).bad
    assert len(bad) == len(reasons)
    assert all(actual.startswith(reason) for actual, reason in zip(bad, reasons, strict=True))


def test_a_folder_that_is_not_whole_is_one_line(tmp_path: Path) -> None:
    folder(tmp_path)
    with pytest.raises(DataError, match=r"has no qrels\.tsv or triples\.json; it has collection\.tsv, queries\.tsv"):
        recognize(Source.open(tmp_path))
    (tmp_path / "queries.tsv").rename(tmp_path / "qrels.tsv")
    with pytest.raises(DataError, match=r"has no queries\.tsv; it has collection\.tsv, qrels\.tsv; add it, with t"):
        recognize(Source.open(tmp_path))
    folder(tmp_path, triples=triples(1), qrels=QRELS)
    with pytest.raises(DataError, match=r"triples\.tsv: has texts, but triples next to a collection must be ids"):
        recognize(Source.open(tmp_path))


def triples(count: int) -> str:
    return "".join(f"how to clean {n}\tWipe it {n} times.\tTurn the other part {n}.\n" for n in range(count))


def test_triples_that_name_no_split_are_divided(tmp_path: Path) -> None:
    (tmp_path / "mined.tsv").write_text(triples(40))
    plan = recognize(Source.open(tmp_path), config=SplitConfig(test_fraction=0.2, dev_fraction=0.0))
    assert plan.note.startswith(
        "mined.tsv is read as query<TAB>positive<TAB>negative, because its first row is not a header"
    )
    assert "; of its queries train has 32, dev has 0, test has 8, by their digest" in plan.note
    dataset = open_all_splits(tmp_path, max_bad_rows=0)
    assert dataset.negatives is not None
    assert (len(dataset.documents), len(dataset.negatives.queries)) == (80, 40)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("what is it\tIt is a pump.", "2 columns, not 3: query, positive and negative, separated by tabs"),
        ("what is it\t\tIt is a pump.", 'empty "positive"'),
        (" \tIt is a pump.\tIt is a valve.", 'empty "query"'),
        ("what\tIt is a pump.\tIt is a valve.\tscore", "4 columns, not 3"),
    ],
)
def test_a_bad_triple(tmp_path: Path, read, row: str, reason: str) -> None:
    (tmp_path / "train.tsv").write_text(f"{triples(2)}{row}\n")
    [bad] = read(tmp_path).bad
    assert bad.startswith(reason)


@pytest.mark.parametrize(
    ("name", "first", "header"),
    [
        ("faq.csv", "how do I clean it,Wipe it with a dry cloth.", "query,passage"),
        ("faq.tsv", "7\t0\t1", "query<TAB>positive<TAB>negative"),
    ],
)
def test_a_table_without_a_header_is_one_line(tmp_path: Path, name: str, first: str, header: str) -> None:
    (tmp_path / name).write_text(f"{first}\n{first}\n")
    with pytest.raises(
        DataError, match=rf"has no header: .* write the names of its columns above it, such as {header}"
    ):
        recognize(Source.open(tmp_path))
