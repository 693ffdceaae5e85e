"""Documents that are resident on a device, with upper bounds of their scores from one matrix product.

The embeddings are copied to the device once, in float32. The rest is computed there. The bound of `index.score`,

    score <= q'·d' + a |d| + b |s| + c = [q', a, b, c] · [d', |d|, |s|, 1],

is itself a dot product. So factors with three more columns give the upper bounds of all pairs in one product with
float32 sums, and no other operation reads or writes the whole tile. Two terms differ from a CPU's:

1. Tensor cores truncate, and align the products of a block before they add them. `UNIT_ON_DEVICE`, four times the unit
   of float32, covers both (Fasi et al., Numerical behavior of NVIDIA tensor cores, 2021).
2. a, b, c, |d| and |s| are multiplied by 1 + 2^-7 before they are rounded to bf16, so no product of two of them becomes
   smaller. What remains, at least 2^-8 of the error, covers the rounding of their own sum for any width below 16,000.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from numpy import ndarray
from torch import Tensor

from raytriever.index.ranking import SIGNED_NONE, signed_keys
from raytriever.index.score import LARGEST_NORM, UNIT, error_terms, exact_scores, refuse_not_finite

UNIT_ON_DEVICE = 4 * UNIT
# Embeddings that are copied at a time through a pinned buffer.
STAGING_BYTES = 64 * 2**20
_UP = 1 + 2.0**-7
_MORE = 3  # columns of the error terms
_ALIGNED = 8  # columns; tensor cores read 16 bytes at a time


class ResidentDocuments:
    """Documents on a device, up to a fixed number.

    Args:
        rows: largest number of documents.
        width: number of components.
        precision: type of the factors, `bf16` or `fp32`.
        device: device of the documents.
    """

    def __init__(self, rows: int, width: int, precision: str, device: torch.device) -> None:
        self._width, self._type = width, torch.bfloat16 if precision == "bf16" else torch.float32
        self._vectors = torch.empty((rows, width), device=device)
        self._factors = torch.zeros((rows, _columns(width)), dtype=self._type, device=device)
        self._positions = torch.empty(rows, dtype=torch.int64, device=device)
        self._ranks = torch.empty(rows, dtype=torch.int64, device=device)
        self._is_finite = torch.empty(rows, dtype=torch.bool, device=device)
        self._staging = _Staging(max(1, STAGING_BYTES // (4 * max(1, width))), width, device)
        self.count = 0

    @staticmethod
    def bytes_per_row(width: int, precision: str) -> int:
        """Return the memory of one document on the device."""
        return 4 * width + (2 if precision == "bf16" else 4) * _columns(width) + 17

    @property
    def free(self) -> int:
        """Number of documents that can be added."""
        return len(self._vectors) - self.count

    def add(
        self,
        positions: Int64[ndarray, " some"],
        ranks: Int64[ndarray, " some"],
        vectors: Float32[ndarray, "some width"],
    ) -> None:
        """Copy at most `free` documents to the device: positions in the corpus, tie ranks and embeddings."""
        end = self.count + len(positions)
        self._positions[self.count : end] = torch.from_numpy(positions).to(self._positions.device)
        self._ranks[self.count : end] = torch.from_numpy(ranks).to(self._ranks.device)
        for start in range(0, len(vectors), self._staging.rows):
            piece = vectors[start : start + self._staging.rows]
            rows = slice(self.count, self.count + len(piece))
            self._staging.copy(piece, self._vectors[rows])
            self._compute_factors(rows)
            self.count += len(piece)

    def clear(self) -> None:
        """Remove all documents."""
        self.count = 0

    def check(self) -> None:
        """Raise `ModelError` if an embedding is not finite. Waits for the device."""
        is_finite = self._is_finite[: self.count]
        if not bool(is_finite.all()):
            refuse_not_finite(is_finite.cpu().numpy(), "document", self._positions[: self.count].cpu().numpy())

    def query_factors(self, queries: Float32[Tensor, "queries width"]) -> Float[Tensor, "queries columns"]:
        """Return the factors of queries: rounded components, and the terms a, b and c."""
        rounded, norms, residuals = self._measure(queries)
        a, b, c = error_terms(norms, residuals, self._width, UNIT_ON_DEVICE)
        factors = queries.new_zeros((len(queries), _columns(self._width)), dtype=self._type)
        factors[:, : self._width] = rounded
        # Twice c, because the products of the error terms may be replaced by 0 too.
        factors[:, self._width : self._width + _MORE] = torch.stack([a, b, 2 * c], dim=1) * _UP
        return factors

    def upper_bounds(
        self, query_factors: Float[Tensor, "queries columns"], rows: slice
    ) -> Float32[Tensor, "queries rows"]:
        """Return upper bounds of the scores of queries and some documents; inf or NaN where there is none."""
        factors = self._factors[rows].T
        if factors.is_cuda and self._type == torch.bfloat16:
            return torch.mm(query_factors, factors, out_dtype=torch.float32)
        return query_factors.float() @ factors.float()

    def keys(
        self,
        queries: Float32[Tensor, "queries width"],
        rows: Int64[Tensor, "queries some"],
        excluded: Int64[Tensor, " queries"],
        pairs: int,
    ) -> Int64[Tensor, "queries some"]:
        """Return signed keys of the exact scores; see `ranking.signed_keys`. `SIGNED_NONE` for an excluded document.

        Args:
            queries: embeddings.
            rows: documents of each query, by their number here.
            excluded: for each query the position of a document, or -1.
            pairs: number of pairs that are scored at a time.
        """
        some = rows.shape[1]
        columns = min(some, pairs)
        lines = max(1, pairs // max(1, columns))
        keys = torch.empty_like(rows)
        for line in range(0, len(rows), lines):
            for column in range(0, some, max(1, columns)):
                block = slice(line, line + lines), slice(column, column + columns)
                scores = exact_scores(queries[block[0]], self._vectors[rows[block]])
                keys[block] = signed_keys(scores, self._ranks[rows[block]])
        return keys.masked_fill_(self._positions[rows] == excluded[:, None], SIGNED_NONE)

    def _compute_factors(self, rows: slice) -> None:
        rounded, norms, residuals = self._measure(self._vectors[rows])
        self._is_finite[rows] = norms.isfinite()
        norms = norms.masked_fill(norms > LARGEST_NORM, torch.inf)
        self._factors[rows, : self._width] = rounded
        terms = torch.stack([norms * _UP, residuals * _UP, torch.ones_like(norms)], dim=1)
        self._factors[rows, self._width : self._width + _MORE] = terms.to(self._type)

    def _measure(self, vectors: Float32[Tensor, "rows width"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return rounded vectors, norms, and norms of the rounding errors, both in float64."""
        rounded = vectors.to(self._type)
        norms = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
        if self._type == torch.bfloat16:
            residuals = torch.linalg.vector_norm(vectors - rounded.float(), dim=1, dtype=torch.float64)
        elif torch.get_float32_matmul_precision() != "highest":
            residuals = norms * 2.0**-7  # torch may then multiply numbers truncated to eight bits
        else:
            residuals = torch.zeros_like(norms)
        return rounded, norms, residuals


class _Staging:
    """Two pinned buffers: one is filled while the device reads the other."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.rows = rows
        self._buffers = [torch.empty((rows, width), pin_memory=True) for _ in range(2)] if device.type == "cuda" else []
        self._events: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def copy(self, source: Float32[ndarray, "some width"], to: Float32[Tensor, "some width"]) -> None:
        """Copy at most `rows` rows."""
        # torch warns of arrays that are read-only.
        values = torch.from_numpy(source if source.flags.writeable else np.array(source))
        if not self._buffers:
            to.copy_(values)
            return
        event, buffer = self._events[self._turn], self._buffers[self._turn][: len(values)]
        if event is not None:
            event.synchronize()
        buffer.copy_(values)
        to.copy_(buffer, non_blocking=True)
        event = self._events[self._turn] = torch.cuda.Event()
        event.record()
        self._turn = 1 - self._turn


def _columns(width: int) -> int:
    return -(-(width + _MORE) // _ALIGNED) * _ALIGNED
