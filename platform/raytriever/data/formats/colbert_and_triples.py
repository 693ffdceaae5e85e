"""Files without headers: triples of texts (MS MARCO), and folders of ColBERT (Khattab and Zaharia 2020,
arXiv:2004.12832). docs/reference/formats.md describes both kinds.

The name of a file of judgements or triples contains the split, such as `qrels.dev.small.tsv`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source
from raytriever.data.formats import plan
from raytriever.data.formats.beir import qrels_columns
from raytriever.data.formats.file_rows import first_row
from raytriever.data.formats.miracl_and_mrtydi import topic_columns
from raytriever.data.records_and_bad_rows import BadRow, Document, Judgement, Negative, Records

NAME = "colbert"
SIGNATURE = "colbert: collection.tsv, queries.tsv, and qrels.tsv or triples.json of ids, without headers"
TRIPLE = "query<TAB>positive<TAB>negative"
_NAMES = r"(?:.*/)?{0}[^/]*\.{1}(?:\.gz)?"
_COLLECTION, _QUERIES, _QRELS = (
    re.compile(_NAMES.format(stem, "tsv"), re.IGNORECASE) for stem in ("collection", "queries", "qrels")
)
_TRIPLES = re.compile(_NAMES.format("[^/]*triples", "(?:tsv|jsonl?)"), re.IGNORECASE)


def is_whole(source: Source) -> bool:
    """Return True if the source has a collection."""
    return plan.has_file(source, _COLLECTION)


def plan_folder(source: Source) -> plan.Plan:
    """Return the plan of a folder. It may have only a collection. Raise `DataError` if there is no collection, or if
    there are queries without judgements, judgements without queries, or triples of texts."""
    patterns = (_COLLECTION, _QUERIES, _QRELS, _TRIPLES)
    collection, queries, qrels, triples = (plan.files_of(source, pattern) for pattern in patterns)
    if not collection or bool(queries) != bool(qrels or triples):
        missing = "collection.tsv" if not collection else "qrels.tsv or triples.json" if queries else "queries.tsv"
        raise DataError(f"has no {missing}; it has {plan.shown(source)}", source.where, "add it, with the same ids")
    parts = [plan.Part(file.where, "tsv", passage_columns) for file in collection]
    parts += [plan.Part(file.where, "tsv", topic_columns) for file in queries]
    for file in (*qrels, *triples):
        if file in triples and has_triples(file.where):
            what = "has texts, but triples next to a collection must be ids"
            raise DataError(what, file.where, "move it into a folder of its own")
        parse = qrels_columns if file in qrels else triple_ids
        parts.append(plan.Part(file.where, "tsv", parse, split=plan.split_if_named(file.path) or ""))
    return plan.Plan(NAME, tuple(parts), has_queries=bool(queries))


def passage_columns(row: Sequence[str], records: Records, _: str) -> None:
    """Parse a row of a passage: id, text and perhaps a title."""
    if len(row) not in (2, 3):
        raise BadRow(f"{_columns(row)}, not 2 or 3: passage id, text and perhaps a title, separated by tabs")
    fields = dict(zip(("id", "text", "title"), row, strict=False))
    title, text = plan.passage_of(fields)
    records.documents.append(Document(plan.id_field(fields, "id").strip(), title, text))


def triple_ids(row: Sequence[str], records: Records, split: str) -> None:
    """Parse a row of the ids of a query, a positive and negatives, in columns or as a JSON array."""
    values: list[Any] = list(row)
    if len(row) == 1 and row[0].lstrip().startswith("["):
        try:
            values = json.loads(row[0])  # noqa: TID251 - what is no JSON is a bad row
        except (ValueError, RecursionError) as error:
            raise BadRow(f"not JSON ({error})") from error
    if len(values) < 3:
        raise BadRow(f"{_columns(values)}, not 3 or more: ids of the query, the positive and negatives")
    query = _id(values[0])
    (positive, _), *negatives = map(_scored, values[1:])
    records.judgements.append(Judgement(split, query, positive, 1))
    records.negatives += [
        Negative(query, document, "bm25", rank, score) for rank, (document, score) in enumerate(negatives)
    ]


def _scored(value: Any) -> tuple[str, float]:
    if isinstance(value, list) and len(value) == 2:
        return _id(value[0]), plan.score_value(value[1], "score")
    return _id(value), math.nan


def _id(value: Any) -> str:
    return plan.id_value(value, "id").strip()


def triple_columns(row: Sequence[str], records: Records, split: str) -> None:
    """Parse a row of the texts of a query, a positive and a negative. The negative's origin is `bm25`."""
    if len(row) != 3:
        raise BadRow(f"{_columns(row)}, not 3: query, positive and negative, separated by tabs")
    query, positive, negative = map(plan.text_value, row, ("query", "positive", "negative"))
    group = plan.QueryGroup(records, split, query)
    group.judged(group.document("", positive))
    group.negative(group.document("", negative), "bm25")


def _columns(row: Sequence[Any]) -> str:
    return f"{len(row)} column{'s' if len(row) != 1 else ''}"


def has_triples(where: str) -> bool:
    """Return True if the first row of a file has three columns, of which the last two are texts, not column names."""
    columns = first_row(where).decode(errors="replace").split("\t")
    return len(columns) == 3 and all(len(text.split()) >= plan.TEXT_WORDS for text in columns[1:])
