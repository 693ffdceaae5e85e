"""Recognition of formats; and any row is read whole or is a bad row that adds nothing."""

from __future__ import annotations

import json
import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source
from raytriever.data.formats.beir import document_row, judgement_row, query_row
from raytriever.data.formats.file_blocks import FileBlock, parse_block
from raytriever.data.formats.known_formats import FORMATS, recognize
from raytriever.data.formats.plan import Part, RowParser
from raytriever.data.formats.tevatron_dpr_and_pairs import (
    corpus_row,
    dpr_row,
    flag_embedding_row,
    pair_row,
    scored_row,
    tevatron_ids_row,
    tevatron_row,
    tuple_row,
)
from raytriever.data.records_and_bad_rows import ORIGINS, SOURCES

PAIR = {"anchor": "a", "positive": "b"}
LISTS = {"query": "a", "pos": ["b"], "neg": ["c"]}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("anything.jsonl", "train"),
        ("validation.jsonl.gz", "dev"),
        ("nq-dev.json.gz", "dev"),
        ("test/part-0.parquet", "test"),
        ("data/train-00000-of-00001.parquet", "train"),
        ("contest.jsonl", "train"),
        ("train.valid.jsonl", "dev"),
    ],
)
def test_names_tell_splits(tmp_path: Path, write, name: str, split: str) -> None:
    write(name, [PAIR])
    write("dataset_infos.json", [{"about": 1}])  # no data
    (tmp_path / "set" / "config.json").write_text('{\n  "about": 1\n}\n')
    plan = recognize(Source.open(tmp_path / "set"))
    assert [part.split for part in plan.parts] == [split]
    assert repr(pickle.loads(pickle.dumps(plan))) == repr(plan)  # noqa: S301


