"""Columns of a data set that lie in memory-mapped shards and are read by position.

Texts are Arrow files, tokens are flat arrays with offsets: a column costs the memory of the rows one touches, so
that a corpus larger than memory is read by any number of processes of a node from one copy in the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import pyarrow as pa
from jaxtyping import Int64
from numpy import ndarray

# The remedy for a file of a prepared data set that is not as it was written.
PREPARE_AGAIN = "prepare the data set again from its source"


@dataclass(frozen=True)
class Rows:
    """Which row of which shard stands at a position.

    Args:
        starts: the rows before each shard, and last the rows of all.
        live: the rows that count, ascending; None when all do. A document repeated under its id is stored twice
            and counts once.
    """

    starts: Int64[ndarray, " shards+1"]
    live: Int64[ndarray, " positions"] | None

    @classmethod
    def of(cls, lengths: Sequence[int], live: ndarray | None) -> Rows:
        """From the number of rows of each shard."""
        return cls(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64), live)

    def __len__(self) -> int:
        return int(self.starts[-1]) if self.live is None else len(self.live)

    def places(self, positions: ndarray) -> tuple[ndarray, ndarray]:
        """Shard, and row in it, of each position; raises `IndexError` for one that is not there."""
        positions = np.asarray(positions, dtype=np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(f"positions must be in [0, {len(self)})")
        rows = positions if self.live is None else self.live[positions]
        shards = np.searchsorted(self.starts, rows, side="right") - 1
        return shards, rows - self.starts[shards]

    def by_shard(self) -> Iterator[tuple[int, ndarray | None]]:
        """Every shard with the rows of it that count, in order; None for all of them."""
        for shard, (start, end) in enumerate(zip(self.starts[:-1], self.starts[1:], strict=True)):
            if self.live is None:
                yield shard, None
            else:
                first, last = np.searchsorted(self.live, [start, end])
                yield shard, self.live[first:last] - start


class TextColumn(Sequence[str]):
    """A column of texts over all shards; iterating reads shard after shard.

    Args:
        shards: one Arrow string array a shard, memory-mapped.
        rows: which of their rows count.
    """

    def __init__(self, shards: Sequence[pa.Array], rows: Rows) -> None:
        self._shards, self._rows = shards, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...
    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        if isinstance(position, slice):
            return self.take(np.arange(*position.indices(len(self))))
        place = int(position)
        [shard], [row] = self._rows.places(np.array([place + len(self) if place < 0 else place]))
        return self._shards[shard][row].as_py()

    def take(self, positions: ndarray) -> list[str]:
        """The texts at these positions, in their order."""
        return [self._shards[shard][row].as_py() for shard, row in zip(*self._rows.places(positions), strict=True)]

    def __iter__(self) -> Iterator[str]:
        for shard, rows in self._rows.by_shard():
            texts = self._shards[shard] if rows is None else self._shards[shard].take(pa.array(rows))
            yield from texts.to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class TokenColumn:
    """Token ids without special tokens, not cut, of every text of a column.

    Args:
        ids: for each shard the ids of its texts end to end, memory-mapped.
        offsets: for each shard where each text begins, and last the end.
        rows: which of the rows count.
    """

    ids: Sequence[ndarray]
    offsets: Sequence[ndarray]
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: ndarray) -> list[ndarray]:
        """The token ids of the texts at these positions, views of the shards."""
        found = []
        for shard, row in zip(*self.rows.places(positions), strict=True):
            start, end = self.offsets[shard][row : row + 2]
            found.append(self.ids[shard][start:end])
        return found

    def lengths(self) -> Int64[ndarray, " positions"]:
        """The number of tokens of every text."""
        found = [np.diff(self.offsets[shard]) for shard in range(len(self.offsets))]
        lengths = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
        return lengths if self.rows.live is None else lengths[self.rows.live]
