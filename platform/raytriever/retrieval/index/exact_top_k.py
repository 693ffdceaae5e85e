"""Exact top-k by dot product over the blocks of a corpus, with an order that depends only on scores and ids.

Equal scores are ordered by descending document id, as in trec_eval, so a run file gives the same metrics in any tool.
Scores are those of `index.pair_scores`, so the result has the same bytes for any blocks in any order, any number of
threads and any device. The search goes through the blocks, with as many queries as the memory allows:

1. A matrix product in float32 gives inexact scores, called quick scores. Each query keeps the documents with the
   highest quick scores, a few more than k.
2. At least k documents score no less than the k-th highest quick score minus its error. A document is excluded
   if its quick score plus its error is below this bound, or below the k-th exact score of the earlier blocks.
3. The other kept documents are scored exactly and merged into the ranking. If the last kept document is not excluded,
   some documents may be missing. Then the query is searched again with four times as many documents.
4. If a quarter of the block is kept, one product in float64 scores the whole block, which takes less time.

For a query q and a document d of n components, the error of a quick score is at most g |q| |d| + t, in any order of
summation (Higham, Accuracy and Stability, section 3.1). Here g = m u / (1 - m u), u = 2^-22 and m = n + 16. This u is
four times the unit roundoff of float32, because a GPU may truncate. t covers numbers below 2^-126, which may become 0.
If norms exceed 2^60, float32 might overflow, so the whole block is scored exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import Lock

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray
from torch import Tensor

from raytriever.core.errors import ConfigError, ModelError
from raytriever.core.numba_threads import thread_pool
from raytriever.models.device_and_precision import default_device
from raytriever.models.device_memory import free_memory, memory_errors
from raytriever.retrieval.index.pair_scores import (
    as_float32,
    check_finite,
    norms,
    refuse_forked,
    round_sums,
    scores_of_pairs,
)
from raytriever.retrieval.index.rank_keys import NONE, TieOrder, keys_of, scores_of

# Largest number of bytes of a block's embeddings, and of a tile (scores or float64 embeddings) on a CPU and a GPU.
BLOCK_BYTES, TILE_BYTES, GPU_TILE_BYTES = 2**28, 2**24, 2**30
# Bytes of the quick scores of all CPU threads. A matrix product repacks a whole block, so it takes many queries.
SCORE_BYTES = 2**27
# Blocks with fewer rows than this are joined: each block adds documents to score exactly, so few blocks are faster.
FEWEST_ROWS = 131_072
# `MORE`: documents kept in addition to 9 k / 8. `_GROWTH`: the four times of step 3. 1 / `_WHOLE`: a quarter (step 4).
MORE, _GROWTH, _WHOLE = 32, 4, 4
# Largest fractions of a GPU's free memory: for all documents, if they stay in it, and for a tile.
DOCUMENT_FRACTION, TILE_FRACTION = 0.6, 0.06
# Smallest number of queries that a thread searches for together.
FEWEST_QUERIES = 8
_LARGEST_NORM, _TINY = 2.0**60, 2.0**-126
_precision_lock = Lock()

# Blocks of a corpus, each with the position of its first row and its embeddings.
Blocks = Iterable[tuple[int, Float32[ndarray, "rows dim"]]]


@dataclass(frozen=True)
class DocumentBlock:
    """Block of documents on a device: embeddings, tie ranks, and an upper bound of the norms."""

    vectors: Float32[Tensor, "rows dim"]
    ranks: Int64[Tensor, " rows"]
    largest: float


class _Search:
    def __init__(self, queries: Float32[ndarray, "queries dim"], k: int, device: torch.device) -> None:
        refuse_forked()
        self._queries, self._device = torch.from_numpy(as_float32(queries)), device
        self._norms = norms(self._queries)
        if not bool(self._norms.isfinite().all()):
            check_finite(queries, "query")
        self.keys = torch.full((len(queries), k), NONE)
        self._tile = self._scores = min(GPU_TILE_BYTES, int(TILE_FRACTION * free_memory(device)))
        if device.type == "cpu":
            self._tile, self._scores = TILE_BYTES, max(TILE_BYTES, SCORE_BYTES // torch.get_num_threads())

    def add(self, block: DocumentBlock) -> None:
        """Search a block of documents."""
        count, dim = block.vectors.shape
        if not count or not self.keys.numel():
            return
        unit = (dim + 16) * 2.0**-22
        errors = (unit / (1 - unit) * block.largest + 4 * _TINY * dim) * self._norms
        errors += 4 * _TINY * dim * (block.largest + 1)
        is_bounded = (self._norms < _LARGEST_NORM) & (block.largest < _LARGEST_NORM)
        k = self.keys.shape[1]
        with _full_precision(self._device):
            for rows, wanted in ((is_bounded, k + k // 8 + MORE), (~is_bounded, count)):
                search = partial(self._search, wanted=wanted, errors=errors, b=block)
                _in_threads(search, rows.nonzero()[:, 0], self._device)

    def _search(
        self, rows: Int64[Tensor, " some"], wanted: int, errors: Float64[Tensor, " queries"], b: DocumentBlock
    ) -> None:
        """Merge a block into the rankings of some queries, after keeping `wanted` documents for each."""
        if not len(rows):
            return
        is_whole = wanted * _WHOLE >= len(b.vectors)
        count = max(1, self._tile // (16 * self._piece(b)) if is_whole else self._scores // (4 * len(b.vectors)))
        # Allocate the buffer once, because the first access to each memory page is slow.
        scores = b.vectors.new_empty(0 if is_whole else min(count, len(rows)), len(b.vectors))
        again = []
        for some in rows.split(count):
            queries, best = self._queries[some].to(self._device), self.keys[some].to(self._device)
            lengths = self._norms[some].to(self._device) * b.largest
            if is_whole:
                self.keys[some] = self._rank_all(queries, lengths, best, b).cpu()
                continue
            quick, to = _highest(torch.mm(queries, b.vectors.T, out=scores[: len(some)]), wanted)
            error, k = errors[some, None].to(self._device), best.shape[1]
            least = torch.maximum(scores_of(best[:, -1:]), quick[:, k - 1, None] - error) - error
            is_candidate = quick >= least
            is_missing = is_candidate[:, -1].clone()
            is_candidate &= ~is_missing[:, None]
            of, column = is_candidate.nonzero(as_tuple=True)
            to = to[of, column]
            keys = torch.full_like(is_candidate, NONE, dtype=torch.int64)
            exact = scores_of_pairs(queries, b.vectors, of, to, lengths[of], self._tile)
            keys[of, column] = keys_of(exact, b.ranks[to])
            self.keys[some] = _smallest(torch.cat([best, keys], 1), k).cpu()
            again.append(some[is_missing.cpu()])
        del scores
        if again:
            self._search(torch.cat(again), _GROWTH * wanted, errors, b)

    def _piece(self, block: DocumentBlock) -> int:
        return max(1, min(len(block.vectors), self._tile // (8 * max(1, block.vectors.shape[1]))))

    def _rank_all(
        self, queries: Tensor, lengths: Tensor, best: Tensor, block: DocumentBlock
    ) -> Int64[Tensor, "some k"]:
        size = self._piece(block)
        for documents, ranks in zip(block.vectors.split(size), block.ranks.split(size), strict=True):
            sums = queries.double() @ documents.double().T
            scores = round_sums(
                sums, lengths[:, None], queries, documents, lambda chosen: chosen.nonzero(as_tuple=True)
            )
            best = _smallest(torch.cat([best, keys_of(scores, ranks)], 1), best.shape[1])
        return best


def _highest(scores: Float32[Tensor, "queries rows"], count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest scores of each query, descending, and their columns.

    All of these scores are in the `count` groups of columns with the highest maxima, so `topk` reads only these groups.
    """
    queries, rows = scores.shape
    size = max(1, int((rows / (4 * count)) ** 0.5))  # number of columns in a group
    groups = rows // size
    # A group consists of every `groups`-th column.
    maxima = scores[:, : groups * size].unflatten(1, (size, groups)).amax(1)
    chosen = maxima.topk(min(count, groups), sorted=False).indices
    members = torch.arange(0, groups * size, groups, device=scores.device)
    rest = torch.arange(groups * size, rows, device=scores.device).expand(queries, -1)
    columns = torch.cat([(chosen[:, :, None] + members).flatten(1), rest], 1)
    values, kept = scores.gather(1, columns).topk(count)
    return values, columns.gather(1, kept)


