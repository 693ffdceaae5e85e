"""Hashes of ids and texts, so that millions of them can be compared and searched as arrays; and copies of texts.

Matching the ids of documents with those of judgements needs 16 bytes per id, however long ids and texts are.

Two texts are copies if they are equal after Unicode normalization (NFKC), case folding, the removal of invisible
characters, and the replacement of each run of white space by one space. Title and text of a passage are joined, as an
encoder reads them. A copy of a positive is never a negative, and a document that answers a query also answers the
query's copies. `prepare` stores a hash of 8 bytes for each text, called its text hash. The probability that two
different texts among ten million have the same text hash is 3 in a million."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt64
from numpy import ndarray

from raytriever.core.reading.characters import remove_invisible

KEY_BYTES = 16  # bytes of a key, the hash of an id or of a content
Keys = UInt64[ndarray, "rows 2"]


def key_of(*texts: str) -> bytes:
    """Return the BLAKE2b hash of texts. Lengths are hashed too, so ("ab", "c") and ("a", "bc") differ."""
    if len(texts) == 1:
        return hashlib.blake2b(texts[0].encode(), digest_size=KEY_BYTES).digest()
    state = hashlib.blake2b(digest_size=KEY_BYTES)
    for text in texts[:-1]:
        raw = text.encode()
        state.update(b"%d:" % len(raw) + raw)
    state.update(texts[-1].encode())
    return state.digest()


def keys_of(rows: Iterable[bytes]) -> Keys:
    """Return the keys as an array."""
    joined = bytearray()  # `bytes.join` would first hold every key as an object
    for row in rows:
        joined += row
    return np.frombuffer(joined, dtype="<u8").reshape(-1, 2)


def digest_of(ids: Iterable[Any], contents: Iterable[Any]) -> str:
    """Return the SHA-256 of the keys of all ids, then of all contents. Keys are bytes, or arrays of many keys."""
    state = hashlib.sha256()
    for keys in (ids, contents):
        for key in keys:
            state.update(key)
    return state.hexdigest()


class KeyIndex:
    """Index from a key to its position in an array of keys; of equal keys, the first position counts."""

    def __init__(self, keys: Keys) -> None:
        # Sort by both words of a key; lexsort is stable, so equal keys stay in the order of their positions.
        self._order = np.lexsort((keys[:, 1], keys[:, 0]))
        self._sorted = keys[self._order]

    def first(self) -> Int64[ndarray, " rows"]:
        """Return, for each key, the position of the first equal key."""
        changed = np.ones(len(self._sorted), dtype=bool)
        changed[1:] = (self._sorted[1:] != self._sorted[:-1]).any(axis=1)
        leaders = self._order[np.maximum.accumulate(np.where(changed, np.arange(len(changed)), 0))]
        first = np.empty(len(self._order), dtype=np.int64)
        first[self._order] = leaders
        return first

    def find(self, keys: Keys) -> Int64[ndarray, " asked"]:
        """Return the first position of each key; -1 for an unknown key."""
        if not len(self._sorted):
            return np.full(len(keys), -1, dtype=np.int64)
        positions = np.searchsorted(self._sorted[:, 0], keys[:, 0])
        last = len(self._sorted) - 1
        while True:
            here = self._sorted[np.minimum(positions, last)]
            # Several keys may have the same first word: move on until the second word fits.
            walk = (positions <= last) & (here[:, 0] == keys[:, 0]) & (here[:, 1] < keys[:, 1])
            if not walk.any():
                break
            positions = positions + walk
        same = (positions <= last) & (here == keys).all(axis=1)
        return np.where(same, self._order[np.minimum(positions, last)], -1)


_HASH_BYTES = 8
TextHashes = UInt64[ndarray, " texts"]


def normalize(text: str) -> str:
    """Normalize a text for comparison: NFKC, case folded, without invisible characters and with single spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", remove_invisible(text))
    return " ".join(text.casefold().split())


def as_utf8(text: str) -> str:
    """Return a text that UTF-8 can encode: halves of surrogate pairs, which JSON and Python allow, become `?`."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def hash_texts(texts: Iterable[str]) -> TextHashes:
    """Return the text hash of each text. Copies have equal hashes."""
    joined = bytearray()
    for text in texts:
        joined += hashlib.blake2b(normalize(text).encode(), digest_size=_HASH_BYTES).digest()
    return np.frombuffer(joined, dtype="<u8")


@dataclass(frozen=True)
class Copies:
    """Texts of a column that are copies of an earlier text."""

    positions: Int64[ndarray, " copies"]  # positions of the copies, ascending
    firsts: Int64[ndarray, " copies"]  # for each copy, the position of the first text that equals it

    @classmethod
    def of(cls, hashes: TextHashes) -> Copies:
        """Find the copies in a column, from the hashes of its texts."""
        ordered = np.sort(hashes)
        shared = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if not len(shared):
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        nearest = np.minimum(np.searchsorted(shared, hashes), len(shared) - 1)
        members = np.flatnonzero(shared[nearest] == hashes)
        _, first, group = np.unique(hashes[members], return_index=True, return_inverse=True)
        firsts = members[first[group]]
        is_copy = firsts != members
        return cls(members[is_copy], firsts[is_copy])

    def __len__(self) -> int:
        return len(self.positions)

    def first(self, positions: Int64[ndarray, "*shape"]) -> Int64[ndarray, "*shape"]:
        """Return, for each position, the position of the first equal text. Negative positions (empty slots) stay."""
        if not len(self.positions):
            return positions
        nearest = np.minimum(np.searchsorted(self.positions, positions), len(self.positions) - 1)
        return np.where(self.positions[nearest] == positions, self.firsts[nearest], positions)

    def equal_to(self, positions: Int64[ndarray, " some"]) -> Int64[ndarray, " texts"]:
        """Return, ascending, the positions of all texts that equal a text at one of the given positions."""
        firsts = np.unique(self.first(positions))
        return np.union1d(firsts, self.positions[np.isin(self.firsts, firsts)])


NO_COPIES = Copies.of(np.zeros(0, np.uint64))