PAIRS = [PAIR, PAIR | {"anchor": "c"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.json", "".join(json.dumps(row) + "\n" for row in PAIRS)),
        ("train.jsonl", json.dumps(PAIRS)),
        ("train.jsonl", json.dumps(PAIRS, indent=1)),
    ],
)
def test_lines_may_be_called_json_and_an_array_jsonl(tmp_path: Path, read, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read(tmp_path).positives() == [("a", "b", 0), ("c", "b", 0)]


def test_a_bad_first_row_costs_itself_alone(tmp_path: Path, read) -> None:
    (tmp_path / "train.jsonl").write_bytes(b"{\n[1]\n\xff\n" + b'{"anchor": "a", "positive": "b"}\n')
    result = read(tmp_path)
    assert len(result.bad) == 3
    assert result.positives() == [("a", "b", 0)]


def test_an_unknown_folder_is_reported_with_the_known_formats(tmp_path: Path, write) -> None:
    write("train.jsonl", [{"prompt": "a", "chosen": "b"}])
    with pytest.raises(DataError) as caught:
        recognize(Source.open(tmp_path / "set"))
    message = str(caught.value)
    assert (
        "in no known format; it contains train (the fields chosen, prompt); known formats are beir: corpus.jsonl"
        in message
    )
    assert "\n" not in message
    assert all(name in message for name in FORMATS if name != "ir_datasets")
    with pytest.raises(DataError, match=r"not in the format dpr; it contains train \(the fields chosen, prompt\)"):
        recognize(Source.open(tmp_path / "set"), "dpr")
    (tmp_path / "set" / "train.jsonl").rename(tmp_path / "set" / "train.txt")
    with pytest.raises(DataError, match=r"in no known format; it contains train\.txt"):
        recognize(Source.open(tmp_path / "set"))


def test_the_format_of_the_contributors_page_is_one_row_of_the_table(
    write, read, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[4] / "CONTRIBUTING.md").read_text().partition("## Add a format")[2]
    names: dict[str, Any] = {}
    exec(page.partition("```python")[2].partition("```")[0], names)  # the page is ours
    monkeypatch.setitem(FORMATS, "faq", names["FAQ"])
    file = write("train.jsonl", [{"ask": "a", "reply": "b"}, {"ask": "c", "reply": ""}])
    for result in (read(file), read(file, "faq")):
        assert (result.plan.format, result.positives()) == ("faq", [("a", "b", 0)])
        assert result.bad == ['empty "reply"']
    with pytest.raises(DataError, match=r"; known formats are .*; faq: ask, reply; CSV or TSV"):
        recognize(Source.open(write("other.jsonl", [{"asks": "a"}])))


def test_several_formats_are_reported_until_one_is_named(tmp_path: Path, write, read) -> None:
    write("a.jsonl", [LISTS])
    write("b.jsonl", [PAIR])
    message = r"has several formats; it contains a \(flagembedding\), b \(sentence-transformers\); give one"
    with pytest.raises(DataError, match=message):
        recognize(Source.open(tmp_path / "set"))
    assert read(tmp_path / "set", "flagembedding").positives() == [("a", "b", 0)]
    write("c.jsonl", [{"some": "thing"}])
    (tmp_path / "set" / "b.jsonl").unlink()
    with pytest.raises(DataError, match=r"a \(flagembedding\), c \(the fields some\)"):
        recognize(Source.open(tmp_path / "set"))


def test_several_data_sets_in_one_folder_are_reported(tmp_path: Path, write) -> None:
    write("pair/train-00000-of-00001.parquet", [PAIR])
    write("triplet/train-00000-of-00001.parquet", [PAIR | {"negative": "c"}])
    with pytest.raises(DataError, match=r"holds several data sets, in pair, triplet; give one of these folders"):
        recognize(Source.open(tmp_path / "set"))
    assert recognize(Source.open(tmp_path / "set" / "pair")).format == "sentence-transformers"


PASSAGE = ("docid", "title", "text", "source", "origin", "score", "passage_id", "psg_id")
PARSERS: list[tuple[RowParser, tuple[str, ...]]] = [
    (document_row, ("_id", "id", "title", "text")),
    (query_row, ("_id", "text")),
    (judgement_row, ("query-id", "corpus-id", "score", "source", "rank")),
    (dpr_row, ("question", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs")),
    (flag_embedding_row, ("query", "pos", "neg", "pos_scores", "neg_scores")),
    (pair_row, ("premise", "hypothesis", "label", "split")),
    (partial(tuple_row, "anchor", "positive", ("negative",), "score"), ("anchor", "positive", "negative", "score")),
    (partial(scored_row, "query", "docs", "labels"), ("query", "docs", "labels")),
    (tevatron_row, ("query_id", "query", "positive_passages", "negative_passages")),
    (tevatron_ids_row, ("query_id", "query_text", "positive_document_ids", "negative_document_ids", "negative_scores")),
    (corpus_row, ("docid", "title", "text")),
]
SCALARS = st.sampled_from(
    [None, True, 0, 1, -1, 2**70, 0.5, 1.0, 1e300, math.inf, "", " ", "a", "b", "llm", "bm25", "entailment", "\ud800"]
)
LIKELY = st.sampled_from(["a", "b", "text", 1])
PASSAGES = st.dictionaries(st.sampled_from(PASSAGE), LIKELY | SCALARS, max_size=6)
VALUES = LIKELY | SCALARS | st.lists(LIKELY | SCALARS | PASSAGES, max_size=3) | PASSAGES


@pytest.mark.parametrize(("parse", "fields"), PARSERS, ids=lambda value: type(value).__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_row(parse: RowParser, fields: tuple[str, ...], data: Any) -> None:
    row = data.draw(st.dictionaries(st.sampled_from(fields), VALUES)) | data.draw(
        st.fixed_dictionaries(dict.fromkeys(fields[:2], LIKELY)) | st.just({})
    )
    payload = json.dumps(row).replace("Infinity", "1e999").encode() + b"\n"
    result = parse_block(Part("x", "json", parse), FileBlock(0, 0, 1, payload))
    records = result.records
    columns = (records.documents, records.queries, records.judgements, records.negatives)
    assert result.rows == 1
    assert len(result.bad) == (0 if any(columns) else 1)
    for document in (*records.documents, *records.queries):
        assert document.id
        assert "".join(document[1:]).strip()  # a document may have a title alone
        "".join(document).encode()
    assert all(type(row.score) is int and row.source in SOURCES and row.rank >= 0 for row in records.judgements)
    assert all(row.origin in ORIGINS and not math.isinf(row.score) for row in records.negatives)
