"""Readers of TREC runs, the rankings of other systems: `query Q0 document rank score tag`, plain or gzipped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.formats.rows import numbered_rows
from raytriever.errors import DataError

_FORM = "a line is `query Q0 document rank score tag`"


def read_run(
    where: str, dataset: RetrievalDataset, queries: Sequence[int], depth: int
) -> Int64[ndarray, "queries depth"]:
    """Return the `depth` best documents of each query in a path or URI, -1 in empty slots; others are skipped.

    As in trec_eval, scores order the documents and written ranks are ignored. Of equal scores, the larger document id
    comes first. Percent-encoded ids are decoded, because white space must be encoded.

    Raises:
        DataError: the file cannot be read, a line has another form, a document is unknown, or the file ranks none of
            the queries.
    """
    row_of = {dataset.queries.ids[query]: row for row, query in enumerate(queries)}
    documents = {name: position for position, name in enumerate(dataset.documents.ids)}
    rankings: list[list[tuple[float, str, int]]] = [[] for _ in queries]
    for line, query, document, score in _rows(where):
        row = row_of.get(query, row_of.get(unquote(query)))
        if row is None:
            continue
        position = documents.get(document, documents.get(unquote(document)))
        if position is None:
            raise DataError(f"unknown document id {document[:60]!r}", line, f"is it a run over {dataset.name}?")
        rankings[row].append((score, dataset.documents.ids[position], position))
    if not any(rankings):
        raise DataError(f"ranks none of the {len(queries):,} queries", where, f"is it a run over {dataset.name}?")
    table = np.full((len(queries), depth), -1, dtype=np.int64)
    for row, ranked in enumerate(rankings):
        best = list(dict.fromkeys(position for _, _, position in sorted(ranked, reverse=True)))[:depth]
        table[row, : len(best)] = best
    return table


def read_run_scores(where: str, queries: Sequence[str], depth: int) -> Float64[ndarray, "queries depth"]:
    """Return the `depth` highest scores of each query, given by id, NaN in empty slots; others are skipped. Raise
    `DataError` if the file cannot be read, or a line has another form."""
    row_of = {query: row for row, query in enumerate(queries)}
    scores: list[list[float]] = [[] for _ in queries]
    for _, query, _, score in _rows(where):
        row = row_of.get(query, row_of.get(unquote(query)))
        if row is not None:
            scores[row].append(score)
    table = np.full((len(queries), depth), np.nan)
    for row, values in enumerate(scores):
        best = sorted(values, reverse=True)[:depth]
        table[row, : len(best)] = best
    return table


def _rows(where: str) -> Iterator[tuple[str, str, str, float]]:
    """Yield the place of each line that is not blank, its query, document and score."""
    for number, line in numbered_rows(where):
        place = f"{where}:{number}"
        try:
            query, _, document, _, score, _ = line.decode().split()
            value = float(score)
        except ValueError as error:  # UnicodeDecodeError is one
            raise DataError("is no line of a run", place, _FORM) from error
        if not math.isfinite(value):
            raise DataError(f"score {score!r} is no finite number", place, _FORM)
        yield place, query, document, value
