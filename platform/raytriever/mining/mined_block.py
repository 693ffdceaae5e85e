"""Negatives of a block of queries, mined with one method, and their file.

A finished block is a part (`store.parts`) with one file, `block.npz`, so a mining that was killed continues after the
last of them. Blocks follow from the inputs alone, and the folder of the parts is named after these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.mining.filters import REASONS
from raytriever.reading.arrays import read_arrays

_FILE = "block.npz"
# Type and shape of each array in the file.
_EXPECTED: dict[str, Any] = {
    "queries": (["int64"], (None,)),
    "documents": (["int64"], (None,)),
    "ranks": (["int64"], (None,)),
    "scores": (["float32"], (None,)),
    "verdicts": (["int64"], (len(REASONS),)),
}


@dataclass(frozen=True)
class MinedBlock:
    """Result of mining a block of queries with one method: columns of the kept candidates, and counts.

    Args:
        queries: index of the query in the split.
        documents: position in the corpus.
        ranks: rank in the method's ranking, without the excluded documents.
        scores: by the scorer of the table; NaN if there is none.
        verdicts: number of candidates of each of `filters.REASONS`.
    """

    queries: Int64[ndarray, " kept"]
    documents: Int64[ndarray, " kept"]
    ranks: Int64[ndarray, " kept"]
    scores: Float32[ndarray, " kept"]
    verdicts: Int64[ndarray, " reasons"]

    @property
    def columns(self) -> tuple[ndarray, ...]:
        """The columns of the kept candidates."""
        return self.queries, self.documents, self.ranks, self.scores

    def save(self, folder: Path) -> None:
        """Write the block into a folder."""
        np.savez(
            folder / _FILE, **{name: getattr(self, name).astype(types[0]) for name, (types, _) in _EXPECTED.items()}
        )

    @classmethod
    def load(cls, folder: Path, meta: object = None) -> MinedBlock:
        """Read a block from a folder; raises `StorageError` if the file has other contents."""
        return cls(**read_arrays(folder / _FILE, _EXPECTED, "delete it, and run the command again"))
