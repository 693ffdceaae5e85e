"""Group of a query and its passages, which most formats have in one row; collected before anything is added."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raytriever.data.formats.rows import id_value, text_value
from raytriever.data.quarantine import BadRow
from raytriever.data.records import ORIGINS, SOURCES, Document, Judgement, Negative, Query, Records, content_id


class QueryGroup:
    """Query of a row, with its passages, judgements, negatives and answers; `add_to` adds all to the records.

    Args:
        split: split of the judgements.
        text: text of the query.
        name: id of the query; None for an id from its content.
        prompt: prompt of this query, which replaces that of its data set; "" for none.
    """

    def __init__(self, split: str, text: str, name: str | None = None, prompt: str = "") -> None:
        self._split = split
        self._query = Query(name if name is not None else content_id(text), text, prompt)
        self._documents: list[Document] = []
        self._judged: dict[str, Judgement] = {}
        self._negatives: list[Negative] = []
        self._answers: list[str] = []
        self._ranks: dict[str, int] = {}

    def document(self, text: str, title: str = "", name: str | None = None) -> str:
        """Add a passage and return its id, which is made from its content if `name` is None."""
        name = content_id(title, text) if name is None else name
        self._documents.append(Document(name, title, text))
        return name

    def judged(self, document: str, score: int = 1, source: str = SOURCES[0]) -> None:
        """Judge a passage; the positives' ranks are the order of the calls. A passage judged twice counts once."""
        if source not in SOURCES:
            raise BadRow(f"source {str(source)[:20]!r} is none of {', '.join(SOURCES)}")
        if document not in self._judged:
            rank = self._next_rank("") if score > 0 else 0
            self._judged[document] = Judgement(self._split, self._query.id, document, score, source, rank)

    def negative(self, document: str, origin: str, score: float = math.nan) -> None:
        """Add a hard negative; those of one origin are ranked in the order of the calls."""
        if origin not in ORIGINS:
            raise BadRow(f"origin {str(origin)[:20]!r} is none of {', '.join(ORIGINS)}")
        self._negatives.append(Negative(self._query.id, document, origin, self._next_rank(origin), score))

    def answered(self, answers: list[str]) -> None:
        """Add answers of the query."""
        self._answers += answers

    def add_to(self, records: Records) -> None:
        """Add the query, its passages, judgements, negatives and answers."""
        records.queries.append(self._query)
        records.documents += self._documents
        records.judgements += self._judged.values()
        records.negatives += self._negatives
        records.answers += [(self._query.id, answer) for answer in self._answers]

    def _next_rank(self, among: str) -> int:
        rank = self._ranks.get(among, 0)
        self._ranks[among] = rank + 1
        return rank


def list_field(row: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that must hold a list; one that is missing or null is empty."""
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a list')
    return value


def text_list(row: Mapping[str, Any], name: str) -> list[str]:
    """Return a field that must hold a list of texts, none of them blank; one that is missing or null is empty."""
    return [text_value(value, f"{name}[{index}]") for index, value in enumerate(list_field(row, name))]


def id_list(row: Mapping[str, Any], name: str) -> list[str]:
    """Return a field that must hold a list of ids, strings or whole numbers; one that is missing or null is empty."""
    return [id_value(value, f"{name}[{index}]") for index, value in enumerate(list_field(row, name))]


def object_list(row: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return a field that must hold a list of objects; one that is missing or null is empty."""
    values = list_field(row, name)
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise BadRow(f'"{name}[{index}]" is {type(value).__name__}, not an object')
    return values


def score_list(row: Mapping[str, Any], name: str, count: int, of: str) -> list[float]:
    """Return a field that must hold `count` scores, one for each of what `of` names; NaN for each where it is
    missing, null or empty."""
    values = list_field(row, name)
    if not values:
        return [math.nan] * count
    if len(values) != count:
        raise BadRow(f'"{name}" has {len(values)} scores for {count} in "{of}"')
    return [score_value(value, f"{name}[{index}]") for index, value in enumerate(values)]


def score_value(value: Any, name: str) -> float:
    """Return a score that must be a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a number')
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadRow(f'"{name}" is {str(value)[:20]}, not a finite number')
    return number


def optional_score(row: Mapping[str, Any], name: str) -> float:
    """Return a score that may be missing or null, then NaN."""
    value = row.get(name)
    return math.nan if value is None else score_value(value, name)
