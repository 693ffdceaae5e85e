"""The training files of FlagEmbedding (Xiao et al. 2023, arXiv:2309.07597): `{"query", "pos": [...], "neg": [...]}`.

`neg_scores`, where given, are kept: a teacher's, one for each of `neg`. `pos_scores` are checked only, a positive's
grade is 1; `prompt` and `type` are not read. Negatives are taken for those of a dense retriever, with which
FlagEmbedding mines. The positives' order is their rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytriever.data.formats.group import Group, score_list, text_list
from raytriever.data.formats.plan import RowParser
from raytriever.data.formats.rows import string_field
from raytriever.data.records import Records

NAME = "flagembedding"
SIGNATURE = "flagembedding: query, pos, neg"


def parser(fields: frozenset[str], split: str) -> RowParser | None:
    """What rows of these fields mean; None if they are not of this format."""
    return ListsRow(split) if {"query", "pos"} <= fields else None


@dataclass(frozen=True)
class ListsRow:
    """A query with its positive and its negative texts."""

    split: str

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the query, its texts, and what they are to it."""
        group = Group(self.split, string_field(row, "query"))
        positives, negatives = text_list(row, "pos"), text_list(row, "neg")
        score_list(row, "pos_scores", len(positives), "pos")
        for text in positives:
            group.judged(group.document(text))
        for text, score in zip(negatives, score_list(row, "neg_scores", len(negatives), "neg"), strict=True):
            group.negative(group.document(text), "dense", score)
        group.add_to(records)
