"""Splits by document: all passages of a document, and all questions that it answers, belong to one split.

The split of a document is decided by the hash of the seed and its path alone, so further documents move no other one.
Documents that answer the same question share the split of the one whose path comes first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

SPLITS = ("train", "dev", "test")
_SHARE = 0.1  # of dev, and of test


def assign_splits(paths: Iterable[str], seed: int, groups: Iterable[Sequence[str]] = ()) -> dict[str, str]:
    """Return the split of each document.

    Args:
        paths: paths of the documents, relative to their folder.
        seed: of the splits.
        groups: paths that must have one split.
    """
    first: dict[str, str] = {}

    def root(path: str) -> str:
        while (above := first.get(path, path)) != path:
            first[path] = first.get(above, above)
            path = above
        return path

    for group in groups:
        for path in group[1:]:
            one, other = sorted((root(group[0]), root(path)))
            first[other] = one
    return {path: _split_of(root(path), seed) for path in paths}


def _split_of(path: str, seed: int) -> str:
    digest = hashlib.blake2b(f"{seed}\0{path}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest) / 2**64
    return "test" if number < _SHARE else "dev" if number < 2 * _SHARE else "train"
