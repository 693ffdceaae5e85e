"""Exact search by torch on a device. Documents are copied once, in float32, and all queries are searched among them.

1. One matrix product gives the upper bounds of all scores of a tile. Each query keeps the documents with the highest
   ones, about one and a half times k.
2. These are scored exactly on the device, with the bits of `score.dot`, and merged into the ranking.
3. No other document has an upper bound above the lowest bound that was kept. If that is below the k-th exact score, the
   ranking is proven. Otherwise the query is searched again with more documents, in the end with all of them.

If the corpus does not fit in the free memory of the device, it is searched in parts: each is copied once, and every
query is searched in it. The rankings are in the memory of the host. For each part and tile of queries there is one copy
to the device and one back, which the next tile does not wait for.

The bound of `index.score`, score <= q'·d' + a |d| + b |s| + c = [q', a, b, c] · [d', |d|, |s|, 1], is itself a dot
product. So factors with three more columns give the upper bounds of all pairs in one product with float32 sums, and no
other operation reads or writes the whole tile. Two terms differ from a CPU's:

1. Tensor cores truncate, and align the products of a block before they add them. `UNIT_ON_DEVICE`, four times the unit
   of float32, covers both (Fasi et al., Numerical behavior of NVIDIA tensor cores, 2021).
2. a, b, c, |d| and |s| are multiplied by 1 + 2^-7 before they are rounded to bf16, so no product of two of them becomes
   smaller. What remains, at least 2^-8 of the error, covers the rounding of their own sum for any width below 16,000.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, UInt64
from numpy import ndarray
from torch import Tensor

from raytriever.index.ranking import NONE, SIGNED_NONE, TieOrder, from_signed, signed_keys, signed_scores, to_signed
from raytriever.index.score import (
    LARGEST_NORM,
    UNIT,
    check_finite,
    error_terms,
    exact_scores,
    quick_precision,
    refuse_forked,
    refuse_not_finite,
)
from raytriever.models.memory import HostCopy, free_memory, memory_error

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
        precision: type of the factors, `bf16` or `fp32`.
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


QUERY_TILE = 1_024
# Upper bounds of a tile: enough work for a GPU, and little of its memory.
TILE_BYTES = 2**30
# Shares of the free memory: of documents, and of a tile, with which there are a few temporary tensors of its size.
DOCUMENT_SHARE, TILE_SHARE = 0.6, 0.06
_GROWTH = 4  # documents that are kept for a query whose ranking was not proven, times those before
_LARGEST_GROUP = 64


class TorchScan:
    """Rankings of queries over the documents added so far, computed on a device; see `search.Scan`.

    Args:
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
    ) -> None:
        refuse_forked()
        self._queries, self._order = np.ascontiguousarray(queries, np.float32), order
        check_finite(self._queries, "query")
        self._excluded = np.full(len(queries), -1) if exclude is None else np.asarray(exclude, np.int64)
        self._best = np.full((len(queries), k), NONE)
        self._is_first = True
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
        before: tuple[Int64[ndarray, " some"], HostCopy] | None = None
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            # The device searches this tile while the host reads the one before.
            now = some, HostCopy(self._search_tile(some, wanted))
            if before is not None:
                self._keep(*before, wanted)
            before = now
        if before is not None:
            self._keep(*before, wanted)

    def _keep(self, rows: Int64[ndarray, " some"], copy: HostCopy, wanted: int) -> None:
        """Keep the rankings of queries that are proven, and search the others again."""
        results = copy.read()
        is_proven = results[:, -1] == 1
        self._best[rows[is_proven]] = from_signed(results[is_proven, :-1])
        if not is_proven.all():
            self._search(rows[~is_proven], _GROWTH * wanted)

    def _search_tile(self, rows: Int64[ndarray, " some"], wanted: int) -> Int64[Tensor, "some k+1"]:
        """Return the rankings of queries as signed keys, with one more column: 1 where the ranking is proven."""
        part, k = self._part, self._best.shape[1]
        queries, excluded = self._send(self._queries[rows]), self._send(self._excluded[rows])
        candidates, limit = self._candidates(queries, wanted)
        pairs = max(256, self._tile_bytes // (20 * max(1, queries.shape[1])))
        keys = part.keys(queries, candidates, excluded, pairs)
        if self._is_first:
            before = keys.new_full((len(keys), max(0, k - wanted)), SIGNED_NONE)
        else:
            before = self._send(to_signed(self._best[rows]))
        best = torch.cat([keys, before], dim=1).sort(dim=1).values[:, :k]
        is_proven = (limit < signed_scores(best[:, -1])) | (limit == -torch.inf)
        return torch.cat([best, is_proven[:, None].long()], dim=1)

    def _send(self, values: ndarray) -> Tensor:
        """Copy values to the device. A copy from memory that is not pinned waits for all tiles before."""
        tensor = torch.from_numpy(values)
        return (tensor.pin_memory() if self._device.type == "cuda" else tensor).to(self._device, non_blocking=True)

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
    """Return room for all documents, or for as many as the budget and the device allow."""
    precision = quick_precision(device)
    rows = min(documents, budget // ResidentDocuments.bytes_per_row(width, precision))
    while rows or not documents:
        try:
            return ResidentDocuments(rows, width, precision, device)
        except torch.OutOfMemoryError:
            rows //= 2  # another process was faster
    raise memory_error(f"{budget / 2**20:,.0f} MB are free for documents, too little for a search", device)
