"""Columns of a data set in memory-mapped shards, read by position.

Texts are Arrow files; tokens are flat arrays with offsets. A column needs the memory of the rows that are read. All
processes of a node read a corpus larger than memory from one copy in the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

if TYPE_CHECKING:
    import pyarrow as pa

# Remedy for a file of a prepared data set that has changed.
PREPARE_AGAIN = "prepare the data set again from its source"


@dataclass(frozen=True)
class Rows:
    """Map from positions to shards and rows.

    Args:
        starts: number of rows before each shard, and last the number of all rows.
        live: rows that count, ascending; None if all count. A document repeated under its id is stored twice and counts
            once.
    """

    starts: Int64[ndarray, " shards+1"]
    live: Int64[ndarray, " positions"] | None

    @classmethod
    def of(cls, lengths: Sequence[int], live: ndarray | None) -> Rows:
        """Build the map from the number of rows of each shard."""
        return cls(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64), live)

    def __len__(self) -> int:
        return int(self.starts[-1]) if self.live is None else len(self.live)

    def locate(self, positions: ndarray) -> tuple[ndarray, ndarray]:
        """Return the shard, and the row in it, of each position; raises `IndexError` for a position out of range."""
        positions = np.asarray(positions, dtype=np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(f"positions must be in [0, {len(self)})")
        rows = positions if self.live is None else self.live[positions]
        shards = np.searchsorted(self.starts, rows, side="right") - 1
        return shards, rows - self.starts[shards]

    def by_shard(self) -> Iterator[tuple[int, ndarray | None]]:
        """Yield every shard with the rows of it that count, in order; None for all of them."""
        for shard, (start, end) in enumerate(zip(self.starts[:-1], self.starts[1:], strict=True)):
            if self.live is None:
                yield shard, None
            else:
                first, last = np.searchsorted(self.live, [start, end])
                yield shard, self.live[first:last] - start


class TextColumn(Sequence[str]):
    """Column of texts over all shards. Iteration reads shard after shard.

    Args:
        shards: one memory-mapped Arrow string array for each shard.
        rows: map from positions to their rows.
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
        index = int(position)
        [shard], [row] = self._rows.locate(np.array([index + len(self) if index < 0 else index]))
        return self._shards[shard][row].as_py()

    def take(self, positions: ndarray) -> list[str]:
        """Return the texts at these positions, in their order."""
        return [self._shards[shard][row].as_py() for shard, row in zip(*self._rows.locate(positions), strict=True)]

    def __iter__(self) -> Iterator[str]:
        import pyarrow as pa

        for shard, rows in self._rows.by_shard():
            texts = self._shards[shard] if rows is None else self._shards[shard].take(pa.array(rows))
            yield from texts.to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


def texts_at(column: Sequence[str], positions: Int64[ndarray, " positions"]) -> list[str]:
    """Return the texts of a column, in shards or in memory, at some positions, in their order."""
    return column.take(positions) if isinstance(column, TextColumn) else [column[each] for each in positions.tolist()]


@dataclass(frozen=True)
class TokenColumn:
    """Token ids of every text of a column, without special tokens and not truncated.

    Args:
        ids: for each shard, the concatenated ids of its texts, memory-mapped.
        offsets: for each shard, the start of each text, and last the end.
        rows: map from positions to the rows of the shards.
    """

    ids: Sequence[ndarray]
    offsets: Sequence[ndarray]
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: ndarray) -> list[ndarray]:
        """Return the token ids of the texts at these positions, views of the shards."""
        token_ids = []
        for shard, row in zip(*self.rows.locate(positions), strict=True):
            start, end = self.offsets[shard][row : row + 2]
            token_ids.append(self.ids[shard][start:end])
        return token_ids

    def lengths(self) -> Int64[ndarray, " positions"]:
        """Return the number of tokens of every text."""
        shard_lengths = [np.diff(self.offsets[shard]) for shard in range(len(self.offsets))]
        lengths = np.concatenate(shard_lengths) if shard_lengths else np.zeros(0, dtype=np.int64)
        return lengths if self.rows.live is None else lengths[self.rows.live]
