"""Rankings that other systems made: TREC runs, `query Q0 document rank score tag`, plain or gzipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from urllib.parse import unquote

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.sources import open_stream, reading
from raytriever.errors import DataError

_FORM = "a line is `query Q0 document rank score tag`"


def read_run(
    where: str, dataset: RetrievalDataset, queries: Sequence[int], depth: int
) -> Int64[ndarray, "queries depth"]:
    """The best documents of each query, -1 where there are fewer; lines of other queries are passed over.

    As trec_eval does, the scores order them and the ranks written are not looked at; of equal scores the larger
    document id comes first.

    Args:
        where: a path or URI.
        dataset: its ids; one written percent-encoded, as white space must be, is found too.
        queries: positions.
        depth: how many.

    Raises:
        DataError: it cannot be read, a line is none of a run, it names a document that is not there, or none of the
            queries.
    """
    wanted = {dataset.queries.ids[query]: row for row, query in enumerate(queries)}
    documents = {name: place for place, name in enumerate(dataset.documents.ids)}
    found: list[list[tuple[float, str, int]]] = [[] for _ in queries]
    number = [0]
    with open_stream(where) as stream, reading(where, number):
        for line in stream:
            number[0] += 1
            if not line.strip():
                continue
            query, document, score = _columns(line, f"{where}:{number[0]}")
            row = wanted.get(query, wanted.get(unquote(query)))
            if row is None:
                continue
            place = documents.get(document, documents.get(unquote(document)))
            if place is None:
                raise DataError(
                    f"unknown document id {document[:60]!r}",
                    f"{where}:{number[0]}",
                    f"is it a run over {dataset.name}?",
                )
            found[row].append((score, dataset.documents.ids[place], place))
    if not any(found):
        raise DataError(f"ranks none of the {len(queries):,} queries", where, f"is it a run over {dataset.name}?")
    table = np.full((len(queries), depth), -1, dtype=np.int64)
    for row, ranked in enumerate(found):
        best = list(dict.fromkeys(place for _, _, place in sorted(ranked, reverse=True)))[:depth]
        table[row, : len(best)] = best
    return table


def _columns(line: bytes, where: str) -> tuple[str, str, float]:
    try:
        query, _, document, _, score, _ = line.decode().split()
        value = float(score)
    except ValueError as error:  # UnicodeDecodeError is one
        raise DataError("is no line of a run", where, _FORM) from error
    if not math.isfinite(value):
        raise DataError(f"score {score!r} is no finite number", where, _FORM)
    return query, document, value
