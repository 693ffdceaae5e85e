"""What the rows of any format are turned into: documents, queries, judged pairs, and hard negatives.

A format's row parser adds to a `Records`; a row that is bad adds nothing. Pairs name their ends by id, whatever
file or row the texts stand in; the ids become positions once everything has been read.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import NamedTuple

SOURCES = ("human", "llm")
ORIGINS = ("gold", "bm25", "dense", "cross-query", "random")


class Document(NamedTuple):
    """One passage; the title may be empty, the text is not."""

    id: str
    title: str
    text: str


class Query(NamedTuple):
    """One query; the text is not empty."""

    id: str
    text: str


class Judgement(NamedTuple):
    """A judged pair of a split: relevant where `score` is above 0. `source`, one of `SOURCES`, says who judged it;
    `rank` counts from 0, the most useful positive of a query first, 0 throughout where nothing is known."""

    split: str
    query: str
    document: str
    score: int
    source: str = SOURCES[0]
    rank: int = 0


class Negative(NamedTuple):
    """A hard negative of a query; `origin`, one of `ORIGINS`, says who found it, `rank` counts from 0, hardest first,
    `score` is its finder's or teacher's, NaN where none was given."""

    query: str
    document: str
    origin: str
    rank: int = 0
    score: float = math.nan


@dataclass(slots=True)
class Records:
    """What a chunk of rows held, in the order of the rows; an answer is the id of its query and a text."""

    documents: list[Document] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    negatives: list[Negative] = field(default_factory=list)
    answers: list[tuple[str, str]] = field(default_factory=list)


def joined(title: str, text: str) -> str:
    """A passage as it is read by a model or by BM25: title and text, as BEIR joins them."""
    return (title + " " + text).strip()


def content_id(*texts: str) -> str:
    """An id for what a format leaves nameless: 20 hexadecimal digits over its content, so that equal texts are one."""
    state = hashlib.blake2b(digest_size=10)
    for text in texts:
        raw = text.encode()
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()