def _smallest(keys: Int64[Tensor, "queries _"], k: int) -> Int64[Tensor, "queries k"]:
    return keys.topk(k, largest=False).values


def _in_threads(search: Callable[[Tensor], None], rows: Int64[Tensor, " some"], device: torch.device) -> None:
    """Search for all queries. On a CPU, each thread searches for some of the queries.

    If each operation of torch used several threads, they would wait for the slowest thread after every operation."""
    threads = torch.get_num_threads()
    parts = min(2 * threads, len(rows) // FEWEST_QUERIES) if threads > 1 and device.type == "cpu" else 1
    if parts < 2:
        search(rows)
        return

    def alone(some: Tensor) -> None:
        torch.set_num_threads(1)  # applies to this thread, and to all threads that start until it is reset
        search(some)

    try:
        list(thread_pool(threads).map(alone, rows.chunk(parts)))
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Multiply in full float32, even if the caller allows TF32 or autocast. The setting is global to the process."""
    with _precision_lock, torch.autocast(device.type, enabled=False):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def even_blocks(
    blocks: Blocks, dim: int, documents: int
) -> Iterator[tuple[Int64[ndarray, " rows"], Float32[ndarray, "rows dim"]]]:
    """Yield blocks of up to `BLOCK_BYTES`: positions and embeddings. Copy and join blocks of under `FEWEST_ROWS`."""
    most = max(1, BLOCK_BYTES // (4 * max(1, dim)))
    fewest = min(FEWEST_ROWS, most)
    pending: list[tuple[ndarray, ndarray]] = []
    for first, values in blocks:
        if values.ndim != 2 or values.shape[1] != dim:
            what = f"embeddings of shape {values.shape} cannot be searched with queries of dimension {dim}"
            raise ModelError(what, f"block at document {first}", "encode both with the same model")
        if first < 0 or first + len(values) > documents:
            raise ValueError(f"a block holds documents {first} to {first + len(values) - 1}, but there are {documents}")
        for start in range(0, len(values), most):
            piece = as_float32(values[start : start + most])
            positions = np.arange(first + start, first + start + len(piece))
            if len(piece) >= fewest:
                yield positions, piece
                continue
            pending.append((positions, piece))
            if sum(len(rows) for rows, _ in pending) >= fewest:
                yield _join(pending)
                pending = []
    if pending:
        yield _join(pending)


def _join(blocks: list[tuple[ndarray, ndarray]]) -> tuple[ndarray, ndarray]:
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate([rows for rows, _ in blocks]), np.concatenate([values for _, values in blocks])


def tie_order(document_ids: Iterable[str]) -> Int64[ndarray, " documents"]:
    """Return each document's rank among documents with equal scores. The id that sorts last has rank 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = iter(document_ids)
    # UTF-8 sorts in the order of the characters, and needs less memory than Python's strings.
    pieces = iter(lambda: pa.array(islice(ids, FEWEST_ROWS), pa.string()), pa.array([], pa.string()))
    order = pc.sort_indices(pa.chunked_array(pieces, pa.string())).to_numpy()[::-1]  # descending, as trec_eval
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def check_count(k: int) -> None:
    """Raise `ConfigError` if a number of documents is below 1."""
    if k < 1:
        raise ConfigError(f"k = {k} is out of range", remedy="use k of at least 1")


class Corpus:
    """Corpus for any number of searches. Its documents are copied to a GPU only once, if they fit.

    Args:
        blocks: function that returns blocks of any sizes in any order: position of the first row, and embeddings. Each
            search calls it, unless the documents stay on a GPU.
        order: order of equal scores in the whole corpus.
        device: device of the search; by default a CUDA device if there is one.
        documents: upper bound of the number of documents in all blocks; by default the size of the corpus.
    """

    def __init__(
        self,
        blocks: Callable[[], Blocks],
        order: TieOrder,
        device: torch.device | None = None,
        documents: int | None = None,
    ) -> None:
        self._blocks, self._order, self._device = blocks, order, device or default_device()
        self._documents = len(order.ranks) if documents is None else documents
        self._resident: list[DocumentBlock] = []
        self._stays: bool | None = None  # whether documents stay on the GPU; None before the first search
        self._largest: dict[int, float] = {}  # upper bound of the norms in each block, stored for later searches

    def top_k(
        self, queries: Float32[ndarray, "queries dim"], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Return the k highest dot products of each query and their documents, best first; see `top_k_of_blocks`."""
        return self._order.read(self.keys(queries, k))

    def keys(self, queries: Float32[ndarray, "queries dim"], k: int) -> Int64[ndarray, "queries k"]:
        """Return the k best documents of each query as keys, for `rank_keys.merge_keys` and `TieOrder.read`."""
        check_count(k)
        dim = queries.shape[1]
        if self._stays is None:
            needed = self._documents * (4 * dim + 8)
            self._stays = self._device.type != "cpu" and needed <= DOCUMENT_FRACTION * free_memory(self._device)
        search = _Search(queries, min(k, len(self._order.ranks)), self._device)
        with memory_errors("the device has too little free memory for a search", self._device):
            if self._stays and not self._resident:
                self._resident = list(self._read(dim))
            for block in self._resident or self._read(dim):
                search.add(block)
        return search.keys.numpy()

    def _read(self, dim: int) -> Iterator[DocumentBlock]:
        for number, (positions, values) in enumerate(even_blocks(self._blocks(), dim, len(self._order.ranks))):
            vectors = torch.from_numpy(values).to(self._device)
            if number not in self._largest:
                lengths = norms(vectors)
                if not bool(lengths.isfinite().all()):
                    check_finite(values, "document", positions)
                self._largest[number] = float(lengths.max())
            ranks = torch.from_numpy(self._order.ranks[positions].astype(np.int64)).to(self._device)
            yield DocumentBlock(vectors, ranks, self._largest[number])


def top_k(
    queries: Float32[ndarray, "queries dim"],
    documents: Float32[ndarray, "documents dim"],
    k: int,
    ties: Int64[ndarray, " documents"],
    device: torch.device | None = None,
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """Search documents that are one array; see `top_k_of_blocks`."""
    return top_k_of_blocks(queries, [(0, documents)], k, ties, device)


def top_k_of_blocks(
    queries: Float32[ndarray, "queries dim"],
    blocks: Blocks,
    k: int,
    ties: Int64[ndarray, " documents"],
    device: torch.device | None = None,
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """Return the k highest dot products of each query and their documents, best first.

    Args:
        blocks: (position of the first row, embeddings) of each block, in any sizes and any order. Each is read once.
        k: number of documents per query, at least 1. At most `len(ties)` are returned.
        ties: result of `tie_order` for the whole corpus. It decides the order of equal scores.
        device: device of the search; by default a CUDA device if there is one.

    Returns:
        Scores and documents; -inf and -1 if a query has fewer than k documents.
    """
    return Corpus(lambda: blocks, TieOrder.of(ties), device).top_k(queries, k)
