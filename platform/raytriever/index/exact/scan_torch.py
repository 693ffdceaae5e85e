"""The exact search of part after part by torch on a device: the arithmetic and the proof of `scan`, as operations on
whole tiles.

1. A first walk over a part's tiles keeps each query's k highest lower bounds; the last is a threshold.
2. A second one fetches the pairs whose upper bound reaches it. Multiplying twice is cheaper on a GPU than keeping what
   the first walk let pass.
3. These are scored on the CPU by `score.dot`, so the answer has the bytes of a search on the CPU.
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
    """As `scan.Scan`, on a device."""

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
        sought = factors(self._queries, self._precision, "query", np.arange(len(queries)))
        bounds = query_bounds(sought, queries.shape[1])
        self._left = sought.tensor().to(device)
        self._rounding = bounds.rounding
        self._terms = [self._column(term) for term in (bounds.a, bounds.b, bounds.c)]
        self._best = np.full((len(queries), k), NONE)

    def take(self, positions: Int64[ndarray, " rows"], vectors: Float32[ndarray, "rows width"]) -> None:
        """Search a part, given as positions in the corpus and embeddings."""
        k = self._best.shape[1]
        found = factors(vectors, self._precision, "document", positions)
        places = torch.from_numpy(positions).to(self._device)
        for first in range(0, len(self._queries), QUERY_TILE):
            of = slice(first, first + QUERY_TILE)
            threshold = self._column(self._thresholds(of))
            least = threshold.new_full((len(threshold), 0), 0)
            for _, low, _ in self._bounded(of, found, places):
                least = torch.cat([least, low], dim=1)
                least = least.topk(min(k, least.shape[1]), dim=1).values
            if least.shape[1] == k:
                threshold = torch.maximum(threshold, least[:, -1:])
            for base, _, high in self._bounded(of, found, places):
                # What is not a number reaches any threshold.
                pairs = (~(high < threshold)).nonzero().cpu().numpy()
                self._merge(first + pairs[:, 0], base + pairs[:, 1], positions, vectors)
                threshold = torch.maximum(threshold, self._column(self._thresholds(of)))

    def keys(self) -> UInt64[ndarray, "queries k"]:
        """The rankings, ascending."""
        return self._best

    def _bounded(
        self, of: slice, found: Factors, places: torch.Tensor
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """The first document of each tile, and lower and upper bounds of scores, -inf for what must not be found."""
        a, b, c = (term[of] for term in self._terms)
        excluded = torch.from_numpy(self._excluded[of, None]).to(self._device)
        reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        try:
            for base in range(0, len(places), DOCUMENT_TILE):
                rows = slice(base, base + DOCUMENT_TILE)
                right = Factors(found.bits[rows], found.norms, found.residuals).tensor().to(self._device)
                quick = (self._left[of] @ right.T).float()
                norms, residuals = self._column(found.norms[rows]).T, self._column(found.residuals[rows]).T
                # The last term is for the roundings of these operations in float32.
                error = (a * norms + b * residuals + c + self._rounding * quick.abs()) * (1 + 1e-5)
                error += 2.0**-22 * quick.abs()
                own = places[rows] == excluded
                low = (quick - error).nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
                yield base, low.masked_fill_(own, -torch.inf), (quick + error).masked_fill_(own, -torch.inf)
        finally:
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced

    def _merge(self, of: ndarray, rows: ndarray, positions: ndarray, vectors: ndarray) -> None:
        """Score pairs, ordered by query, and take them into the rankings."""
        found, documents = positions[rows], self._excluded[of]
        kept = found != documents
        of, rows, found = of[kept], rows[kept], found[kept]
        if not len(of):
            return
        keys = keys_of(pair_scores(self._queries, vectors, of, rows), self._order.ranks[found])
        queries, starts, counts = np.unique(of, return_index=True, return_counts=True)
        table = np.full((len(queries), counts.max()), NONE)
        row = np.repeat(np.arange(len(queries)), counts)
        table[row, np.arange(len(of)) - starts[row]] = keys
        self._best[queries] = merge_keys([self._best[queries], table], self._best.shape[1])

    def _thresholds(self, of: slice) -> Float32[ndarray, " some"]:
        """The k-th scores, or -inf; exact in float32."""
        return self._order.read(self._best[of, -1:])[0][:, 0]

    def _column(self, values: ndarray) -> torch.Tensor:
        """Float32 on the device, one a row, rounded up where that matters little: `1e-5` of the error covers it."""
        return torch.from_numpy(values.astype(np.float32)[:, None]).to(self._device)
