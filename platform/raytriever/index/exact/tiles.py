"""Quick scores in bf16: a matrix product by torch, tile by tile, sifted while the tile is in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.index.exact.sift import CHUNK, DocumentBlock, QueryBlock, Sieves, guess, sift
from raytriever.index.score import BF16_ROUNDING, UNIT, bf16_factors

QUERY_TILE = 512


class Tiles:
    """Product of queries and documents in bf16 on a CPU.

    Args:
        queries: embeddings.
    """

    rounding, unit = BF16_ROUNDING, UNIT

    def __init__(self, queries: Float32[ndarray, "queries width"]) -> None:
        self._bits, self.norms, self.residuals = bf16_factors(queries, "query", np.arange(len(queries)))

    def select(self, rows: slice | ndarray) -> torch.Tensor:
        """Return the factors of some queries."""
        return torch.from_numpy(self._bits[rows]).view(torch.bfloat16)

    def sift(self, left: torch.Tensor, rows: slice, queries: QueryBlock, block: DocumentBlock, sieves: Sieves) -> None:
        """Multiply queries and a slice of documents, and add the candidates to the sieves."""
        right = self._round(block, rows)
        for first, tile in _products(left, right):
            sift(tile, first, rows.start, queries, block, sieves)

    def guess(
        self, left: torch.Tensor, rows: ndarray, rank: int, queries: QueryBlock, block: DocumentBlock, sieves: Sieves
    ) -> None:
        """Guess thresholds from a sample of documents; see `sift.guess`."""
        right = self._round(block, rows)
        for first, tile in _products(left, right):
            guess(tile, first, rows, rank, queries, block, sieves)

    def _round(self, block: DocumentBlock, rows: slice | ndarray) -> torch.Tensor:
        """Return the transposed factors of some documents, and store their norms and residuals in the block."""
        bits, norms, residuals = bf16_factors(block.vectors[rows], "document", block.positions[rows])
        block.norms[rows], block.residuals[rows] = norms, residuals
        return torch.from_numpy(bits).view(torch.bfloat16).T


def _products(left: torch.Tensor, right: torch.Tensor) -> Iterator[tuple[int, ndarray]]:
    """Yield quick scores of `QUERY_TILE` queries: the first query, and the tile as unsigned bits."""
    # `sift` reads whole chunks, beyond the end of the last line.
    buffer = torch.empty(min(QUERY_TILE, len(left)) * right.shape[1] + CHUNK, dtype=left.dtype)
    for first in range(0, len(left), QUERY_TILE):
        block = left[first : first + QUERY_TILE]
        tile = buffer[: len(block) * right.shape[1]].view(len(block), -1)
        torch.mm(block, right, out=tile)
        yield first, tile.view(torch.int16).numpy().view(np.uint16)
