"""BEIR layout; and `ir_datasets` itself, with data sets registered in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import ir_datasets
import pytest
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQuery, TrecDoc, TrecQrel

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source
from raytriever.data.formats.known_formats import recognize
from raytriever.data.records_and_bad_rows import Judgement

CORPUS = [{"_id": f"d{n}", "title": f"T{n}", "text": f"text {n}"} for n in range(5)]
QUERIES = [{"_id": f"q{n}", "text": f"query {n}"} for n in range(5)]
JUDGED = [{"query-id": f"q{n}", "corpus-id": f"d{n}", "score": int(n > 0)} for n in range(5)]


def qrels(file: Path, rows: list[str], header: str = "query-id\tcorpus-id\tscore") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(row + "\n" for row in [header, *rows]))


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_folder(tmp_path: Path, read, write, ending: str) -> None:
    write(f"corpus.{ending}", CORPUS)
    write(f"queries.{ending}", QUERIES)
    qrels(tmp_path / "set" / "qrels" / "train.tsv", ["q1\td1\t1"])
    qrels(tmp_path / "set" / "qrels" / "validation.tsv", ["q2\td2\t0", "q2\td3\t2"])
    (tmp_path / "set" / "README.md").write_text("about")
    write("answers.jsonl", [{"_id": "q1", "answers": ["a"]}])
    write("notes.jsonl", [{"_id": "q1"}])
    result = read(tmp_path / "set")
    assert (result.plan.format, result.splits) == ("beir", ("train", "dev"))
    assert [part.split for part in result.plan.parts] == [None, None, None, "train", "dev"]
    assert result.records.answers == [("q1", "a")]
    assert [row.title for row in result.records.documents] == [f"T{n}" for n in range(5)]
    assert [row.id for row in result.records.queries] == [f"q{n}" for n in range(5)]
    assert [(row.split, row.query, row.document, row.score) for row in result.records.judgements] == [
        ("train", "q1", "d1", 1),
        ("dev", "q2", "d2", 0),
        ("dev", "q2", "d3", 2),
    ]
    assert result.negatives() == [("query 2", "text 2", "gold", 0)]
    assert not result.bad


def test_source_and_rank_of_judgements(tmp_path: Path, read, write) -> None:
    write("corpus.jsonl", CORPUS)
    write("queries.jsonl", QUERIES)
    header = "query-id\tcorpus-id\tscore"
    folder = tmp_path / "set" / "qrels"
    qrels(
        folder / "both.tsv",
        ["q1\td1\t1\tllm\t2", "q1\td2\t1\thuman\t0", "q1\td3\t1", "q1\td3\t1\tgpt\t1", "q1\td3\t1\tllm\t-1"],
        header + "\tsource\trank",
    )
    qrels(folder / "rank.tsv", ["q2\td1\t1\t3"], header + "\trank")
    qrels(folder / "source.tsv", ["q3\td1\t1\tllm"], header + "\tsource")
    result = read(tmp_path / "set")
    assert result.records.judgements == [
        Judgement("both", "q1", "d1", 1, "llm", 2),
        Judgement("both", "q1", "d2", 1, "human", 0),
        Judgement("rank", "q2", "d1", 1, "human", 3),
        Judgement("source", "q3", "d1", 1, "llm", 0),
    ]
    assert result.bad == [
        "3 columns, not 5 separated by tabs",
        "source 'gpt' is not one of human, llm",
        "rank '-1' is not a whole number of at least 0",
    ]


@pytest.mark.parametrize("folder", ["qrels", "default", "data"])
def test_parquet_shards_as_the_hub_has_them(tmp_path: Path, read, write, folder: str) -> None:
    write("corpus/corpus-00000-of-00002.parquet", CORPUS[:3])
    write("corpus/corpus-00001-of-00002.parquet", [{"id": 3, "title": None, "text": "text 3"}])
    write("queries/queries-00000-of-00001.parquet", QUERIES)
    write(f"{folder}/test-00000-of-00001.parquet", [row | {"score": float(row["score"])} for row in JUDGED])
    result = read(tmp_path / "set")
    assert (result.plan.format, result.splits) == ("beir", ("test",))
    assert [row.id for row in result.records.documents] == ["d0", "d1", "d2", "3"]
    assert [row.score for row in result.records.judgements] == [0, 1, 1, 1, 1]
    assert not result.bad


def test_judgements_as_json_lines(tmp_path: Path, read, write) -> None:
    write("corpus.jsonl", CORPUS)
    write("queries.jsonl", QUERIES)
    more = [{"source": "llm", "rank": 1}, {"source": None}, {"score": True}, {"score": 0.5}, {"score": None}]
    write("qrels/test.jsonl", [row | extra for row, extra in zip(JUDGED, more, strict=True)])
    result = read(tmp_path / "set")
    assert [(row.document, row.source, row.rank) for row in result.records.judgements] == [
        ("d0", "llm", 1),
        ("d1", "human", 0),
    ]
    assert result.bad == [f"score {message!r} is not an integer" for message in ("True", "0.5", "None")]


def test_the_plain_file_goes_before_the_packed(tmp_path: Path, read, write) -> None:
    for name, rows in (("corpus.jsonl", CORPUS), ("queries.jsonl", QUERIES)):
        write(name, rows)
        write(name + ".gz", rows[:1])
    qrels(tmp_path / "set" / "qrels" / "test.tsv", ["q1\td1\t1"])
    assert len(read(tmp_path / "set").records.documents) == 5


class TitledDoc(NamedTuple):
    doc_id: str
    text: str
    title: str

    def default_text(self) -> str:
        return f"{self.title} {self.text}"


class Docs(BaseDocs):
    rows: ClassVar[list[Any]] = [
        TitledDoc(f"d{n}", f"text {n}\u2028 \ud800" if n == 3 else f"text {n}\u2028", f"T{n}") for n in range(5)
    ]

    def docs_iter(self) -> Iterator[Any]:
        return iter(self.rows)

    def docs_cls(self) -> type:
        return type(self.rows[0])


class OldDocs(Docs):
    rows: ClassVar[list[Any]] = [TrecDoc("d1", "old text", "<doc>")]


class Queries(BaseQueries):
    def queries_iter(self) -> Iterator[Any]:
        return iter([GenericQuery(f"q{n}", f"query {n}") for n in range(3)])

    def queries_cls(self) -> type:
        return GenericQuery


class Qrels(BaseQrels):
    def __init__(self, rows: list[TrecQrel]) -> None:
        self.rows = rows

    def qrels_iter(self) -> Iterator[Any]:
        return iter(self.rows)

    def qrels_cls(self) -> type:
        return TrecQrel


class Gone(Docs):
    def docs_iter(self) -> Iterator[Any]:
        yield self.rows[0]
        raise ConnectionError("the mirror is gone")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ir_datasets.registry, "_registered", dict(ir_datasets.registry._registered))
    train, test = (
        Qrels([TrecQrel("q0", "d0", 1, "0")]),
        Qrels([TrecQrel("q1", "d1", 2, "0"), TrecQrel("q1", "d2", 0, "0")]),
    )
    for name, parts in {
        "here/tiny": (Docs(), Queries()),
        "here/tiny/train": (Docs(), Queries(), train),
        "here/tiny/valid": (Docs(), Queries(), test),
        "here/tiny/trec-2020": (Docs(), Queries(), test),
        "here/alone": (OldDocs(), Queries(), test),
        "here/texts": (Docs(), Queries()),
        "here/gone": (Gone(), Queries(), test),
    }.items():
        ir_datasets.registry.register(name, Dataset(*parts))


def test_a_name_with_splits_below_it(registered: None, read) -> None:
    result = read("ir_datasets:here/tiny", size=40)
    assert (result.plan.format, result.splits) == ("ir_datasets", ("train", "dev"))
    assert [(row.id, row.title, row.text) for row in result.records.documents] == [
        (f"d{n}", f"T{n}", f"text {n}\u2028") for n in (0, 1, 2, 4)
    ]
    assert [reason[:4] for reason in result.bad] == ["byte"]
    assert [row.text for row in result.records.queries] == ["query 0", "query 1", "query 2"]
    assert [(row.split, row.query, row.document, row.score) for row in result.records.judgements] == [
        ("train", "q0", "d0", 1),
        ("dev", "q1", "d1", 2),
        ("dev", "q1", "d2", 0),
    ]
    assert Source.open("ir_datasets:here/tiny").name == "tiny"


def test_a_name_with_judgements_of_its_own_is_test(registered: None, read) -> None:
    result = read("ir_datasets:here/alone")
    assert result.splits == ("test",)
    assert result.records.documents[0].text == "old text"
    assert recognize(Source.open("ir_datasets:here/tiny/train")).parts[-1].split == "train"


def test_what_is_not_there_is_one_line(registered: None, read, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"ir_datasets has no such name; did you mean 'here/tiny'\?"):
        read("ir_datasets:here/tinny")
    with pytest.raises(DataError, match="has no judgements of a split"):
        read("ir_datasets:here/texts")
    with pytest.raises(DataError, match=r"#docs: cannot be read after row 1 \(ConnectionError: the mirror is gone\)"):
        read("ir_datasets:here/gone")
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(DataError, match=r"ir_datasets is not installed; pip install 'raytriever\[sources\]'"):
        recognize(Source.open("ir_datasets:beir/scifact"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("test.txt", "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n"),
        ("test.TSV", "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n"),
        ("test.csv", '\ufeffquery-id,corpus-id,score\nq1,"d1",1\nq1,d2,0\n'),
        ("Test.CSV".lower(), "corpus-id;score;query-id\nd1;1;q1\nd2;0;q1\n"),
        ("test.txt", "q1 Q0 d1 1\nq1 0 d2 0\n"),
        ("test.tsv", "q1\tQ0\td1\t1\nq1\tQ0\td2\t0\n"),
    ],
)
def test_judgements_in_other_forms(tmp_path: Path, read, write, name: str, content: str) -> None:
    write("corpus.jsonl", CORPUS)
    write("queries.jsonl", QUERIES)
    (tmp_path / "set" / "qrels").mkdir()
    (tmp_path / "set" / "qrels" / name).write_text(content)
    (tmp_path / "set" / "qrels" / "README.txt").write_text("about")
    result = read(tmp_path / "set")
    assert (result.splits, result.plan.note, result.bad) == (("test",), "", [])
    assert [row[:4] for row in result.records.judgements] == [("test", "q1", "d1", 1), ("test", "q1", "d2", 0)]


def test_judgements_that_are_not_read_are_named(tmp_path: Path, read, write) -> None:
    write("corpus.jsonl", CORPUS)
    write("queries.jsonl", QUERIES)
    for name in ("qrels.tsv", "qrels/test.qrel", "qrels-dev.txt"):
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / name).write_text("q1\td1\t1\n")
    assert read(tmp_path / "set").plan.note == (
        "not read: qrels-dev.txt, qrels.tsv, qrels/test.qrel; judgements are read from qrels/<split>.tsv, such as "
        "qrels/test.tsv"
    )
    (tmp_path / "set" / "qrels" / "test.csv").write_text("query,document\nq1,d1\n")
    with pytest.raises(DataError, match=r"the header is 'query,document'; it must be query-id,corpus-id,score"):
        read(tmp_path / "set")


def test_either_the_title_or_the_text_may_be_empty(tmp_path: Path, read, write) -> None:
    passages = [{"title": "T", "text": ""}, {"title": "T", "text": None}, {"text": "x"}, {"title": "", "text": "x"}]
    bad = [{"title": "", "text": " "}, {"title": "T"}, {"title": 1, "text": "x"}]
    write("corpus.jsonl", [{"_id": f"d{n}", **row} for n, row in enumerate([*passages, *bad])])
    result = read(tmp_path / "set")
    assert [(row.title, row.text) for row in result.records.documents] == [("T", ""), ("T", ""), ("", "x"), ("", "x")]
    assert result.bad == ['empty "text"', 'no field "text"; the fields are _id, title', '"title" is int, not a string']
