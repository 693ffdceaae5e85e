"""Parts of a corpus, cut where they are large and gathered where they are small, so that a search costs what its
documents cost however they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.errors import ModelError

MOST_ROWS, FEWEST_ROWS = 262_144, 32_768

# The position of the first row, and embeddings.
Parts = Iterable[tuple[int, Float32[ndarray, "rows width"]]]


def even_parts(
    parts: Parts, width: int, documents: int
) -> Iterator[tuple[Int64[ndarray, " rows"], Float32[ndarray, "rows width"]]]:
    """Positions and embeddings, up to `MOST_ROWS` at a time; only parts below `FEWEST_ROWS` are copied.

    Raises:
        ModelError: a part has another width than the queries.
        ValueError: a row lies beyond the corpus.
    """
    waiting: list[tuple[ndarray, ndarray]] = []
    for first, values in parts:
        if values.ndim != 2 or values.shape[1] != width:
            raise ModelError(
                f"embeddings of shape {values.shape} cannot be searched with queries of width {width}",
                f"part at document {first}",
                "encode both with the same model",
            )
        if first < 0 or first + len(values) > documents:
            raise ValueError(f"a part holds documents {first} to {first + len(values) - 1} of {documents}")
        for start in range(0, len(values), MOST_ROWS):
            piece = np.ascontiguousarray(values[start : start + MOST_ROWS], np.float32)
            positions = np.arange(first + start, first + start + len(piece))
            if len(piece) >= FEWEST_ROWS:
                yield positions, piece
                continue
            waiting.append((positions, piece))
            if sum(len(rows) for rows, _ in waiting) >= FEWEST_ROWS:
                yield _joined(waiting)
                waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(waiting: list[tuple[ndarray, ndarray]]) -> tuple[ndarray, ndarray]:
    if len(waiting) == 1:
        return waiting[0]
    return np.concatenate([rows for rows, _ in waiting]), np.concatenate([values for _, values in waiting])
