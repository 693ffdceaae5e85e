"""The exact search of part after part on a CPU: quick scores tile by tile, sifted while the cache holds them."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log, sqrt

import numba
import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray

from raytriever.index.exact.sift import DocumentBlock, QueryBlock, Sieves, hope, settle, sift
from raytriever.index.fork_guard import refuse_forked
from raytriever.index.ranking import NONE, TieOrder
from raytriever.index.score import factors, query_bounds, quick_precision, read_only

QUERY_TILE, DOCUMENT_TILE = 512, 4_096
SIEVE_BYTES = 256 * 2**20


class Scan:
    """The rankings of queries over the parts taken so far.

    Args:
        queries: one embedding a row.
        k: how many documents to keep.
        order: of equal scores.
        exclude: for each query a document that it must not find, or -1.
    """

    def __init__(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        order: TieOrder,
        exclude: Int64[ndarray, " queries"] | None,
    ) -> None:
        refuse_forked()
        self._precision = quick_precision(torch.device("cpu"))
        self._queries = np.ascontiguousarray(queries, np.float32)
        self._order = order
        self._excluded = np.full(len(queries), -1) if exclude is None else np.asarray(exclude, np.int64)
        self._factors = factors(self._queries, self._precision, "query", np.arange(len(queries)))
        self._bounds = query_bounds(self._factors, queries.shape[1])
        self._best = np.full((len(queries), k), NONE)
        self._thresholds = np.full(len(queries), -np.inf)
        room = 2 * k + 512
        chunk = min(len(queries), max(QUERY_TILE, SIEVE_BYTES // (8 * room)))
        self._rows, self._scores = np.empty((chunk, room), np.int32), np.empty((chunk, room), np.float32)
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))

    def take(self, positions: Int64[ndarray, " rows"], vectors: Float32[ndarray, "rows width"]) -> None:
        """Search a part, given as positions in the corpus and embeddings."""
        part = DocumentBlock(
            read_only(vectors),
            np.empty(len(vectors)),
            np.empty(len(vectors)),
            positions,
            self._order.ranks[positions],
        )
        for start in range(0, len(self._queries), max(1, len(self._rows))):
            self._search(np.arange(start, min(start + len(self._rows), len(self._queries))), part, hopeful=True)

    def keys(self) -> UInt64[ndarray, "queries k"]:
        """The rankings, ascending."""
        self._best.sort(axis=1)
        return self._best

    def _search(self, of: Int64[ndarray, " some"], part: DocumentBlock, hopeful: bool) -> None:
        """Take a part into the rankings of some queries."""
        bounds, sought = self._bounds, self._factors
        asked = QueryBlock(
            read_only(self._queries[of]), bounds.a[of], bounds.b[of], bounds.c[of], bounds.rounding, self._excluded[of]
        )
        sieves = Sieves(
            thresholds=self._thresholds[of],
            hopes=np.full(len(of), -np.inf),
            failed=np.zeros(len(of), np.bool_),
            counts=np.zeros(len(of), np.int64),
            rows=self._rows[: len(of)],
            scores=self._scores[: len(of)],
            best=self._best[of],
        )
        left = sought._replace(bits=sought.bits[of]).tensor()
        if hopeful and not np.isfinite(sieves.thresholds).all():
            self._hope(left, asked, part, sieves)
        for base in range(0, len(part.vectors), DOCUMENT_TILE):
            right = self._measured(part, slice(base, base + DOCUMENT_TILE))
            for first, tile, shift in self._tiles(left, right):
                sift(tile, shift, first, base, asked, part, sieves)
        settle(asked, part, sieves)
        done = ~sieves.failed
        self._best[of[done]], self._thresholds[of[done]] = sieves.best[done], sieves.thresholds[done]
        if not done.all():
            self._search(of[~done], part, hopeful=False)

    def _hope(self, left: torch.Tensor, asked: QueryBlock, part: DocumentBlock, sieves: Sieves) -> None:
        """Hope for a threshold from an even sample, where that spares more than it costs.

        Of the k best about k times the sample's share lie in the sample, by chance a few standard deviations more.
        """
        size, k = len(part.vectors), sieves.best.shape[1]
        sample = min(max(1_024, size // 32), DOCUMENT_TILE)
        expected = k * sample / size
        rank = ceil(expected + 4 * sqrt(expected) + 3)
        if 4 * sample > size or 2 * rank * size / sample > k * (1 + log(size / k)):
            return
        rows = np.arange(sample) * (size // sample)
        right = self._measured(part, rows)
        for first, tile, shift in self._tiles(left, right):
            hope(tile, shift, first, rows, rank, asked, part, sieves)

    def _measured(self, part: DocumentBlock, rows: slice | ndarray) -> torch.Tensor:
        """What is multiplied of some documents; their norms and residuals are noted."""
        found = factors(part.vectors[rows], self._precision, "document", part.positions[rows])
        part.norms[rows], part.residuals[rows] = found.norms, found.residuals
        return found.tensor().T

    def _tiles(self, left: torch.Tensor, right: torch.Tensor) -> Iterator[tuple[int, ndarray, np.uint32]]:
        """Quick scores as unsigned bits, `QUERY_TILE` queries at a time: the first query, the tile, the bits' shift."""
        signed, bits, shift = (
            (torch.int16, np.uint16, 16) if left.dtype == torch.bfloat16 else (torch.int32, np.uint32, 0)
        )
        room = torch.empty(min(QUERY_TILE, len(left)) * right.shape[1], dtype=left.dtype)
        for first in range(0, len(left), QUERY_TILE):
            block = left[first : first + QUERY_TILE]
            tile = room[: len(block) * right.shape[1]].view(len(block), -1)
            torch.mm(block, right, out=tile)
            yield first, tile.view(signed).numpy().view(bits), np.uint32(shift)
