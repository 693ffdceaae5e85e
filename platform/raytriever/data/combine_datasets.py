"""Combination of data sets into one: columns are concatenated and positions shifted. No text is copied.

If an id occurs in two data sets, every id gets the prefix `NAME/` of its data set. Otherwise, ids do not change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.columns import Column, Rows, TokenColumn
from raytriever.data.dataset import (
    AbsentDocuments,
    Documents,
    Judgements,
    Queries,
    RetrievalDataset,
    TextPrompts,
    Tokens,
)
from raytriever.data.hashed_ids import TextHashes, key_of, keys_of
from raytriever.data.records_and_bad_rows import Quarantine


class Chained(Column):
    """Concatenation of columns. Each text is read from its column, and gets this column's prefix, if any."""

    def __init__(self, parts: Sequence[Sequence[str]], prefixes: Sequence[str] | None = None) -> None:
        self._parts = tuple(parts)
        self._prefixes = tuple(prefixes) if prefixes is not None else ("",) * len(self._parts)
        self._starts = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)]).tolist()

    def __len__(self) -> int:
        return self._starts[-1]

    def take(self, positions: ndarray) -> list[str]:
        """See `Column.take`."""
        parts = (np.searchsorted(self._starts, positions, side="right") - 1).tolist()
        return [
            self._prefixes[part] + self._parts[part][position - self._starts[part]]
            for part, position in zip(parts, positions.tolist(), strict=True)
        ]

    def __iter__(self) -> Iterator[str]:
        for prefix, part in zip(self._prefixes, self._parts, strict=True):
            yield from (prefix + text for text in part) if prefix else part


@dataclass(frozen=True)
class CombinedDataset(RetrievalDataset):
    """Combined data set; `parts` are the data sets it consists of."""

    parts: tuple[RetrievalDataset, ...] = ()


def combine(datasets: Sequence[RetrievalDataset]) -> RetrievalDataset:
    """Combine several data sets into one; return a single data set unchanged. A split of the result contains
    the judgements of every data set that has it. A number distinguishes data sets of the same name: `nq`, `nq-2`."""
    if len(datasets) == 1:
        return datasets[0]
    names = _number_repeats([dataset.name for dataset in datasets])
    documents, queries = [dataset.documents for dataset in datasets], [dataset.queries for dataset in datasets]
    starts = list(
        zip(*(_starts([len(texts) for texts in side])[:-1].tolist() for side in (queries, documents)), strict=True)
    )

    def by_split(tables: Sequence[Mapping[str, Any]], join: Callable[[Sequence[tuple[Any, int, int]]], Any]) -> Any:
        """Join the tables of each split. `join` gets each table with its first positions in the combined data set."""
        splits = dict.fromkeys(split for table in tables for split in table)
        placed = list(zip(tables, starts, strict=True))
        return {split: join([(table[split], *start) for table, start in placed if split in table]) for split in splits}

    return CombinedDataset(
        name="+".join(names),
        documents=Documents(
            _chained_ids([side.ids for side in documents], names),
            Chained([side.titles for side in documents]),
            Chained([side.texts for side in documents]),
            stored_digest=_digest([side.digest for side in documents], names),
            bm25_language=documents[0].bm25_language,
            stored_hashes=_chained_hashes([side.stored_hashes for side in documents]),
        ),
        queries=Queries(
            _chained_ids([side.ids for side in queries], names),
            Chained([side.texts for side in queries]),
            stored_digest=_digest([side.digest for side in queries], names),
            stored_hashes=_chained_hashes([side.stored_hashes for side in queries]),
        ),
        judgements=by_split([dataset.judgements for dataset in datasets], _concatenated),
        quarantine=Quarantine(tuple(entry for dataset in datasets for entry in dataset.quarantine.entries)),
        absent=by_split([dataset.absent for dataset in datasets], _concatenated_absent),
        unanswerable=by_split(
            [dataset.unanswerable for dataset in datasets],
            lambda parts: np.concatenate([queries + start for queries, start, _ in parts]),
        ),
        tokens=_chained_tokens([dataset.tokens for dataset in datasets]),
        parts=tuple(datasets),
    )


