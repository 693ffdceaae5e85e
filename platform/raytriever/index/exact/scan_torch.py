"""Exact search by torch on a device. The documents are copied once, and all queries are searched among them.

1. One matrix product gives the upper bounds of all scores of a tile (`resident`). Each query keeps the documents with
   the highest ones, about one and a half times k.
2. These are scored exactly on the device, with the bits of `score.dot`, and merged into the ranking.
3. No other document has an upper bound above the lowest bound that was kept. If that is below the k-th exact score, the
   ranking is proven. Otherwise the query is searched again with more documents, in the end with all of them.

If the corpus does not fit in the free memory of the device, it is searched in parts: each is copied once, and every
query is searched in it. The rankings are in the memory of the host. For each part and tile of queries there is one copy
to the device and one back."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray
from torch import Tensor

from raytriever.index.exact.resident import ResidentDocuments
from raytriever.index.fork_guard import refuse_forked
from raytriever.index.ranking import NONE, SIGNED_NONE, TieOrder, from_signed, signed_scores, to_signed
from raytriever.index.score import check_finite, quick_precision
from raytriever.models.memory import free_memory, memory_error

QUERY_TILE = 1_024
# Upper bounds of a tile: enough work for a GPU, and little of its memory.
TILE_BYTES = 2**30
# Shares of the free memory: of documents, and of a tile, with which there are a few temporary tensors of its size.
DOCUMENT_SHARE, TILE_SHARE = 0.6, 0.06
_GROWTH = 4  # documents that are kept for a query whose ranking was not proven, times those before
_LARGEST_GROUP = 64


class TorchScan:
    """Rankings of queries over the documents added so far, computed on a device; see `scan.Scan`.

    Args:
        queries, k, order, exclude, before: see `scan.Scan`.
        device: device of the search.
        documents: largest number of documents that are added.
        corpus: all documents, if they are on the device already; then none are added, and they stay.
    """

    def __init__(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        order: TieOrder,
        exclude: Int64[ndarray, " queries"] | None,
        device: torch.device,
        documents: int,
        corpus: ResidentDocuments | None = None,
        before: UInt64[ndarray, "queries k"] | None = None,
    ) -> None:
        refuse_forked()
        self._queries, self._order = np.ascontiguousarray(queries, np.float32), order
        check_finite(self._queries, "query")
        self._excluded = np.full(len(queries), -1) if exclude is None else np.asarray(exclude, np.int64)
        self._best = np.full((len(queries), k), NONE) if before is None else before
        self._is_first = before is None
        free = free_bytes(device)
        self._tile_bytes = max(1, min(TILE_BYTES, int(TILE_SHARE * free)))
        self._stays = corpus is not None
        self._part = corpus or allocate(documents, queries.shape[1], device, int(DOCUMENT_SHARE * free))
        self._device = device

    def add(self, positions: Int64[ndarray, " rows"], vectors: Float32[ndarray, "rows width"]) -> None:
        """Copy a block of documents to the device, and search in them when no more fit."""
        start = 0
        while start < len(positions):
            rows = slice(start, start + self._part.free)
            self._part.add(positions[rows], self._order.ranks[positions[rows]].astype(np.int64), vectors[rows])
            start = rows.stop
            if not self._part.free:
                self._search_all()

    def keys(self) -> UInt64[ndarray, "queries k"]:
        """Return the rankings as ascending keys."""
        self._search_all()
        return self._best

    def _search_all(self) -> None:
        """Search all queries in the documents on the device, and remove these."""
        part = self._part
        if part.count:
            if not self._stays:
                part.check()
            k = self._best.shape[1]
            self._search(np.arange(len(self._queries)), k + max(64, k // 2))
            self._is_first = False
            if not self._stays:
                part.clear()

    def _search(self, rows: Int64[ndarray, " some"], wanted: int) -> None:
        """Search some queries; `wanted` documents of the highest upper bounds are kept for each."""
        wanted = min(wanted, self._part.count)
        step = max(1, min(QUERY_TILE, self._tile_bytes // (64 * max(wanted, self._best.shape[1], 1))))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            results = self._search_tile(some, wanted).cpu().numpy()
            is_proven = results[:, -1] == 1
            self._best[some[is_proven]] = from_signed(results[is_proven, :-1])
            if not is_proven.all():
                self._search(some[~is_proven], _GROWTH * wanted)

    def _search_tile(self, rows: Int64[ndarray, " some"], wanted: int) -> Int64[Tensor, "some k+1"]:
        """Return the rankings of queries as signed keys, with one more column: 1 where the ranking is proven."""
        part, k = self._part, self._best.shape[1]
        queries = torch.from_numpy(self._queries[rows]).to(self._device)
        excluded = torch.from_numpy(self._excluded[rows]).to(self._device)
        candidates, limit = self._candidates(queries, wanted)
        pairs = max(256, self._tile_bytes // (20 * max(1, queries.shape[1])))
        keys = part.keys(queries, candidates, excluded, pairs)
        if self._is_first:
            before = keys.new_full((len(keys), max(0, k - wanted)), SIGNED_NONE)
        else:
            before = torch.from_numpy(to_signed(self._best[rows])).to(self._device)
        best = torch.cat([keys, before], dim=1).sort(dim=1).values[:, :k]
        is_proven = (limit < signed_scores(best[:, -1])) | (limit == -torch.inf)
        return torch.cat([best, is_proven[:, None].long()], dim=1)

    def _candidates(
        self, queries: Float32[Tensor, "some width"], wanted: int
    ) -> tuple[Int64[Tensor, "some wanted"], Float32[Tensor, " some"]]:
        """Return the documents with the highest upper bounds, and an upper bound of all others; -inf for none."""
        part = self._part
        if wanted == part.count:
            every = torch.arange(part.count, device=self._device).expand(len(queries), -1)
            return every, queries.new_full((len(queries),), -torch.inf)
        factors = part.query_factors(queries)
        tile = max(1, self._tile_bytes // (4 * len(queries)))
        bounds, documents = highest(part.upper_bounds(factors, slice(0, min(tile, part.count))), wanted)
        for base in range(tile, part.count, tile):
            more = highest(part.upper_bounds(factors, slice(base, min(base + tile, part.count))), wanted)
            bounds, documents = torch.cat([bounds, more[0]], 1), torch.cat([documents, base + more[1]], 1)
            bounds, kept = bounds.topk(min(wanted, bounds.shape[1]), dim=1, sorted=False)
            documents = documents.gather(1, kept)
        return documents, bounds.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).amin(1)


def highest(
    bounds: Float32[Tensor, "queries documents"], count: int
) -> tuple[Float32[Tensor, "queries count"], Int64[Tensor, "queries count"]]:
    """Return the `count` highest bounds of each query, unordered, and their columns; NaN is the highest.

    Columns are in groups. The `count` highest bounds are in the `count` groups with the highest maxima. So most bounds
    are read once, to find these maxima, where `topk` alone reads all of them several times.
    """
    queries, documents = bounds.shape
    count = min(count, documents)
    group = 1
    while group < _LARGEST_GROUP and 4 * group * group * count <= documents:
        group *= 2
    if group == 1:
        values, columns = bounds.topk(count, dim=1, sorted=False)
        return values, columns
    whole = documents // group * group
    groups = bounds[:, :whole].view(queries, -1, group)
    kept = groups.amax(2).topk(count, dim=1, sorted=False).indices[:, :, None]
    members = torch.arange(group, device=bounds.device)
    columns = torch.cat(
        [
            (kept * group + members).flatten(1),
            torch.arange(whole, documents, device=bounds.device).expand(queries, -1),
        ],
        dim=1,
    )
    values, chosen = bounds.gather(1, columns).topk(count, dim=1, sorted=False)
    return values, columns.gather(1, chosen)


def free_bytes(device: torch.device) -> int:
    """Return the memory of a device that this process may use: of a GPU what is free, of the CPU a fixed amount."""
    return free_memory(device) if device.type == "cuda" else 2**30


def allocate(documents: int, width: int, device: torch.device, budget: int) -> ResidentDocuments:
    """Return room for all documents, or for as many as the budget and the device allow.

    Raises:
        ConfigError: the device has too little memory.
    """
    precision = quick_precision(device)
    rows = min(documents, budget // ResidentDocuments.bytes_per_row(width, precision))
    while rows or not documents:
        try:
            return ResidentDocuments(rows, width, precision, device)
        except torch.OutOfMemoryError:
            rows //= 2  # another process was faster
    raise memory_error(f"{budget / 2**20:,.0f} MB are free for documents, too little for a search", device)
