"""Exact search of quantized documents, with rescoring: int8 with ranges from a sample, or one bit per component.

Codes and scores equal those of sentence-transformers' `quantize_embeddings`, `semantic_search_usearch` (int8, binary)
and `semantic_search_faiss` (ubinary):

1. `int8`: the range of each component in the sample has 255 equal steps. A code is the number of a step, 0 to 255.
2. `binary` and `ubinary`: one bit per component, 1 if it is above 0. Eight bits form a byte; `binary` subtracts 128.

The query is quantized too. Its codes select candidates by the dot product (int8) or by the number of equal bits. Then
the candidates are ordered by the dot product of the fp32 query and the decoded document. An int8 code decodes to the
lower end of its step, a bit to 0 or 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64, Integer
from numpy import ndarray

from raytriever.retrieval.index.exact_top_k import Blocks, top_k_of_blocks
from raytriever.retrieval.index.pair_scores import pair_scores

FP32, INT8, UBINARY = "fp32", "int8", "ubinary"
_STEPS = 255
_OFFSET = 128
# Number of queries whose candidates are rescored at once. It limits the number of documents in memory.
_RESCORED = 256


def bytes_per_document(dtype: str, dim: int) -> int:
    """Return the bytes of one stored embedding. For the whole corpus, int8 stores 8 more bytes per component."""
    return {FP32: 4 * dim, INT8: dim}.get(dtype, -(-dim // 8))


@dataclass(frozen=True)
class Quantizer:
    """Conversion between embeddings and codes of one type: `int8`, `binary` or `ubinary`. Only int8 has `ranges`: the
    lowest and the highest value of each component in the sample."""

    dtype: str
    ranges: Float32[ndarray, "2 dim"] | None = None

    @classmethod
    def fit(cls, dtype: str, sample: Float32[ndarray, "rows dim"]) -> Quantizer:
        """Create the quantizer of a type; int8 takes its ranges from the sample."""
        ranges = np.stack([sample.min(axis=0), sample.max(axis=0)]) if dtype == INT8 else None
        return cls(dtype, ranges)

    @property
    def _steps(self) -> Float32[ndarray, " dim"]:
        assert self.ranges is not None
        steps = (self.ranges[1] - self.ranges[0]) / np.float32(_STEPS)
        return np.where(steps == 0, np.float32(1), steps)

    def encode(self, embeddings: Float32[ndarray, "rows dim"]) -> Integer[ndarray, "rows bytes"]:
        """Return the stored codes of embeddings."""
        if self.ranges is not None:
            codes = np.clip(np.floor((embeddings - self.ranges[0]) / self._steps), 0, _STEPS)
            return (codes - _OFFSET).astype(np.int8)
        bits = np.packbits(embeddings > 0, axis=-1)
        return bits if self.dtype == UBINARY else (bits - np.uint8(_OFFSET)).view(np.int8)

    def decode(self, codes: Integer[ndarray, "rows bytes"], dim: int) -> Float32[ndarray, "rows dim"]:
        """Decode codes to the vectors that are compared with queries in fp32."""
        if self.ranges is not None:
            return (codes.astype(np.float32) + _OFFSET) * self._steps + self.ranges[0]
        bits = codes if self.dtype == UBINARY else codes.view(np.uint8) + np.uint8(_OFFSET)
        return np.unpackbits(bits, axis=-1, count=dim).astype(np.float32)

    def factors(self, embeddings: Float32[ndarray, "rows dim"]) -> Float32[ndarray, "rows dim"]:
        """Return vectors whose dot products order documents in the same way as a search with the codes.

        For bits these are -1 and 1: their dot product is the dimension minus twice the number of different bits."""
        codes = self.encode(embeddings)
        return codes.astype(np.float32) if self.dtype == INT8 else 2 * self.decode(codes, embeddings.shape[1]) - 1


@dataclass(frozen=True)
class QuantisedDocuments:
    """Quantized documents for search. `blocks` returns their fp32 embeddings, and `ties` is the result of `tie_order`;
    see `index.exact_top_k`."""

    quantizer: Quantizer
    blocks: Callable[[], Blocks]
    read: Callable[[ndarray], ndarray]
    ties: Int64[ndarray, " documents"]

    def search(
        self, queries: Float32[ndarray, "queries dim"], depth: int, rescored: int
    ) -> tuple[Float32[ndarray, "queries depth"], Int64[ndarray, "queries depth"]]:
        """Return scores and documents of the best results, best first. Scores use the fp32 queries.

        The first `rescored` candidates of the search with codes come first, ordered by score. If `depth` is larger,
        the next candidates follow, also ordered by score."""
        quantizer = self.quantizer
        blocks = ((first, quantizer.factors(values)) for first, values in self.blocks())
        _, candidates = top_k_of_blocks(quantizer.factors(queries), blocks, max(depth, rescored), self.ties)
        scores = np.full(candidates.shape, -np.inf, np.float32)
        for start in range(0, len(queries), _RESCORED):
            rows, columns = np.nonzero(candidates[start : start + _RESCORED] >= 0)
            rows += start
            scores[rows, columns] = self.score(queries, rows, candidates[rows, columns])
        follows = np.broadcast_to(np.arange(candidates.shape[1]) >= rescored, candidates.shape)
        order = np.lexsort((self.ties[candidates], -scores, follows), axis=1)[:, :depth]
        return np.take_along_axis(scores, order, 1), np.take_along_axis(candidates, order, 1)

    def score(self, queries: Float32[ndarray, "queries dim"], of: ndarray, to: ndarray) -> ndarray:
        """Return the dot product of each fp32 query (row `of`) with a decoded document (position `to`)."""
        documents, index = np.unique(to, return_inverse=True)
        vectors = self.quantizer.decode(self.quantizer.encode(self.read(documents)), queries.shape[1])
        return pair_scores(queries, vectors, of, index)
