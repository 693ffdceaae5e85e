"""Texts that occur more than once under different ids, and which of them count as one.

Two texts are copies if they are equal after Unicode normalisation (NFKC), case folding and the replacement of each run
of white space by one space. A passage is its title and text, joined as an encoder reads it. A copy of a positive is no
negative, and what answers a question answers its copies.

`prepare` stores a hash of 8 bytes for each text, its form. Ten million different texts share a form with a probability
of 3 in a million."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt64
from numpy import ndarray

WIDTH = 8
Forms = UInt64[ndarray, " texts"]


def normalise(text: str) -> str:
    """Normalise a text for comparison: NFKC, case folded, each run of white space replaced by one space."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def forms_of(texts: Iterable[str]) -> Forms:
    """Return the form of each text: equal for copies."""
    joined = bytearray()
    for text in texts:
        joined += hashlib.blake2b(normalise(text).encode(), digest_size=WIDTH).digest()
    return np.frombuffer(joined, dtype="<u8")


@dataclass(frozen=True)
class Copies:
    """Texts of a column that are copies of an earlier one.

    Args:
        positions: their positions, ascending.
        firsts: position of the first text of which each is a copy.
    """

    positions: Int64[ndarray, " copies"]
    firsts: Int64[ndarray, " copies"]

    @classmethod
    def of(cls, forms: Forms) -> Copies:
        """Find the copies in a column, from the forms of its texts."""
        ordered = np.sort(forms)
        shared = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if not len(shared):
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        nearest = np.minimum(np.searchsorted(shared, forms), len(shared) - 1)
        members = np.flatnonzero(shared[nearest] == forms)
        _, first, group = np.unique(forms[members], return_index=True, return_inverse=True)
        firsts = members[first[group]]
        is_copy = firsts != members
        return cls(members[is_copy], firsts[is_copy])

    def __len__(self) -> int:
        return len(self.positions)

    def first(self, positions: Int64[ndarray, "*shape"]) -> Int64[ndarray, "*shape"]:
        """Return, for each position, that of the first equal text; negative positions, which are no texts, stay."""
        if not len(self.positions):
            return positions
        nearest = np.minimum(np.searchsorted(self.positions, positions), len(self.positions) - 1)
        return np.where(self.positions[nearest] == positions, self.firsts[nearest], positions)


NO_COPIES = Copies.of(np.zeros(0, np.uint64))
