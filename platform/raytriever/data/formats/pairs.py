"""Parser of sentence pairs of natural language inference: `{"premise", "hypothesis", "label", "split"}`.

The premise is a query and the hypothesis a document. Entailment makes it a positive, contradiction a hard negative of
origin `gold` (as in Gao et al. 2021, arXiv:2104.08821, section 4.2), neutral neither. Labels are words, or the numbers
of the hub: 0 entailment, 1 neutral, 2 contradiction. A label of -1, without agreement of the annotators, is a bad row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytriever.data.formats.group import QueryGroup
from raytriever.data.formats.plan import RowParser, split_of_row
from raytriever.data.formats.rows import string_field
from raytriever.data.quarantine import BadRow
from raytriever.data.records import Records

NAME = "pairs"
SIGNATURE = "pairs: premise, hypothesis, label"
_LABELS = ("entailment", "neutral", "contradiction")


def parser(fields: frozenset[str], split: str) -> RowParser | None:
    """Return the row parser for these fields; None if they are of another format."""
    return PairRow(split) if {"premise", "hypothesis", "label"} <= fields else None


@dataclass(frozen=True)
class PairRow:
    """Row of a premise, a hypothesis and a label; `split` is the split of rows that name none."""

    split: str

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the two texts and their judgement."""
        label = _label(row)
        split = split_of_row(row) if "split" in row else self.split
        group = QueryGroup(split, string_field(row, "premise"))
        document = group.document(string_field(row, "hypothesis"))
        if label == "entailment":
            group.judged(document)
        elif label == "contradiction":
            group.negative(document, "gold")
        group.add_to(records)


def _label(row: Mapping[str, Any]) -> str:
    label = row.get("label")
    if isinstance(label, str) and label in _LABELS:
        return label
    if type(label) is int and 0 <= label < len(_LABELS):
        return _LABELS[label]
    raise BadRow(f"label {str(label)[:20]!r} is none of {', '.join(_LABELS)} or 0, 1, 2")
