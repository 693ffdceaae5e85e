"""Blocks of a mining that are finished, in files, so that a mining that was killed continues after the last of them.

    FOLDER/dense-00000000.npz    the kept candidates of the queries from the first on, and the count of each verdict

Blocks follow from the inputs alone, so the name of the folder must hold a digest of these. A block that is missing or
damaged is mined again. Where no file can be written, mining goes on without."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.errors import StorageError
from raytriever.mining.filters import REASONS
from raytriever.reading.arrays import Shape, read_arrays
from raytriever.storage import disk_errors, write_atomically
from raytriever.terminal import warn

_REMEDY = "delete it, and run the command again"
_TYPES = {"queries": "int64", "documents": "int64", "ranks": "int64", "scores": "float32", "verdicts": "int64"}


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


@dataclass
class FinishedBlocks:
    """Finished blocks of one mining.

    Args:
        folder: of the files; None to keep none. It is made with the first block.
    """

    folder: Path | None = None

    def read(self, method: str, start: int) -> MinedBlock | None:
        """Return the block whose first query is the one at `start` in the order of mining; None if it is not there."""
        if self.folder is None:
            return None
        shapes: dict[str, Shape] = dict.fromkeys(_TYPES, (None,)) | {"verdicts": (len(REASONS),)}
        with suppress(StorageError), disk_errors(self.folder, reading=True):
            expected = {name: ([dtype], shapes[name]) for name, dtype in _TYPES.items()}
            return MinedBlock(**read_arrays(self._file(method, start), expected, _REMEDY))
        return None

    def write(self, method: str, start: int, block: MinedBlock) -> None:
        """Write a block. After one that cannot be written, none is kept."""
        if self.folder is None:
            return
        packed = io.BytesIO()
        np.savez(packed, **{name: getattr(block, name).astype(dtype) for name, dtype in _TYPES.items()})
        try:
            write_atomically(self._file(method, start), packed.getvalue())
        except StorageError as error:
            warn(f"finished blocks are not kept, so a mining that is stopped begins again: {error}")
            self.folder = None

    def _file(self, method: str, start: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{method}-{start:08}.npz"
