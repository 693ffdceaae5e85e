"""Exact search on a CPU, block after block: quick scores tile by tile, sifted while they are in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log, sqrt

import numba
import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray

from raytriever.index.exact.sift import DocumentBlock, QueryBlock, Sieves, flush, guess, sift
from raytriever.index.fork_guard import refuse_forked
from raytriever.index.ranking import NONE, TieOrder
from raytriever.index.score import factors, query_bounds, quick_precision, read_only

QUERY_TILE, DOCUMENT_TILE = 512, 4_096
SIEVE_BYTES = 256 * 2**20


class Scan:
    """Rankings of queries over the blocks added so far.

    Args:
        queries: one embedding per row.
        k: number of documents per query.
        order: order of equal scores.
        exclude: for each query a document that is not returned, or -1.
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
        capacity = 2 * k + 512
        chunk = min(len(queries), max(QUERY_TILE, SIEVE_BYTES // (8 * capacity)))
        self._rows, self._scores = np.empty((chunk, capacity), np.int32), np.empty((chunk, capacity), np.float32)
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))

    def add(self, positions: Int64[ndarray, " rows"], vectors: Float32[ndarray, "rows width"]) -> None:
        """Search a block of documents.

        Args:
            positions: positions in the corpus.
            vectors: embeddings of these documents.
        """
        block = DocumentBlock(
            vectors=read_only(vectors),
            norms=np.empty(len(vectors)),
            residuals=np.empty(len(vectors)),
            positions=positions,
            ranks=self._order.ranks[positions],
        )
        for start in range(0, len(self._queries), max(1, len(self._rows))):
            self._search(np.arange(start, min(start + len(self._rows), len(self._queries))), block, allow_guess=True)

    def keys(self) -> UInt64[ndarray, "queries k"]:
        """Return the rankings as ascending keys."""
        self._best.sort(axis=1)
        return self._best

    def _search(self, rows: Int64[ndarray, " some"], block: DocumentBlock, allow_guess: bool) -> None:
        """Add a block to the rankings of some queries."""
        bounds, factors = self._bounds, self._factors
        query_block = QueryBlock(
            vectors=read_only(self._queries[rows]),
            a=bounds.a[rows],
            b=bounds.b[rows],
            c=bounds.c[rows],
            rounding=bounds.rounding,
            excluded=self._excluded[rows],
        )
        sieves = Sieves(
            thresholds=self._thresholds[rows],
            guesses=np.full(len(rows), -np.inf),
            failed=np.zeros(len(rows), np.bool_),
            counts=np.zeros(len(rows), np.int64),
            rows=self._rows[: len(rows)],
            scores=self._scores[: len(rows)],
            best=self._best[rows],
        )
        left = factors._replace(bits=factors.bits[rows]).tensor()
        if allow_guess and not np.isfinite(sieves.thresholds).all():
            self._guess(left, query_block, block, sieves)
        for base in range(0, len(block.vectors), DOCUMENT_TILE):
            right = self._factors_of(block, slice(base, base + DOCUMENT_TILE))
            for first, tile, shift in self._tiles(left, right):
                sift(tile, shift, first, base, query_block, block, sieves)
        flush(query_block, block, sieves)
        is_done = ~sieves.failed
        self._best[rows[is_done]], self._thresholds[rows[is_done]] = sieves.best[is_done], sieves.thresholds[is_done]
        if not is_done.all():
            self._search(rows[~is_done], block, allow_guess=False)

    def _guess(self, left: torch.Tensor, query_block: QueryBlock, block: DocumentBlock, sieves: Sieves) -> None:
        """Guess thresholds from an even sample if this saves more time than it costs.

        The sample holds about k times its share of the k best documents, or a few standard deviations more by chance.
        """
        size, k = len(block.vectors), sieves.best.shape[1]
        sample = min(max(1_024, size // 32), DOCUMENT_TILE)
        expected = k * sample / size
        rank = ceil(expected + 4 * sqrt(expected) + 3)
        if 4 * sample > size or 2 * rank * size / sample > k * (1 + log(size / k)):
            return
        rows = np.arange(sample) * (size // sample)
        right = self._factors_of(block, rows)
        for first, tile, shift in self._tiles(left, right):
            guess(tile, shift, first, rows, rank, query_block, block, sieves)

    def _factors_of(self, block: DocumentBlock, rows: slice | ndarray) -> torch.Tensor:
        """Return the transposed factors of some documents, and store their norms and residuals in the block."""
        right = factors(block.vectors[rows], self._precision, "document", block.positions[rows])
        block.norms[rows], block.residuals[rows] = right.norms, right.residuals
        return right.tensor().T

    def _tiles(self, left: torch.Tensor, right: torch.Tensor) -> Iterator[tuple[int, ndarray, np.uint32]]:
        """Yield quick scores of `QUERY_TILE` queries: the first query, the tile as unsigned bits, and their shift."""
        signed, bits, shift = (
            (torch.int16, np.uint16, 16) if left.dtype == torch.bfloat16 else (torch.int32, np.uint32, 0)
        )
        buffer = torch.empty(min(QUERY_TILE, len(left)) * right.shape[1], dtype=left.dtype)
        for first in range(0, len(left), QUERY_TILE):
            block = left[first : first + QUERY_TILE]
            tile = buffer[: len(block) * right.shape[1]].view(len(block), -1)
            torch.mm(block, right, out=tile)
            yield first, tile.view(signed).numpy().view(bits), np.uint32(shift)
