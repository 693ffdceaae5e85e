"""Rankings as ascending 64-bit keys: the descending score in the high bits, the tie rank in the low bits.

One integer holds everything that decides the order. So partial rankings take eight bytes per entry, are merged by
sorting integers, and give the same bytes in any order of merging. The high half of a key has the bits of the float32
score, changed so that higher scores give smaller integers. The low half is the document's rank among ties. The score
of a key must not be -0 or NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt32
from numpy import ndarray
from torch import Tensor

from raytriever.core.errors import DataError

# Key of an unused entry of a ranking. It is greater than the key of any score.
NONE = 2**63 - 1
_LOW = 2**32 - 1


@dataclass(frozen=True)
class TieOrder:
    """Order of documents with equal scores: the rank of each document, and the document of each rank."""

    ranks: UInt32[ndarray, " documents"]
    documents: Int64[ndarray, " documents"]

    @classmethod
    def of(cls, ties: Int64[ndarray, " documents"]) -> TieOrder:
        """Create the order from the result of `tie_order`, or from any numbers that ascend in the desired order."""
        if len(ties) > _LOW:
            raise DataError(f"there are {len(ties):,} documents", remedy="search at most 4,294,967,295 at once")
        documents = np.argsort(ties, kind="stable")
        ranks = np.empty(len(ties), np.uint32)
        ranks[documents] = np.arange(len(ties), dtype=np.uint32)
        return cls(ranks, documents)

    def read(
        self, keys: Int64[ndarray, "queries k"]
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Decode keys to scores and documents; `NONE` becomes -inf and -1."""
        documents = np.full(keys.shape, -1)
        is_document = keys != NONE
        documents[is_document] = self.documents[keys[is_document] & _LOW]
        return scores_of(torch.from_numpy(keys)).numpy(), documents


def keys_of(scores: Float32[Tensor, "*shape"], ranks: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Return the keys of scores and tie ranks."""
    bits = scores.view(torch.int32)
    return (torch.where(bits >= 0, ~bits, bits & 0x7FFF_FFFF).long() << 32) | ranks


def scores_of(keys: Int64[Tensor, "*shape"]) -> Float32[Tensor, "*shape"]:
    """Return the scores of keys; -inf for `NONE`."""
    bits = (keys >> 32).int()
    scores = torch.where(bits < 0, ~bits, bits | -0x8000_0000).view(torch.float32)
    return scores.masked_fill(keys == NONE, -torch.inf)


def merge_keys(partial: Sequence[Int64[ndarray, "queries _"]], k: int) -> Int64[ndarray, "queries k"]:
    """Merge partial rankings, in any order: return the k smallest keys of each query, ascending."""
    keys = np.concatenate(partial, axis=1)
    keys.sort(axis=1)
    if keys.shape[1] < k:
        keys = np.pad(keys, ((0, 0), (0, k - keys.shape[1])), constant_values=NONE)
    return np.ascontiguousarray(keys[:, :k])
