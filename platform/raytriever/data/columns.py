"""Columns of a data set in memory-mapped shards, read by position; and the answers and prompts of single queries.

Texts are stored in Arrow files, tokens in flat arrays with offsets. Only the rows that are read use memory. All
processes of a node share one copy of the files in the page cache, so a corpus may be larger than memory.

A query may have its own prompt, and answers: texts that occur in the passages that answer it. The data set has one
Arrow file for answers and one for prompts, ordered by query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.core.reading.arrays import read_arrow

if TYPE_CHECKING:
    import pyarrow as pa

# Remedy for a changed file of a prepared data set.
PREPARE_AGAIN = "prepare the data set again from its source"


@dataclass(frozen=True)
class Rows:
    """Map from a position to its shard and its row in the shard."""

    starts: Int64[ndarray, " shards+1"]  # number of rows before each shard, followed by the number of all rows
    # Ascending numbers of the rows that have a position; None if all rows have one. If a document occurs twice under
    # one id, both rows are stored, but only the first has a position.
    live: Int64[ndarray, " positions"] | None

    @classmethod
    def of(cls, lengths: Sequence[int], live: ndarray | None) -> Rows:
        """Build the map from the number of rows of each shard."""
        return cls(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64), live)

    def __len__(self) -> int:
        return int(self.starts[-1]) if self.live is None else len(self.live)

    def locate(self, positions: ndarray) -> tuple[ndarray, ndarray]:
        """Return the shard of each position, and its row there; raises `IndexError` for a position out of range."""
        positions = np.asarray(positions, dtype=np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(f"positions must be in [0, {len(self)})")
        rows = positions if self.live is None else self.live[positions]
        shards = np.searchsorted(self.starts, rows, side="right") - 1
        return shards, rows - self.starts[shards]

    def by_shard(self) -> Iterator[tuple[int, ndarray | None]]:
        """Yield each shard with those of its rows that have a position, in order; None instead if all rows have one."""
        for shard, (start, end) in enumerate(zip(self.starts[:-1], self.starts[1:], strict=True)):
            if self.live is None:
                yield shard, None
            else:
                first, last = np.searchsorted(self.live, [start, end])
                yield shard, self.live[first:last] - start


class Column(Sequence[str], ABC):
    """Column of texts, each of which is read only on access."""

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        if isinstance(position, slice):
            return self.take(np.arange(*position.indices(len(self))))
        index = int(position) + (len(self) if position < 0 else 0)
        if not 0 <= index < len(self):
            raise IndexError(f"positions must be in [0, {len(self)})")
        return self.take(np.array([index]))[0]

    @abstractmethod
    def take(self, positions: ndarray) -> list[str]:
        """Return the texts at these positions (from 0), in the order of `positions`."""


class TextColumn(Column):
    """Column of texts over all shards. Iteration reads shard after shard.

    Args:
        shards: one memory-mapped Arrow string array for each shard.
    """

    def __init__(self, shards: Sequence[pa.Array], rows: Rows) -> None:
        self._shards, self._rows = shards, rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, positions: ndarray) -> list[str]:
        """See `Column.take`."""
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
    """Return the texts at `positions`, in that order, from a column in shards or in memory."""
    return (
        column.take(positions) if isinstance(column, Column) else [column[position] for position in positions.tolist()]
    )


@dataclass(frozen=True)
class TokenColumn:
    """Token ids of every text of a column, without special tokens and not truncated."""

    ids: Sequence[ndarray]  # for each shard, the concatenated ids of its texts, memory-mapped
    offsets: Sequence[ndarray]  # for each shard, the start of each text in `ids`, followed by the end of the last text
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: ndarray) -> list[ndarray]:
        """Return the token ids of the texts at these positions, as views of the shards."""
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


FILE, PROMPTS = "answers.arrow", "prompts.arrow"
# Columns of the file of answers, and of the file of prompts, with their Arrow types.
_COLUMNS = {"query": "int64", "text": "string"}


@dataclass(frozen=True)
class Answers:
    """Answers of queries. Each answer has a text and the position of its query; the positions ascend."""

    queries: Int64[ndarray, " answers"]
    texts: Sequence[Any]

    def __len__(self) -> int:
        return len(self.queries)

    def of(self, query: int) -> list[str]:
        """Return the answers of one query, in the stored order. Return an empty list if the query has none."""
        first, end = np.searchsorted(self.queries, [query, query + 1])
        return [str(text) for text in self.texts[first:end]]


@dataclass(frozen=True)
class QueryPrompts:
    """Prompts of the queries that have their own prompt: the ascending positions of these queries, and the prompts."""

    queries: Int64[ndarray, " prompts"]
    texts: Sequence[Any]

    def of(self, positions: Iterable[int], default: str) -> list[str]:
        """Return the prompt of each query; `default` for a query without its own prompt."""
        wanted = np.fromiter(positions, np.int64)
        rows = np.searchsorted(self.queries, wanted)
        own = self.queries[np.minimum(rows, len(self.queries) - 1)] == wanted if len(self.queries) else wanted < 0
        return [str(self.texts[int(row)]) if is_own else default for row, is_own in zip(rows, own, strict=True)]

    def distinct(self) -> list[str]:
        """Return the different prompts, sorted."""
        return sorted({str(text) for text in self.texts})


def read_texts(file: Path, full: bool = False) -> tuple[Int64[ndarray, " texts"], Any]:
    """Return the query positions and the texts of a file of answers or prompts; `full` and errors: see `read_arrow`."""
    table = read_arrow(file, _COLUMNS, PREPARE_AGAIN, full)
    return table["query"].to_numpy(), table["text"].chunk(0)


def write_table(file: Path, columns: Mapping[str, Any]) -> None:
    """Write columns as one uncompressed Arrow file, which can be memory-mapped."""
    import pyarrow as pa

    table = pa.table(dict(columns))
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