def _chained_hashes(parts: Sequence[TextHashes | None]) -> TextHashes | None:
    """Return the hashes of all texts, to find equal texts across data sets; None if a data set stores no hashes."""
    stored = [part for part in parts if part is not None]
    return np.concatenate(stored) if len(stored) == len(parts) else None


def starts_of(dataset: RetrievalDataset) -> tuple[Int64[ndarray, " parts+1"], Int64[ndarray, " parts+1"]]:
    """Return each data set's first query position and first document position, followed by the total numbers."""
    parts = dataset.parts if isinstance(dataset, CombinedDataset) else (dataset,)
    return _starts([len(part.queries) for part in parts]), _starts([len(part.documents) for part in parts])


def _starts(sizes: Sequence[int]) -> Int64[ndarray, " parts+1"]:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _concatenated(parts: Sequence[tuple[Judgements, int, int]]) -> Judgements:
    """Concatenate judgements. Add each data set's starts to its positions; all positions then ascend."""
    return Judgements(
        np.concatenate([rows.queries + query_start for rows, query_start, _ in parts]),
        np.concatenate([rows.documents + document_start for rows, _, document_start in parts]),
        *(
            np.concatenate([getattr(rows, name) for rows, *_ in parts])
            for name in ("scores", "sources", "ranks", "labels")
        ),
    )


def _concatenated_absent(parts: Sequence[tuple[AbsentDocuments, int, int]]) -> AbsentDocuments:
    return AbsentDocuments(
        np.concatenate([rows.queries + start for rows, start, _ in parts]),
        [document for rows, *_ in parts for document in rows.documents],
        np.concatenate([rows.scores for rows, *_ in parts]),
    )


def _chained_ids(columns: Sequence[Sequence[str]], names: Sequence[str]) -> Chained:
    # Hashes of eight bytes are enough: a collision only causes unnecessary prefixes.
    together = np.concatenate([np.unique(keys_of(map(key_of, column))[:, 0]) for column in columns])
    return Chained(columns, [f"{name}/" for name in names] if len(np.unique(together)) < len(together) else None)


def _chained_tokens(tokens: Sequence[Tokens | None]) -> Tokens | None:
    """Return the tokens of all data sets; None unless all used the same tokenizer. Their prompts may differ."""
    present = [table for table in tokens if table is not None]
    digests, tokenizers = {dataset.digest for dataset in present}, {dataset.tokenizer for dataset in present}
    if len(present) < len(tokens) or (len(digests) > 1 and (len(tokenizers) > 1 or "" in tokenizers)):
        return None
    return Tokens(
        _chained_column([dataset.queries for dataset in present]),
        _chained_column([dataset.documents for dataset in present]),
        digests.pop() if len(digests) == 1 else _digest([dataset.digest for dataset in present], ()),
        present[0].tokenizer,
        TextPrompts.chained([dataset.query_prompts for dataset in present]),
        TextPrompts.chained([dataset.document_prompts for dataset in present]),
    )


def _chained_column(columns: Sequence[TokenColumn]) -> TokenColumn:
    sizes = [int(size) for column in columns for size in np.diff(column.rows.starts)]
    live = None
    if any(column.rows.live is not None for column in columns):
        starts = _starts([int(column.rows.starts[-1]) for column in columns])
        rows = [np.arange(len(column)) if column.rows.live is None else column.rows.live for column in columns]
        live = np.concatenate([start + row for start, row in zip(starts[:-1], rows, strict=True)])
    ids, offsets = ([shard for column in columns for shard in getattr(column, name)] for name in ("ids", "offsets"))
    return TokenColumn(ids, offsets, Rows.of(sizes, live))


def _digest(digests: Sequence[str], names: Sequence[str]) -> str:
    return hashlib.sha256("\0".join([*digests, *names]).encode()).hexdigest()


def _number_repeats(names: Sequence[str]) -> list[str]:
    distinct: list[str] = []
    for name in names:
        number, numbered = 1, name
        while numbered in distinct:
            number += 1
            numbered = f"{name}-{number}"
        distinct.append(numbered)
    return distinct
