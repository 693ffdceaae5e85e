"""Reader of TREC runs. A line has a query id, `Q0`, a document id, the document's rank and score, and a tag.

As in trec_eval, documents are ordered by score, and the ranks in the file are ignored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from raytriever.core.errors import DataError
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.formats.file_rows import numbered_rows

_FORM = "write lines `query Q0 document rank score tag`"


def read_run(
    where: str, dataset: RetrievalDataset, queries: Sequence[int], depth: int
) -> Int64[ndarray, "queries depth"]:
    """Read a run, as `read_scored_run_file` does. Return only the `depth` best documents of each query."""
    documents = read_scored_run_file(where, dataset, queries)[1][:, :depth]
    return np.pad(documents, ((0, 0), (0, depth - documents.shape[1])), constant_values=-1)


def read_scored_run_file(
    where: str, dataset: RetrievalDataset, queries: Sequence[int]
) -> tuple[Float64[ndarray, "queries ranked"], Int64[ndarray, "queries ranked"]]:
    """Return the scores and documents of each query in the run at a path or URI; empty slots are -inf and -1. Lines of
    other queries are skipped.

    As in trec_eval, documents are ordered by score. If scores are equal, the larger document id comes first.
    Percent-encoded ids are decoded, because ids with white space must be encoded. Raise `DataError` if the file
    cannot be read, a line has another form, a document is unknown, or the file ranks none of the queries."""
    row_of = {dataset.queries.ids[query]: row for row, query in enumerate(queries)}
    documents = {name: position for position, name in enumerate(dataset.documents.ids)}
    rankings: list[list[tuple[float, str, int]]] = [[] for _ in queries]
    for line, query, document, score in run_lines(where):
        row = row_of.get(query, row_of.get(unquote(query)))
        if row is None:
            continue
        position = documents.get(document, documents.get(unquote(document)))
        if position is None:
            raise DataError(f"unknown document id {document[:60]!r}", line, f"give a run over {dataset.name}")
        rankings[row].append((score, dataset.documents.ids[position], position))
    if not any(rankings):
        raise DataError(f"has none of the {len(queries):,} queries", where, f"give a run over {dataset.name}")
    best = []
    for ranked in rankings:
        scores: dict[int, float] = {}  # a repeated document keeps its highest score
        for score, _, position in sorted(ranked, reverse=True):
            scores.setdefault(position, score)
        best.append(scores)
    table = np.full((len(queries), max(map(len, best))), -1, dtype=np.int64)
    values = np.full(table.shape, -np.inf)
    for row, scores in enumerate(best):
        table[row, : len(scores)], values[row, : len(scores)] = list(scores), list(scores.values())
    return values, table


def run_lines(where: str) -> Iterator[tuple[str, str, str, float]]:
    """Yield, for each line of a run that is not blank: file and line number, query, document and score. Raise
    `DataError` if the file cannot be read, or if a line has another form."""
    for number, line in numbered_rows(where):
        place = f"{where}:{number}"
        try:
            query, _, document, _, score, _ = line.decode().split()
            value = float(score)
        except ValueError as error:  # includes UnicodeDecodeError
            raise DataError("is not a line of a run", place, _FORM) from error
        if not math.isfinite(value):
            raise DataError(f"score {score!r} is not a finite number", place, _FORM)
        yield place, query, document, value
