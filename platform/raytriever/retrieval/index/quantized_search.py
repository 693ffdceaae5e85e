"""Exact search of quantized documents: int8 by ranges of a sample, or one bit a component; with rescoring.

Codes and scores are those of sentence-transformers' `quantize_embeddings`, `semantic_search_usearch` (int8, binary) and
`semantic_search_faiss` (ubinary):

1. `int8`: the range of each component over the sample has 256 equal steps; a component is the number of its step.
2. `binary` and `ubinary`: a bit a component, 1 above 0. Eight bits are one byte, minus 128 for `binary`.

The query is quantized too. Its codes select candidates by the dot product (int8) or by the number of equal bits. The
candidates are ordered by the dot product of the query in fp32 and of the values that the codes mean: the lower end of
the step (int8), or 0 and 1.
"""

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
# Queries whose candidates are rescored at a time, which limits the documents in memory.
_RESCORED = 256


def bytes_per_document(dtype: str, width: int) -> int:
    """Return the bytes of one stored embedding; int8 has 8 bytes a component for the whole corpus in addition."""
    return {FP32: 4 * width, INT8: width}.get(dtype, -(-width // 8))


@dataclass(frozen=True)
class Quantizer:
    """Codes of embeddings, and the values that they mean.

    Args:
        dtype: `int8`, `binary` or `ubinary`.
        ranges: lowest and highest value of each component in the sample; only for int8.
    """

    dtype: str
    ranges: Float32[ndarray, "2 width"] | None = None

    @classmethod
    def fit(cls, dtype: str, sample: Float32[ndarray, "rows width"]) -> Quantizer:
        """Return the quantizer of a type; int8 takes its ranges from the sample."""
        ranges = np.stack([sample.min(axis=0), sample.max(axis=0)]) if dtype == INT8 else None
        return cls(dtype, ranges)

    @property
    def _steps(self) -> Float32[ndarray, " width"]:
        assert self.ranges is not None
        steps = (self.ranges[1] - self.ranges[0]) / np.float32(_STEPS)
        return np.where(steps == 0, np.float32(1), steps)

    def encode(self, embeddings: Float32[ndarray, "rows width"]) -> Integer[ndarray, "rows bytes"]:
        """Return the codes of embeddings, as they are stored."""
        if self.ranges is not None:
            codes = np.clip(np.floor((embeddings - self.ranges[0]) / self._steps), 0, _STEPS)
            return (codes - _OFFSET).astype(np.int8)
        bits = np.packbits(embeddings > 0, axis=-1)
        return bits if self.dtype == UBINARY else (bits - np.uint8(_OFFSET)).view(np.int8)

    def decode(self, codes: Integer[ndarray, "rows bytes"], width: int) -> Float32[ndarray, "rows width"]:
        """Return the vectors with which queries in fp32 are compared."""
        if self.ranges is not None:
            return (codes.astype(np.float32) + _OFFSET) * self._steps + self.ranges[0]
        bits = codes if self.dtype == UBINARY else codes.view(np.uint8) + np.uint8(_OFFSET)
        return np.unpackbits(bits, axis=-1, count=width).astype(np.float32)

    def factors(self, embeddings: Float32[ndarray, "rows width"]) -> Float32[ndarray, "rows width"]:
        """Return vectors whose dot products order documents as a search of the codes does.

        The dot product of components of -1 and 1 is the width minus twice the number of different bits.
        """
        codes = self.encode(embeddings)
        return codes.astype(np.float32) if self.dtype == INT8 else 2 * self.decode(codes, embeddings.shape[1]) - 1


@dataclass(frozen=True)
class QuantisedDocuments:
    """Documents that are searched by their codes.

    Args:
        blocks: returns the blocks of the embeddings in fp32, see `index.exact_top_k.top_k_of_blocks`.
        ties: result of `index.exact_top_k.tie_order`.
    """

    quantizer: Quantizer
    blocks: Callable[[], Blocks]
    read: Callable[[ndarray], ndarray]
    ties: Int64[ndarray, " documents"]

    def search(
        self, queries: Float32[ndarray, "queries width"], depth: int, rescored: int
    ) -> tuple[Float32[ndarray, "queries depth"], Int64[ndarray, "queries depth"]]:
        """Return scores and documents of the best results, best first; all scores are those of rescoring.

        Args:
            queries: embeddings in fp32.
            rescored: number of candidates among which the first results are chosen. If it is below `depth`, further
                documents of the search by codes follow, in order of their own scores.
        """
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

    def score(self, queries: Float32[ndarray, "queries width"], of: ndarray, to: ndarray) -> ndarray:
        """Return the scores of rescoring of pairs of a row of `queries` and a document."""
        documents, index = np.unique(to, return_inverse=True)
        vectors = self.quantizer.decode(self.quantizer.encode(self.read(documents)), queries.shape[1])
        return pair_scores(queries, vectors, of, index)
