"""Rankings as ascending 64-bit keys: the descending score in the high bits, the tie rank in the low bits.

One integer holds everything that decides the order. So partial rankings are merged by sorting integers, take eight
bytes per entry, and give the same bytes in any order of merging. The high half of a key is the float32 score with its
bits changed so that higher scores give smaller unsigned integers. The low half is the document's rank among ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt32, UInt64
from numpy import ndarray
from torch import Tensor

from raytriever.errors import DataError

# Fills the unused entries of a ranking; greater than the key of any score.
NONE = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_LOW, _SIGN_OFF = np.uint64(0xFFFF_FFFF), np.uint64(0x7FFF_FFFF)
_HALF, _SIGN, _TOP = np.uint64(32), np.uint64(31), np.uint64(1 << 63)
SIGNED_NONE = 2**63 - 1


@dataclass(frozen=True)
class TieOrder:
    """Order of documents with equal scores: the rank of each document, and the document of each rank."""

    ranks: UInt32[ndarray, " documents"]
    documents: Int64[ndarray, " documents"]

    @classmethod
    def of(cls, ties: Int64[ndarray, " documents"]) -> TieOrder:
        """Create the order from `tie_order`, or from any numbers that ascend in the wanted order.

        Raises:
            DataError: there are more documents than 32 bits can number.
        """
        if len(ties) > int(_LOW):
            raise DataError(f"there are {len(ties):,} documents", remedy="search at most 4,294,967,295 at once")
        documents = np.argsort(ties, kind="stable")
        ranks = np.empty(len(ties), np.uint32)
        ranks[documents] = np.arange(len(ties), dtype=np.uint32)
        return cls(ranks, documents)

    def read(
        self, keys: UInt64[ndarray, "queries k"]
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Return the scores and documents of keys; -inf and -1 for `NONE`."""
        high = (keys >> _HALF).astype(np.uint32)
        np.bitwise_xor(high, np.uint32(_SIGN_OFF), out=high, where=high >> np.uint32(31) == 0)
        scores = high.view(np.float32)
        missing = keys == NONE
        documents = (
            self.documents[np.where(missing, np.uint64(0), keys & _LOW)]
            if len(self.documents)
            else np.empty_like(keys, np.int64)
        )
        scores[missing], documents[missing] = -np.inf, -1
        return scores, documents


def keys_of(scores: Float32[ndarray, "*shape"], ranks: UInt32[ndarray, "*shape"]) -> UInt64[ndarray, "*shape"]:
    """Return the keys of scores and tie ranks; the key of NaN is `NONE`."""
    bits = np.ascontiguousarray(scores + np.float32(0)).view(np.uint32).astype(np.uint64)
    keys = np.where(bits >> _SIGN == 0, bits ^ _SIGN_OFF, bits) << _HALF | ranks
    return np.where(np.isnan(scores), NONE, keys)


def merge_keys(partial: Sequence[UInt64[ndarray, "queries _"]], k: int) -> UInt64[ndarray, "queries k"]:
    """Merge partial rankings: return the k smallest keys of each query, ascending, in any order of the rankings."""
    keys = np.concatenate(partial, axis=1)
    keys.sort(axis=1)
    if keys.shape[1] < k:
        keys = np.pad(keys, ((0, 0), (0, k - keys.shape[1])), constant_values=NONE)
    return np.ascontiguousarray(keys[:, :k])


def signed_keys(scores: Tensor, ranks: Tensor) -> Tensor:
    """Return the keys of float32 scores and int64 tie ranks on a device, as int64: torch sorts no unsigned integers.

    `from_signed` turns them into keys. They are in the same order; `SIGNED_NONE` is that of `NONE`.
    """
    bits = scores.view(torch.int32)
    return (torch.where(bits >= 0, ~bits, bits & 0x7FFF_FFFF).long() << 32) | ranks


def signed_scores(keys: Tensor) -> Tensor:
    """Return the float32 scores of keys from `signed_keys`; -inf for `SIGNED_NONE`."""
    bits = (keys >> 32).int()
    scores = torch.where(bits < 0, ~bits, bits | -0x8000_0000).view(torch.float32)
    return scores.masked_fill(keys == SIGNED_NONE, -torch.inf)


def from_signed(keys: Int64[ndarray, "*shape"]) -> UInt64[ndarray, "*shape"]:
    """Return the unsigned keys of signed ones."""
    return keys.view(np.uint64) ^ _TOP


def to_signed(keys: UInt64[ndarray, "*shape"]) -> Int64[ndarray, "*shape"]:
    """Return the signed keys of unsigned ones."""
    return (keys ^ _TOP).view(np.int64)
