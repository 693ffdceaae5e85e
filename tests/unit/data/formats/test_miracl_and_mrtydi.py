"""Topics next to a corpus: MIRACL and Mr. TyDi."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source
from raytriever.data.formats.known_formats import recognize
from raytriever.data.formats.trec_runs import run_lines

PASSAGES = [{"docid": f"{row}#0", "title": "Seli", "text": f"Aya ya {row}."} for row in range(4)]


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, str], Path]:
    """Text as a file of the folder, gzipped where its name says so."""

    def file(name: str, text: str) -> Path:
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return tmp_path / "set"

    return file


@pytest.fixture
def miracl(put) -> Path:
    """A language as in miracl/miracl, with two files of miracl/miracl-corpus."""
    put("README.md", "# MIRACL")
    put("topics/topics.miracl-v1.0-sw-train.tsv", "7\tSeli ni nini?\n")
    put("topics/topics.miracl-v1.0-sw-dev.tsv", "0\tNani aligundua seli?\n1\tLini?\n")
    put("topics/topics.miracl-v1.0-sw-test-a.tsv", "9\tWapi?\n")
    put("qrels/qrels.miracl-v1.0-sw-train.tsv", "7\tQ0\t0#0\t1\n")
    put("qrels/qrels.miracl-v1.0-sw-dev.tsv", "0\tQ0\t1#0\t1\n0\tQ0\t2#0\t0\n1\tQ0\t3#0\t1\n")
    for number in range(2):
        put(f"docs-{number}.jsonl.gz", "".join(json.dumps(passage) + "\n" for passage in PASSAGES[2 * number :][:2]))
    return put("qrels/NOTE", "")


def test_a_language_of_miracl(read, miracl: Path) -> None:
    result = read(miracl)
    assert (result.plan.format, set(result.splits)) == ("trec", {"train", "dev"})
    assert {(row.split, row.query, row.document, row.score) for row in result.records.judgements} == {
        ("train", "7", "0#0", 1),
        ("dev", "0", "1#0", 1),
        ("dev", "0", "2#0", 0),
        ("dev", "1", "3#0", 1),
    }
    assert [(row.document, row.origin) for row in result.records.negatives] == [("2#0", "gold")]
    assert {(row.id, row.title, row.text) for row in result.records.documents} == {
        (passage["docid"], "Seli", passage["text"]) for passage in PASSAGES
    }
    queries = {"7": "Seli ni nini?", "0": "Nani aligundua seli?", "1": "Lini?", "9": "Wapi?"}
    assert {query.id: query.text for query in result.records.queries} == queries
    assert result.bad == []


def test_a_language_of_mr_tydi(read, put) -> None:
    rows = [
        {"id": "1#0", "contents": "Solu\n\nSolu on elämän yksikkö.\n\nSe jakautuu."},
        {"id": "2#0", "contents": "Ilman otsikkoa."},
        {"id": "3#0", "contents": "Kaksi\nriviä\n\nja lisää"},
    ]
    put("collection/docs.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows))
    for split, query in (("train", "1"), ("dev", "2"), ("test", "3")):
        put(f"topic.{split}.tsv", f"{query}\tMikä on solu?\r\n")
        put(f"qrels.{split}.txt", f"{query} Q0 1#0 1\n")
    put("topic.tsv", "1\tMikä on solu?\n2\tMikä on solu?\n3\tMikä on solu?\n")
    result = read(put("qrels.txt", "1 Q0 1#0 1\n2 Q0 1#0 1\n3 Q0 1#0 1\n"))
    assert (result.plan.format, set(result.splits)) == ("trec", {"train", "dev", "test"})
    assert [(row.id, row.title, row.text) for row in result.records.documents] == [
        ("1#0", "Solu", "Solu on elämän yksikkö.\n\nSe jakautuu."),
        ("2#0", "", "Ilman otsikkoa."),
        ("3#0", "", "Kaksi\nriviä\n\nja lisää"),
    ]
    assert sorted((row.split, row.query) for row in result.records.judgements) == [
        ("dev", "2"),
        ("test", "3"),
        ("train", "1"),
    ]
    assert {query.text for query in result.records.queries} == {"Mikä on solu?"}


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("docs-*", r"has no corpus; it contains README.md, qrels, topics; add docs-0.jsonl.gz or corpus.jsonl \(docid"),
        ("qrels/*", r"has no judgements; it contains README.md, docs-0.jsonl.gz, .*; add qrels/qrels.NAME-dev.tsv or"),
        ("topics/*", r"has no file of queries; it contains README.md, docs-0.jsonl.gz"),
    ],
)
def test_what_is_missing_is_said(miracl: Path, removed: str, message: str) -> None:
    for file in miracl.glob(removed):
        file.unlink()
    with pytest.raises(DataError, match=message):
        recognize(Source.open(miracl))


def test_languages_in_one_folder_are_refused(miracl: Path, put) -> None:
    put("topics/topics.miracl-v1.0-yo-dev.tsv", "0\tKini?\n")
    with pytest.raises(DataError, match=r"holds several data sets: miracl-v1.0-sw, miracl-v1.0-yo; give a folder with"):
        recognize(Source.open(miracl))


def test_bad_rows_have_a_reason(read, put, miracl: Path) -> None:
    put("topics/topics.miracl-v1.0-sw-dev.tsv", "0\tNani aligundua seli?\nLini?\n\tLini?\n2\t \n")
    put("qrels/qrels.miracl-v1.0-sw-dev.tsv", "0\tQ0\t1#0\t1\n0\t1#0\t1\n0\tQ0\t1#0\tyes\n")
    assert read(miracl).bad == [
        "one column, not id and text separated by a tab",
        'empty "id"',
        'empty "text"',
        "3 columns, not 4: query id, Q0, document id, grade",
        "grade 'yes' is not an integer",
    ]


def test_a_byte_order_mark_and_blank_lines_of_a_run_file_are_skipped(tmp_path: Path) -> None:
    run = tmp_path / "run.trec"
    run.write_bytes(b"\xef\xbb\xbfq1 Q0 d1 1 2.5 tag\n\nq2 Q0 d2 1 1.5 tag\r\n")
    assert [line[1:] for line in run_lines(str(run))] == [("q1", "d1", 2.5), ("q2", "d2", 1.5)]
