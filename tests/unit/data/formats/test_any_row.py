"""Whatever a row holds, it is read whole or is a bad row that added nothing; it never stops the reading."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.data.formats.beir import document_row, judgement_columns, judgement_row, query_row
from raytriever.data.formats.chunks import FileChunk, parse_chunk
from raytriever.data.formats.plan import Part, RowParser
from raytriever.data.formats.row_formats import (
    corpus_row,
    dpr_row,
    flag_embedding_row,
    pair_row,
    scored_row,
    tevatron_ids_row,
    tevatron_row,
    tuple_row,
)
from raytriever.data.records import ORIGINS, SOURCES

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
    (
        tevatron_ids_row,
        ("query_id", "query_text", "positive_document_ids", "negative_document_ids", "negative_scores"),
    ),
    (corpus_row, ("docid", "title", "text")),
]
SCALARS = st.sampled_from(
    [None, True, 0, 1, -1, 2**70, 0.5, 1.0, 1e300, math.inf, "", " ", "a", "b", "llm", "bm25", "entailment", "\ud800"]
)
LIKELY = st.sampled_from(["a", "b", "text", 1])
PASSAGES = st.dictionaries(st.sampled_from(PASSAGE), LIKELY | SCALARS, max_size=6)
VALUES = LIKELY | SCALARS | st.lists(LIKELY | SCALARS | PASSAGES, max_size=3) | PASSAGES


@pytest.mark.parametrize(("parse", "fields"), PARSERS, ids=lambda value: type(value).__name__)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_row(parse: RowParser, fields: tuple[str, ...], data: Any) -> None:
    row = data.draw(st.dictionaries(st.sampled_from(fields), VALUES)) | data.draw(
        st.fixed_dictionaries(dict.fromkeys(fields[:2], LIKELY)) | st.just({})
    )
    payload = json.dumps(row).replace("Infinity", "1e999").encode() + b"\n"
    result = parse_chunk(Part("x", "json", parse), FileChunk(0, 0, 1, payload))
    records = result.records
    columns = (records.documents, records.queries, records.judgements, records.negatives)
    assert result.rows == 1
    assert len(result.bad) == (0 if any(columns) else 1)
    for one in (*records.documents, *records.queries):
        assert one.id
        assert one.text.strip()
        "".join(one).encode()
    assert all(type(row.score) is int and row.source in SOURCES and row.rank >= 0 for row in records.judgements)
    assert all(row.origin in ORIGINS and not math.isinf(row.score) for row in records.negatives)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(alphabet="a1-\u2028\x85 é"), max_size=6), st.sampled_from([(), ("source",), ("source", "rank")])
)
def test_any_columns(columns: list[str], more: tuple[str, ...]) -> None:
    part = Part("x", "tsv", partial(judgement_columns, more))
    result = parse_chunk(part, FileChunk(0, 0, 2, "\t".join(columns).encode()))
    assert result.rows == len(result.bad) + len(result.records.judgements)
