"""Records that the rows of every format become: documents, queries, judged pairs, and hard negatives.

The row parser of a format adds to a `Records`; a bad row adds nothing. Pairs refer to queries and documents by id, in
any file or row. The ids become positions after everything has been read.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import NamedTuple

SOURCES = ("human", "llm")
# Document of the judgement of a query whose relevant passages are recognised by its answers alone.
ANY_ANSWER = "any passage with an answer"
ORIGINS = ("gold", "bm25", "dense", "cross-query", "random")


class Document(NamedTuple):
    """One passage; the title may be empty, the text is not."""

    id: str
    title: str
    text: str


class Query(NamedTuple):
    """One query; the text is not empty. The prompt is the one that its row has, "" if it has none."""

    id: str
    text: str
    prompt: str = ""


class Judgement(NamedTuple):
    """Judged pair of a split.

    It is relevant if `score` is above 0. `source` is one of `SOURCES`. `rank` counts the positives of a query from 0,
    the most useful first; it is 0 for all if the order is unknown.
    """

    split: str
    query: str
    document: str
    score: int
    source: str = SOURCES[0]
    rank: int = 0


class Negative(NamedTuple):
    """Hard negative of a query.

    `origin` is one of `ORIGINS`. `rank` counts from 0, hardest first. `score` is by the retriever or the teacher, NaN
    if the data set has none.
    """

    query: str
    document: str
    origin: str
    rank: int = 0
    score: float = math.nan


@dataclass(slots=True)
class Records:
    """Records of a chunk, in the order of the rows; an answer is the id of its query and a text."""

    documents: list[Document] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    negatives: list[Negative] = field(default_factory=list)
    answers: list[tuple[str, str]] = field(default_factory=list)


def content_id(*texts: str) -> str:
    """Return an id for a text that has none: 20 hexadecimal digits of a hash, equal for equal texts."""
    state = hashlib.blake2b(digest_size=10)
    for text in texts:
        raw = text.encode()
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()
