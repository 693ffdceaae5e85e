"""`ir_datasets` itself, with a data set registered in it, and with a mirror of its own under IR_DATASETS_HOME."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import ir_datasets
import pytest
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQuery, TrecDoc, TrecQrel

from raytriever.data.formats.recognise import recognise
from raytriever.data.sources import Source
from raytriever.errors import DataError


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
    assert (result.plan.format, result.plan.splits) == ("ir_datasets", ("train", "dev"))
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
    assert result.plan.splits == ("test",)
    assert result.records.documents[0].text == "old text"
    assert recognise(Source.open("ir_datasets:here/tiny/train")).splits == ("train",)


def test_what_is_not_there_is_one_line(registered: None, read, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"ir_datasets has no such name; did you mean 'here/tiny'\?"):
        read("ir_datasets:here/tinny")
    with pytest.raises(DataError, match="has no judgements of a split"):
        read("ir_datasets:here/texts")
    with pytest.raises(DataError, match=r"#docs: cannot be read after row 1 \(ConnectionError: the mirror is gone\)"):
        read("ir_datasets:here/gone")
    importing = builtins.__import__

    def missing(name: str, *arguments: Any) -> Any:
        if name == "ir_datasets":
            raise ImportError(name)
        return importing(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(DataError, match=r"ir_datasets is not installed; pip install 'raytriever\[sources\]'"):
        recognise(Source.open("ir_datasets:beir/scifact"))
