"""Texts of single queries, if a data set has them: answers, which identify passages that answer the query, and prompts.

Formats add them to the records under the id of the query. A shard stores them in a file of its own until ids become
positions. The data set has them in one Arrow file of each kind, ordered by query. Texts of unknown queries are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.columns import PREPARE_AGAIN
from raytriever.data.keys import key_of, keys_of
from raytriever.reading.arrays import read_arrow

FILE, PROMPTS = "answers.arrow", "prompts.arrow"
# Columns of the two kinds of files, with their Arrow types.
_COLUMNS = {"query": "int64", "text": "string"}
_WORK_COLUMNS = {"first": "uint64", "second": "uint64", "text": "string"}


@dataclass(frozen=True)
class Answers:
    """Answers of queries: ascending query positions, and a text for each."""

    queries: Int64[ndarray, " answers"]
    texts: Sequence[Any]

    def __len__(self) -> int:
        return len(self.queries)

    def of(self, query: int) -> list[str]:
        """Return the answers of one query, in their order; an empty list if it has none."""
        first, end = np.searchsorted(self.queries, [query, query + 1])
        return [str(text) for text in self.texts[first:end]]


@dataclass(frozen=True)
class QueryPrompts:
    """Prompts of queries that have their own: ascending query positions, and a text for each."""

    queries: Int64[ndarray, " prompts"]
    texts: Sequence[Any]

    def of(self, positions: Iterable[int], default: str) -> list[str]:
        """Return the prompt of each query, the default for one without its own."""
        wanted = np.fromiter(positions, np.int64)
        rows = np.searchsorted(self.queries, wanted)
        own = self.queries[np.minimum(rows, len(self.queries) - 1)] == wanted if len(self.queries) else wanted < 0
        return [str(self.texts[int(row)]) if is_own else default for row, is_own in zip(rows, own, strict=True)]

    def distinct(self) -> list[str]:
        """Return the different prompts, sorted."""
        return sorted({str(text) for text in self.texts})


def write_some(work: Path, stem: str, name: str, texts: Sequence[tuple[str, str]]) -> None:
    """Keep the texts of a shard, (query id, text) each, in its work folder; `name` is that of the whole file."""
    import pyarrow as pa

    if texts:
        keys = keys_of(key_of(query) for query, _ in texts)
        columns = {"first": keys[:, 0], "second": keys[:, 1], "text": pa.array([text for _, text in texts])}
        write_table(work / f"{stem}.{name}", columns)


def gather(work: Path, stems: Sequence[str], positions: Any, to: Path) -> None:
    """Write the texts of all shards in a work folder, given the stems of their names in order, to the file `to`.

    `positions` maps keys of query ids to positions, -1 for unknown ones.
    """
    import pyarrow as pa

    queries, texts = [np.zeros(0, np.int64)], []
    for file in (work / f"{stem}.{to.name}" for stem in stems):
        if file.exists():
            table = read_arrow(file, _WORK_COLUMNS, PREPARE_AGAIN)
            queries.append(positions(np.stack([table["first"].to_numpy(), table["second"].to_numpy()], axis=1)))
            texts += table["text"].chunks
    of = np.concatenate(queries)
    order = np.argsort(of, kind="stable")
    order = order[of[order] >= 0]
    if to.name == PROMPTS:  # a query has one prompt; a row with another one is a bad row
        order = order[np.unique(of[order], return_index=True)[1]]
    if len(order):
        write_table(to, {"query": of[order], "text": pa.chunked_array(texts).combine_chunks().take(pa.array(order))})


def read_texts(file: Path, full: bool = False) -> tuple[Int64[ndarray, " texts"], Any]:
    """Return the query positions and the texts of such a file; see `read_arrow` for `full` and the errors."""
    table = read_arrow(file, _COLUMNS, PREPARE_AGAIN, full)
    return table["query"].to_numpy(), table["text"].chunk(0)


def write_table(file: Path, columns: Mapping[str, Any]) -> None:
    """Write columns as one uncompressed Arrow file, which can be memory-mapped."""
    import pyarrow as pa

    table = pa.table(dict(columns))
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
