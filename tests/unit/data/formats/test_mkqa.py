from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from raytriever.data.formats.recognise import recognise
from raytriever.data.prepare.open import open_dataset
from raytriever.data.sources import Source
from raytriever.errors import DataError
from raytriever.evaluation.evaluate import evaluate
from raytriever.evaluation.protocol import Protocol, select_judged_queries

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
PASSAGES = [
    {"docid": "a", "title": "Telephone", "text": "It was patented by alexander graham  bell in 1876."},
    {"docid": "b", "title": "電話", "text": "電話はアレクサンダー・グラハム・ベルが発明した。"},
    {"docid": "c", "title": "Bells", "text": "A bell is struck."},
]


@pytest.fixture
def mkqa(write) -> Path:
    write("mkqa.jsonl.gz", ROWS)
    return Path(write("docs-0.jsonl.gz", PASSAGES).parent)


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


@pytest.mark.parametrize(("order", "accuracy"), [([0, 1, 2], 1.0), ([1, 0, 2], 1.0), ([2, 0, 1], 0.0)])
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


def test_a_corpus_is_asked_for(write) -> None:
    with pytest.raises(DataError, match=r"no corpus in it; it holds mkqa.jsonl; add docs-0.jsonl.gz or corpus.jsonl"):
        recognise(Source.open(write("mkqa.jsonl", ROWS)))


def test_bad_rows_have_a_reason(read, write, mkqa: Path) -> None:
    write(
        "mkqa.jsonl.gz",
        [ROWS[0], ROWS[1] | {"answers": None}, ROWS[0] | {"queries": {"../x": "?"}}, {**ROWS[0], "example_id": None}],
    )
    assert read(mkqa).bad == [
        '"answers" is NoneType, not an object of languages',
        "'../x' is no language",
        '"example_id" is NoneType, not a string',
    ]
