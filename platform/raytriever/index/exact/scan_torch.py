"""Exact search by torch on a device, block after block: the bounds of `scan`, as operations on whole tiles.

1. A first pass over the tiles of a block keeps each query's k highest lower bounds. The last of them is a threshold.
2. A second pass selects the pairs whose upper bound reaches it. On a GPU a second multiplication is cheaper than
   storing the candidates of the first pass.
3. These pairs are scored on the CPU by `score.dot`, so the result has the bytes of a search on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray

from raytriever.index.fork_guard import refuse_forked
from raytriever.index.ranking import NONE, TieOrder, keys_of, merge_keys
from raytriever.index.score import Factors, factors, pair_scores, query_bounds, quick_precision

QUERY_TILE, DOCUMENT_TILE = 1_024, 16_384


class TorchScan:
    """Rankings of queries over the blocks added so far, computed on a device; see `scan.Scan`."""

    def __init__(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        order: TieOrder,
        exclude: Int64[ndarray, " queries"] | None,
        device: torch.device,
    ) -> None:
        refuse_forked()
        self._device, self._precision = device, quick_precision(device)
        self._queries, self._order = np.ascontiguousarray(queries, np.float32), order
        self._excluded = np.full(len(queries), -1) if exclude is None else np.asarray(exclude, np.int64)
        left = factors(self._queries, self._precision, "query", np.arange(len(queries)))
        bounds = query_bounds(left, queries.shape[1])
        self._left = left.tensor().to(device)
        self._rounding = bounds.rounding
        self._terms = [self._column(term) for term in (bounds.a, bounds.b, bounds.c)]
        self._best = np.full((len(queries), k), NONE)

    def add(self, positions: Int64[ndarray, " rows"], vectors: Float32[ndarray, "rows width"]) -> None:
        """Search a block of documents; see `scan.Scan.add`."""
        k = self._best.shape[1]
        right = factors(vectors, self._precision, "document", positions)
        position_tensor = torch.from_numpy(positions).to(self._device)
        for first in range(0, len(self._queries), QUERY_TILE):
            rows = slice(first, first + QUERY_TILE)
            threshold = self._column(self._thresholds(rows))
            lower_bounds = threshold.new_full((len(threshold), 0), 0)
            for _, low, _ in self._bound_tiles(rows, right, position_tensor):
                lower_bounds = torch.cat([lower_bounds, low], dim=1)
                lower_bounds = lower_bounds.topk(min(k, lower_bounds.shape[1]), dim=1).values
            if lower_bounds.shape[1] == k:
                threshold = torch.maximum(threshold, lower_bounds[:, -1:])
            for base, _, high in self._bound_tiles(rows, right, position_tensor):
                # NaN reaches any threshold.
                pairs = (~(high < threshold)).nonzero().cpu().numpy()
                self._merge(first + pairs[:, 0], base + pairs[:, 1], positions, vectors)
                threshold = torch.maximum(threshold, self._column(self._thresholds(rows)))

    def keys(self) -> UInt64[ndarray, "queries k"]:
        """Return the rankings as ascending keys."""
        return self._best

    def _bound_tiles(
        self, queries: slice, right: Factors, position_tensor: torch.Tensor
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield the first document of each tile, and lower and upper bounds of scores; -inf for excluded documents."""
        a, b, c = (term[queries] for term in self._terms)
        excluded = torch.from_numpy(self._excluded[queries, None]).to(self._device)
        reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        try:
            for base in range(0, len(position_tensor), DOCUMENT_TILE):
                rows = slice(base, base + DOCUMENT_TILE)
                tile = Factors(right.bits[rows], right.norms, right.residuals).tensor().to(self._device)
                quick = (self._left[queries] @ tile.T).float()
                norms, residuals = self._column(right.norms[rows]).T, self._column(right.residuals[rows]).T
                # The last term covers the rounding errors of these operations in float32.
                error = (a * norms + b * residuals + c + self._rounding * quick.abs()) * (1 + 1e-5)
                error += 2.0**-22 * quick.abs()
                is_excluded = position_tensor[rows] == excluded
                low = (quick - error).nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
                high = (quick + error).masked_fill_(is_excluded, -torch.inf)
                yield base, low.masked_fill_(is_excluded, -torch.inf), high
        finally:
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced

    def _merge(self, query_rows: ndarray, rows: ndarray, positions: ndarray, vectors: ndarray) -> None:
        """Score pairs, ordered by query, and merge them into the rankings."""
        documents = positions[rows]
        is_kept = documents != self._excluded[query_rows]
        query_rows, rows, documents = query_rows[is_kept], rows[is_kept], documents[is_kept]
        if not len(query_rows):
            return
        keys = keys_of(pair_scores(self._queries, vectors, query_rows, rows), self._order.ranks[documents])
        queries, starts, counts = np.unique(query_rows, return_index=True, return_counts=True)
        table = np.full((len(queries), counts.max()), NONE)
        row = np.repeat(np.arange(len(queries)), counts)
        table[row, np.arange(len(query_rows)) - starts[row]] = keys
        self._best[queries] = merge_keys([self._best[queries], table], self._best.shape[1])

    def _thresholds(self, rows: slice) -> Float32[ndarray, " some"]:
        """Return the exact k-th scores of some queries, or -inf."""
        return self._order.read(self._best[rows, -1:])[0][:, 0]

    def _column(self, values: ndarray) -> torch.Tensor:
        """Return a float32 column on the device; the factor `1 + 1e-5` of the error covers its rounding."""
        return torch.from_numpy(values.astype(np.float32)[:, None]).to(self._device)
