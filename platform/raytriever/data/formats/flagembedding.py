"""Parser of FlagEmbedding's training files (Xiao et al. 2023, arXiv:2309.07597): `{"query", "pos": [], "neg": []}`.

`neg_scores` are a teacher's, one for each text of `neg`; they are kept. `pos_scores` are only checked: the grade of a
positive is 1. `prompt` is the text in front of the query, which replaces the prompt of the data set. `type` is not
read. Negatives have origin `dense`, because FlagEmbedding mines with a dense retriever. The order of the positives is
their rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytriever.data.formats.group import QueryGroup, score_list, text_list
from raytriever.data.formats.plan import RowParser
from raytriever.data.formats.rows import optional_text, string_field
from raytriever.data.records import Records

NAME = "flagembedding"
SIGNATURE = "flagembedding: query, pos, neg"


def parser(fields: frozenset[str], split: str) -> RowParser | None:
    """Return the row parser for these fields; None if they are of another format."""
    return ListsRow(split) if {"query", "pos"} <= fields else None


@dataclass(frozen=True)
class ListsRow:
    """Row of a query with its positive and negative texts."""

    split: str

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the query, its texts, and their judgements."""
        group = QueryGroup(self.split, string_field(row, "query"), prompt=optional_text(row, "prompt"))
        positives, negatives = text_list(row, "pos"), text_list(row, "neg")
        score_list(row, "pos_scores", len(positives), "pos")
        for text in positives:
            group.judged(group.document(text))
        for text, score in zip(negatives, score_list(row, "neg_scores", len(negatives), "neg"), strict=True):
            group.negative(group.document(text), "dense", score)
        group.add_to(records)
