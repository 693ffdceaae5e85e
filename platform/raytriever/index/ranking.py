"""A ranking as ascending 64-bit keys: the score, descending, above the place among equals.

One integer holds all that the order depends on, so partial rankings merge by sorting integers, cost eight bytes an
entry, and give the same bytes in whatever order they are merged. A key is the float32 score's bits, made to descend
as unsigned integers do ascend, over the document's place in tie order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float32, Int64, UInt32, UInt64
from numpy import ndarray

from raytriever.errors import DataError

# Stands where a ranking has fewer documents than were asked for; greater than the key of any score.
NONE = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_LOW, _SIGN_OFF = np.uint64(0xFFFF_FFFF), np.uint64(0x7FFF_FFFF)
_HALF, _SIGN = np.uint64(32), np.uint64(31)


@dataclass(frozen=True)
class TieOrder:
    """The order of equal scores: each document's place in it, and the document at each place."""

    ranks: UInt32[ndarray, " documents"]
    documents: Int64[ndarray, " documents"]

    @classmethod
    def of(cls, ties: Int64[ndarray, " documents"]) -> TieOrder:
        """From `tie_order`, or any numbers that ascend in the order wanted.

        Raises:
            DataError: there are more documents than 32 bits count.
        """
        if len(ties) > int(_LOW):
            raise DataError(f"{len(ties):,} documents", remedy="search at most 4,294,967,295 in one ranking")
        documents = np.argsort(ties, kind="stable")
        places = np.empty(len(ties), np.uint32)
        places[documents] = np.arange(len(ties), dtype=np.uint32)
        return cls(places, documents)

    def read(
        self, keys: UInt64[ndarray, "queries k"]
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Scores and documents of keys; -inf and -1 where there is none."""
        high = (keys >> _HALF).astype(np.uint32)
        np.bitwise_xor(high, np.uint32(_SIGN_OFF), out=high, where=high >> np.uint32(31) == 0)
        scores = high.view(np.float32)
        missing = keys == NONE
        found = (
            self.documents[np.where(missing, np.uint64(0), keys & _LOW)]
            if len(self.documents)
            else np.empty_like(keys, np.int64)
        )
        scores[missing], found[missing] = -np.inf, -1
        return scores, found


def keys_of(scores: Float32[ndarray, "*shape"], places: UInt32[ndarray, "*shape"]) -> UInt64[ndarray, "*shape"]:
    """`key_of` for arrays; a score that is not a number has the key of none."""
    bits = np.ascontiguousarray(scores + np.float32(0)).view(np.uint32).astype(np.uint64)
    keys = np.where(bits >> _SIGN == 0, bits ^ _SIGN_OFF, bits) << _HALF | places
    return np.where(np.isnan(scores), NONE, keys)


def merge_keys(partial: Sequence[UInt64[ndarray, "queries _"]], k: int) -> UInt64[ndarray, "queries k"]:
    """The k least keys of each query of several partial rankings, ascending; the same whatever their order."""
    keys = np.concatenate(partial, axis=1)
    keys.sort(axis=1)
    if keys.shape[1] < k:
        keys = np.pad(keys, ((0, 0), (0, k - keys.shape[1])), constant_values=NONE)
    return np.ascontiguousarray(keys[:, :k])


@numba.njit(cache=True)
def key_of(score, place):  # type: ignore[no-untyped-def]
    """The key of a float32 score that is not -0 or NaN."""
    bits = np.uint64(np.float32(score).view(np.uint32))
    descending = bits if bits >> _SIGN else bits ^ _SIGN_OFF
    return (descending << _HALF) | np.uint64(place)


@numba.njit(cache=True)
def score_of(key):  # type: ignore[no-untyped-def]
    """The score of a key."""
    descending = key >> _HALF
    bits = descending if descending >> _SIGN else descending ^ _SIGN_OFF
    return np.uint32(bits).view(np.float32)
