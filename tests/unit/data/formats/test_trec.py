"""Topics or questions next to a corpus: MIRACL, Mr. TyDi and MKQA."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from raytriever.data.formats.recognise import recognise
from raytriever.data.formats.trec import read_run_scores
from raytriever.data.prepare.open import open_dataset
from raytriever.data.sources import Source
from raytriever.errors import DataError
from raytriever.evaluation.evaluate import evaluate
from raytriever.evaluation.protocol import Protocol, select_judged_queries

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
        put(f"docs-{number}.jsonl.gz", "".join(json.dumps(one) + "\n" for one in PASSAGES[2 * number :][:2]))
    return put("qrels/NOTE", "")


def test_a_language_of_miracl(read, miracl: Path) -> None:
    result = read(miracl)
    assert (result.plan.format, set(result.plan.splits)) == ("trec", {"train", "dev"})
    assert {(row.split, row.query, row.document, row.score) for row in result.records.judgements} == {
        ("train", "7", "0#0", 1),
        ("dev", "0", "1#0", 1),
        ("dev", "0", "2#0", 0),
        ("dev", "1", "3#0", 1),
    }
    assert [(row.document, row.origin) for row in result.records.negatives] == [("2#0", "gold")]
    assert {(row.id, row.title, row.text) for row in result.records.documents} == {
        (one["docid"], "Seli", one["text"]) for one in PASSAGES
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
    assert (result.plan.format, set(result.plan.splits)) == ("trec", {"train", "dev", "test"})
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
        ("docs-*", r"no corpus in it; it holds README.md, qrels, topics; add docs-0.jsonl.gz or corpus.jsonl \(docid"),
        ("qrels/*", r"no judgements in it; it holds README.md, docs-0.jsonl.gz, .*; add qrels/qrels.NAME-dev.tsv or"),
        ("topics/*", r"no file of queries in it; it holds README.md, docs-0.jsonl.gz"),
    ],
)
def test_what_is_missing_is_said(miracl: Path, removed: str, message: str) -> None:
    for file in miracl.glob(removed):
        file.unlink()
    with pytest.raises(DataError, match=message):
        recognise(Source.open(miracl))


def test_languages_in_one_folder_are_refused(miracl: Path, put) -> None:
    put("topics/topics.miracl-v1.0-yo-dev.tsv", "0\tKini?\n")
    with pytest.raises(DataError, match=r"holds several data sets: miracl-v1.0-sw, miracl-v1.0-yo; give a folder with"):
        recognise(Source.open(miracl))


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
    assert read_run_scores(str(run), ["q1", "q2"], 1).tolist() == [[2.5], [1.5]]


# As Apple publishes it.
ROWS = [
    {
        "query": "who invented the telephone",
        "answers": {
            "en": [{"type": "entity", "entity": "Q34286", "text": "Alexander Graham Bell", "aliases": ["Graham Bell"]}],
            "ja": [{"type": "entity", "entity": "Q34286", "text": "アレクサンダー・グラハム・ベル"}],
        },
        "queries": {"en": "who invented the telephone", "ja": "電話を発明したのは誰ですか"},
        "example_id": -4313205021217500000,
    },
    {
        "query": "is it raining",
        "answers": {"en": [{"type": "binary", "text": "yes"}], "ja": [{"type": "binary", "text": "はい"}]},
        "queries": {"en": "is it raining", "ja": "雨が降っていますか"},
        "example_id": 2,
    },
    {
        "query": "why is the sky blue",
        "answers": {"en": [{"type": "long_answer", "text": None}], "ja": [{"type": "unanswerable", "text": None}]},
        "queries": {"en": "why is the sky blue", "ja": "空はなぜ青い"},
        "example_id": 3,
    },
]
TELEPHONES = [
    {"docid": "a", "title": "Telephone", "text": "It was patented by alexander graham  bell in 1876."},
    {"docid": "b", "title": "電話", "text": "電話はアレクサンダー・グラハム・ベルが発明した。"},
    {"docid": "c", "title": "Bells", "text": "A bell is struck."},
]


@pytest.fixture
def mkqa(write) -> Path:
    write("mkqa.jsonl.gz", ROWS)
    return Path(write("docs-0.jsonl.gz", TELEPHONES).parent)


def test_questions_by_language_with_their_answers(read, mkqa: Path) -> None:
    result = read(mkqa)
    assert (result.plan.format, result.plan.splits) == ("mkqa", None)
    assert [(query.id, query.text) for query in result.records.queries] == [
        ("en--4313205021217500000", "who invented the telephone"),
        ("ja--4313205021217500000", "電話を発明したのは誰ですか"),
    ]
    assert [row.split for row in result.records.judgements] == ["en", "ja"]
    assert [answer for query, answer in result.records.answers if query.startswith("ja")] == [
        "アレクサンダー・グラハム・ベル",
        "Alexander Graham Bell",
        "Graham Bell",
    ]
    assert result.bad == []


@pytest.mark.parametrize(("order", "accuracy"), [([1, 0, 2], 1.0), ([2, 0, 1], 0.0)])
def test_passages_with_an_answer_are_counted(mkqa: Path, order: list[int], accuracy: float) -> None:
    dataset = open_dataset(mkqa, ["ja"], max_bad_rows=0)
    best_first = [dataset.documents.ids.index("abc"[row]) for row in order]
    system = SimpleNamespace(
        search=lambda queries, depth: (np.ones((1, 3), np.float32), np.array([best_first])),
        score=lambda queries, documents: np.ones(len(queries), np.float32),
    )
    result = evaluate(dataset, "ja", system, Protocol(("accuracy_at_1",)))
    assert result.metrics == {"accuracy_at_1": accuracy}


def test_other_metrics_are_refused_because_nothing_is_judged(mkqa: Path) -> None:
    dataset = open_dataset(mkqa, ["ja"], max_bad_rows=0)
    with pytest.raises(
        DataError, match=r"no passage is judged, so nDCG@10 cannot be measured; give --metrics acc@20,acc@100"
    ):
        select_judged_queries(dataset, "ja", Protocol(("accuracy_at_1", "ndcg_at_10")))
    judged = select_judged_queries(dataset, "ja", Protocol(("accuracy_at_1",)))
    assert judged.count_absent() == {"absent_relevant": 0, "relevant": 0, "unanswerable_queries": 0}


def test_bad_questions_have_a_reason(read, write, mkqa: Path) -> None:
    write(
        "mkqa.jsonl.gz",
        [ROWS[0], ROWS[1] | {"answers": None}, ROWS[0] | {"queries": {"../x": "?"}}, {**ROWS[0], "example_id": None}],
    )
    assert read(mkqa).bad == [
        '"answers" is NoneType, not an object of languages',
        "'../x' is no language",
        '"example_id" is NoneType, not a string',
    ]
