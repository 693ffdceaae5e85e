"""Parser of Tevatron's training files (Gao et al. 2022, arXiv:2203.05765), of both generations.

1. `{"query_id", "query", "positive_passages": [{"docid", "title", "text"}], "negative_passages"}`; a passage may have a
   `source` (human or llm), and a negative a `score` and an `origin`.
2. `{"query_id", "query_text", "positive_document_ids", "negative_document_ids"}` and a corpus of `{"docid", "title",
   "text"}`; the lists `positive_sources` and `negative_scores` are optional.

The order of the positives is their rank. The default origin of negatives is `bm25`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytriever.data.formats.group import QueryGroup, id_list, list_field, object_list, optional_score, score_list
from raytriever.data.formats.plan import RowParser
from raytriever.data.formats.rows import answers_in, id_field, optional_text, string_field
from raytriever.data.quarantine import BadRow
from raytriever.data.records import SOURCES, Document, Records

NAME = "tevatron"
SIGNATURE = (
    "tevatron: query_id, query, positive_passages, negative_passages; or query_id, query_text, positive_document_ids, "
    "negative_document_ids with a corpus of docid, text"
)
_ORIGIN = "bm25"


def parser(fields: frozenset[str], split: str) -> RowParser | None:
    """Return the row parser for these fields; None if they are of another format."""
    if {"query_id", "query", "positive_passages"} <= fields:
        return PassagesRow(split)
    if {"query_id", "query_text", "positive_document_ids"} <= fields:
        return DocumentIdsRow(split)
    if {"docid", "text"} <= fields and not any(name.startswith("query") for name in fields):
        return CorpusRow()
    return None


@dataclass(frozen=True)
class PassagesRow:
    """Row of a query with its passages, of the first generation."""

    split: str

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the query, its passages, and their judgements."""
        group = QueryGroup(self.split, string_field(row, "query"), id_field(row, "query_id"))
        group.answered(answers_in(row))
        for passage in object_list(row, "positive_passages"):
            group.judged(_passage(group, passage), source=_given(passage, "source", SOURCES[0]))
        for passage in object_list(row, "negative_passages"):
            origin = _given(passage, "origin", _ORIGIN)
            group.negative(_passage(group, passage), origin, optional_score(passage, "score"))
        group.add_to(records)


@dataclass(frozen=True)
class DocumentIdsRow:
    """A query with the ids of its documents, as the second generation has them."""

    split: str

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the query, and what the documents are to it."""
        group = QueryGroup(self.split, string_field(row, "query_text"), id_field(row, "query_id"))
        positives, negatives = id_list(row, "positive_document_ids"), id_list(row, "negative_document_ids")
        sources = list_field(row, "positive_sources") or [SOURCES[0]] * len(positives)
        if len(sources) != len(positives):
            raise BadRow(f'"positive_sources" has {len(sources)} for {len(positives)} in "positive_document_ids"')
        scores = score_list(row, "negative_scores", len(negatives), "negative_document_ids")
        for name, source in zip(positives, sources, strict=True):
            group.judged(name, source=source)
        for name, score in zip(negatives, scores, strict=True):
            group.negative(name, _ORIGIN, score)
        group.add_to(records)


@dataclass(frozen=True)
class CorpusRow:
    """A document of the second generation's corpus."""

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the document."""
        name, text = id_field(row, "docid"), string_field(row, "text")
        records.documents.append(Document(name, optional_text(row, "title"), text))


def _passage(group: QueryGroup, passage: Mapping[str, Any]) -> str:
    name = id_field(passage, "docid") if passage.get("docid") is not None else None
    return group.document(string_field(passage, "text"), optional_text(passage, "title"), name)


def _given(passage: Mapping[str, Any], name: str, otherwise: str) -> str:
    return otherwise if passage.get(name) is None else passage[name]
