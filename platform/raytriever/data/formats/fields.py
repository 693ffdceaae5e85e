"""Fields of a row, each checked; and the group of a query and its passages, which most formats have in one row.

A check raises `BadRow` that names the field and what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from raytriever.data.quarantine import BadRow
from raytriever.data.records import ORIGINS, SOURCES, Document, Judgement, Negative, Query, Records, content_id

T = TypeVar("T")


def string_field(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must hold a text that is not blank."""
    try:
        value = row[name]
    except KeyError:
        raise BadRow(f'no field "{name}"; the fields are {", ".join(row) or "none"}') from None
    return text_value(value, name)


def text_value(value: Any, name: str) -> str:
    """Return a value that must be a text that is not blank."""
    if not isinstance(value, str):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a string')
    if not value or value.isspace():
        raise BadRow(f'empty "{name}"')
    return encodable(value, name)


def id_field(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must hold an id; whole numbers, as some exporters write them, are taken by their digits."""
    value = row.get(name)
    return str(value) if type(value) is int else string_field(row, name)


def id_value(value: Any, name: str) -> str:
    """Return a value that must be an id, a text or a whole number."""
    return str(value) if type(value) is int else text_value(value, name)


def optional_text(row: Mapping[str, Any], name: str) -> str:
    """Return a field that may be missing, null or empty, which all give the empty text."""
    value = row.get(name) or ""
    if not isinstance(value, str):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a string')
    return encodable(value, name)


def encodable(value: str, name: str) -> str:
    """Return the value itself, unless it has half of a surrogate pair: JSON can spell it, UTF-8 cannot."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRow(f'"{name}" holds half of a surrogate pair') from error
    return value


def answers_in(row: Mapping[str, Any]) -> list[str]:
    """Return the field `answers`, a text or a list of texts; any other value is none, for no format is recognised
    by it."""
    value = row.get("answers")
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [encodable(text, "answers") for text in texts if isinstance(text, str) and text.strip()]


def list_field(row: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that must hold a list; one that is missing or null is empty."""
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a list')
    return value


def list_of(row: Mapping[str, Any], name: str, check: Callable[[Any, str], T]) -> list[T]:
    """Return a field that must hold a list of values that pass a check; one that is missing or null is empty."""
    return [check(value, f"{name}[{index}]") for index, value in enumerate(list_field(row, name))]


def object_value(value: Any, name: str) -> Mapping[str, Any]:
    """Return a value that must be an object."""
    if not isinstance(value, Mapping):
        raise BadRow(f'"{name}" is {type(value).__name__}, not an object')
    return value


def score_list(row: Mapping[str, Any], name: str, count: int, of: str) -> list[float]:
    """Return `count` scores, one for each of what `of` names; NaN for each if the field is missing, null or empty."""
    values = list_field(row, name)
    if not values:
        return [math.nan] * count
    if len(values) != count:
        raise BadRow(f'"{name}" has {len(values)} scores for {count} in "{of}"')
    return list_of(row, name, score_value)


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


class QueryGroup:
    """Query of a row, with its passages, judgements, negatives and answers; a bad row adds none of them.

    Args:
        split: split of the judgements.
        text: text of the query.
        name: id of the query; None for an id from its content.
        prompt: prompt of this query, which replaces that of its data set; "" for none.
        answers: texts that identify passages with the answer.
    """

    def __init__(
        self, split: str, text: str, name: str | None = None, prompt: str = "", answers: list[str] | None = None
    ) -> None:
        self._split, self._answers = split, answers or []
        self._query = Query(name if name is not None else content_id(text), text, prompt)
        self._documents: list[Document] = []
        self._judged: dict[str, Judgement] = {}
        self._negatives: list[Negative] = []
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
