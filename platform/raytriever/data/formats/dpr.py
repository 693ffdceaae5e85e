"""Parser of DPR's training files (Karpukhin et al. 2020, arXiv:2004.04906): a JSON array, or one object in each line.

An object is `{"question", "answers", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs"}`, and each context
`{"title", "text", "score", "passage_id" or "psg_id"}`. Hard negatives have origin `bm25`, other negatives `random`
(section 3.2). Their scores are kept. The order of the positives is their rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytriever.data.formats.group import QueryGroup, object_list, optional_score
from raytriever.data.formats.plan import RowParser
from raytriever.data.formats.rows import answers_in, id_field, optional_text, string_field
from raytriever.data.records import Records

NAME = "dpr"
SIGNATURE = "dpr: question, positive_ctxs, negative_ctxs, hard_negative_ctxs"
_NEGATIVES = {"hard_negative_ctxs": "bm25", "negative_ctxs": "random"}
_IDS = ("passage_id", "psg_id")


def parser(fields: frozenset[str], split: str) -> RowParser | None:
    """Return the row parser for these fields; None if they are of another format."""
    return DprRow(split) if {"question", "positive_ctxs"} <= fields else None


@dataclass(frozen=True)
class DprRow:
    """Row of a question with its contexts."""

    split: str

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the question, its contexts, and their judgements."""
        group = QueryGroup(self.split, string_field(row, "question"))
        group.answered(answers_in(row))
        for context in object_list(row, "positive_ctxs"):
            group.judged(_context(group, context))
        for name, origin in _NEGATIVES.items():
            for context in object_list(row, name):
                group.negative(_context(group, context), origin, optional_score(context, "score"))
        group.add_to(records)


def _context(group: QueryGroup, context: Mapping[str, Any]) -> str:
    name = next((id_field(context, name) for name in _IDS if context.get(name) is not None), None)
    return group.document(string_field(context, "text"), optional_text(context, "title"), name)
