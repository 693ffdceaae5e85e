"""Training columns of sentence-transformers, recognised by name (sbert.net, "Loss Overview"; Reimers and Gurevych
2019, arXiv:1908.10084).

1. `anchor, positive`, and any of `negative`, `negative_1`, `negative_2`, ...: pairs, triplets, n-tuples. A list of
   scores in `label` or `score`, the positive's first, is a teacher's; those of the negatives are kept.
2. `sentence1, sentence2, score`, or `anchor, positive, label`: scored pairs.
3. `query, docs, labels`: scored lists, each with as many texts as scores.

Other names are `query` or `question` for `anchor`; `answer` for `positive`; `documents` or `passages` for `docs` (or a
list in the positive's column); `scores`, `label`, `labels` and `similarity_score` for `score`. In scored pairs and
lists an integer is a grade, relevant above 0; a number with a decimal point is 0 to 1 and relevant from 0.5. Texts that
are not relevant are judged 0 and are hard negatives of origin `gold`. Other negatives have origin `dense`, because
sentence-transformers mines with a dense retriever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raytriever.data.formats.group import QueryGroup, score_list, score_value, text_list
from raytriever.data.formats.plan import RowParser
from raytriever.data.formats.rows import optional_text, string_field
from raytriever.data.quarantine import BadRow
from raytriever.data.records import Records

NAME = "sentence-transformers"
SIGNATURE = (
    "sentence-transformers: anchor (query, question), positive (answer), negative, negative_1, ...; or sentence1, "
    "sentence2, score; or query, docs (documents, passages), labels"
)
RELEVANT_FROM = 0.5
_ANCHORS = ("anchor", "query", "question", "sentence1")
_POSITIVES = ("positive", "answer", "sentence2")
_LISTS = ("docs", "documents", "passages")
SCORES = ("score", "scores", "label", "labels", "similarity_score")
_NEGATIVE = re.compile(r"negative(?:_\d+)?")


def parser(fields: frozenset[str], split: str) -> RowParser | None:
    """Return the row parser for these fields; None if they are of another format."""
    anchor, scores = _first(_ANCHORS, fields), _first(SCORES, fields)
    negatives = tuple(sorted((name for name in fields if _NEGATIVE.fullmatch(name)), key=_place))
    positive = _first(_POSITIVES, fields)
    several = _first(_LISTS, fields)
    if anchor is None or (anchor == "sentence1") != (positive == "sentence2"):
        return None
    if several and scores and not positive:
        return ScoredRow(split, anchor, several, scores)
    if positive and scores and not negatives:
        return ScoredRow(split, anchor, positive, scores)
    if positive and anchor != "sentence1":
        return TupleRow(split, anchor, positive, negatives, scores or "")
    return None


def _first(names: Sequence[str], fields: frozenset[str]) -> str | None:
    return next((name for name in names if name in fields), None)


def _place(name: str) -> int:
    return int(name.partition("_")[2] or 0)


@dataclass(frozen=True)
class TupleRow:
    """Row of an anchor, its positive, and negatives, which may be null or empty; the values name the columns."""

    split: str
    anchor: str
    positive: str
    negatives: tuple[str, ...]
    scores: str

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the anchor, the other texts, and their judgements."""
        group = QueryGroup(self.split, string_field(row, self.anchor))
        group.judged(group.document(string_field(row, self.positive)))
        scores = [float("nan")] * (1 + len(self.negatives))
        if isinstance(row.get(self.scores), list):  # a single number is a margin, of two scores
            scores = score_list(row, self.scores, len(scores), f"{self.positive} and negatives")
        for name, score in zip(self.negatives, scores[1:], strict=True):
            if optional_text(row, name).strip():
                group.negative(group.document(string_field(row, name)), "dense", score)
        group.add_to(records)


@dataclass(frozen=True)
class ScoredRow:
    """Row of a text and another with its score, or a list of others with scores; the values name the columns."""

    split: str
    anchor: str
    others: str
    scores: str

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the texts and the judgements."""
        group = QueryGroup(self.split, string_field(row, self.anchor))
        if isinstance(row.get(self.others), list):
            texts, scores = text_list(row, self.others), row.get(self.scores)
            if not isinstance(scores, list) or len(scores) != len(texts):
                raise BadRow(f'"{self.scores}" is not a list of {len(texts)} scores, one for each in "{self.others}"')
        else:
            texts, scores = [string_field(row, self.others)], [row.get(self.scores)]
        for text, score in zip(texts, scores, strict=True):
            document = group.document(text)
            grade = _grade(score, self.scores)
            group.judged(document, grade)
            if grade == 0:
                group.negative(document, "gold", float(score))
        group.add_to(records)


def _grade(score: Any, name: str) -> int:
    """Return the grade of a score, 0 if not relevant; raises `BadRow`."""
    number = score_value(score, name)
    if isinstance(score, int) and 0 <= score < 10**9:
        return score
    if isinstance(score, int) or not 0 <= number <= 1:
        raise BadRow(f'"{name}" is {str(score)[:20]}, neither a grade from 0 nor within 0 and 1: divide by its largest')
    return int(number >= RELEVANT_FROM)
