"""Several data sets as one: their columns end to end, their positions shifted, nothing copied.

Ids stay as they are unless two data sets share one; then every id is preceded by the name of its data set and `/`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.columns import Rows, TokenColumn
from raytriever.data.dataset import AbsentDocuments, Documents, Judgements, Queries, RetrievalDataset, Tokens
from raytriever.data.quarantine import QuarantineReport


class Chained(Sequence[str]):
    """Columns end to end as one, each text read where it stands.

    Args:
        parts: the columns.
        prefixes: what precedes the texts of each; nothing when not given.
    """

    def __init__(self, parts: Sequence[Sequence[str]], prefixes: Sequence[str] | None = None) -> None:
        self._parts = tuple(parts)
        self._prefixes = tuple(prefixes) if prefixes is not None else ("",) * len(self._parts)
        self._starts = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)]).tolist()

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...
    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        if isinstance(position, slice):
            return [self[place] for place in range(*position.indices(len(self)))]
        place = int(position) + (len(self) if position < 0 else 0)
        if not 0 <= place < len(self):
            raise IndexError(f"positions must be in [0, {len(self)})")
        part = bisect_right(self._starts, place) - 1
        return self._prefixes[part] + self._parts[part][place - self._starts[part]]

    def __iter__(self) -> Iterator[str]:
        for prefix, part in zip(self._prefixes, self._parts, strict=True):
            yield from (prefix + text for text in part) if prefix else part


@dataclass(frozen=True)
class CombinedDataset(RetrievalDataset):
    """Data sets as one; `query_starts` and `document_starts` are where each begins, and last where all end."""

    parts: tuple[RetrievalDataset, ...] = ()

    @property
    def query_starts(self) -> Int64[ndarray, " parts+1"]:
        """The query position at which each part begins, and last the end."""
        return _starts([len(part.queries) for part in self.parts])

    @property
    def document_starts(self) -> Int64[ndarray, " parts+1"]:
        """The document position at which each part begins, and last the end."""
        return _starts([len(part.documents) for part in self.parts])


def combine(datasets: Sequence[RetrievalDataset]) -> RetrievalDataset:
    """Several data sets as one; a single one is itself.

    A split of the whole holds the judgements of every data set that has it. Two of one name are told apart by a
    number: `nq`, `nq-2`.
    """
    if len(datasets) == 1:
        return datasets[0]
    names = _distinct([dataset.name for dataset in datasets])
    documents = [dataset.documents for dataset in datasets]
    queries = [dataset.queries for dataset in datasets]
    query_starts, document_starts = _starts([len(side) for side in queries]), _starts([len(side) for side in documents])
    judgements = {
        split: _concatenated(
            [
                (dataset.judgements[split], query_start, document_start)
                for dataset, query_start, document_start in zip(
                    datasets, query_starts[:-1], document_starts[:-1], strict=True
                )
                if split in dataset.judgements
            ]
        )
        for split in dict.fromkeys(split for dataset in datasets for split in dataset.judgements)
    }
    absent = {
        split: _concatenated_absent(
            [
                (dataset.absent[split], start)
                for dataset, start in zip(datasets, query_starts[:-1], strict=True)
                if split in dataset.absent
            ]
        )
        for split in dict.fromkeys(split for dataset in datasets for split in dataset.absent)
    }
    return CombinedDataset(
        name="+".join(names),
        documents=Documents(
            _chained_ids([side.ids for side in documents], names),
            Chained([side.titles for side in documents]),
            Chained([side.texts for side in documents]),
            stored_digest=_digest([side.digest for side in documents], names),
        ),
        queries=Queries(
            _chained_ids([side.ids for side in queries], names),
            Chained([side.texts for side in queries]),
            stored_digest=_digest([side.digest for side in queries], names),
        ),
        judgements=judgements,
        quarantine=QuarantineReport(tuple(entry for dataset in datasets for entry in dataset.quarantine.entries)),
        absent=absent,
        tokens=_chained_tokens([dataset.tokens for dataset in datasets]),
        parts=tuple(datasets),
    )


def starts_of(dataset: RetrievalDataset) -> tuple[Int64[ndarray, " parts+1"], Int64[ndarray, " parts+1"]]:
    """Where the queries and where the documents of each data set begin that `dataset` is made of, and last the ends."""
    if isinstance(dataset, CombinedDataset):
        return dataset.query_starts, dataset.document_starts
    return _starts([len(dataset.queries)]), _starts([len(dataset.documents)])


def _starts(sizes: Sequence[int]) -> Int64[ndarray, " parts+1"]:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _concatenated(parts: Sequence[tuple[Judgements, int, int]]) -> Judgements:
    """Judgements with the starts of their queries and documents; ascending, as each is."""
    return Judgements(
        np.concatenate([rows.queries + query_start for rows, query_start, _ in parts]),
        np.concatenate([rows.documents + document_start for rows, _, document_start in parts]),
        np.concatenate([rows.scores for rows, _, _ in parts]),
        np.concatenate([rows.sources for rows, _, _ in parts]),
        np.concatenate([rows.ranks for rows, _, _ in parts]),
    )


def _concatenated_absent(parts: Sequence[tuple[AbsentDocuments, int]]) -> AbsentDocuments:
    """Absent documents with the starts of their queries; ascending, as each is."""
    return AbsentDocuments(
        np.concatenate([rows.queries + start for rows, start in parts]),
        [document for rows, _ in parts for document in rows.documents],
        np.concatenate([rows.scores for rows, _ in parts]),
    )


def _chained_ids(columns: Sequence[Sequence[str]], names: Sequence[str]) -> Chained:
    return Chained(columns, [f"{name}/" for name in names] if _clash(columns) else None)


def _chained_tokens(tokens: Sequence[Tokens | None]) -> Tokens | None:
    """The tokens of all, if all have some and of one making."""
    there = [each for each in tokens if each is not None]
    if len(there) < len(tokens) or len({each.digest for each in there}) > 1:
        return None
    return Tokens(
        _chained_column([each.queries for each in there]),
        _chained_column([each.documents for each in there]),
        there[0].digest,
    )


def _chained_column(columns: Sequence[TokenColumn]) -> TokenColumn:
    sizes = [int(size) for column in columns for size in np.diff(column.rows.starts)]
    live = None
    if any(column.rows.live is not None for column in columns):
        starts = _starts([int(column.rows.starts[-1]) for column in columns])
        live = np.concatenate(
            [
                start + (np.arange(len(column)) if column.rows.live is None else column.rows.live)
                for start, column in zip(starts[:-1], columns, strict=True)
            ]
        )
    ids, offsets = ([shard for column in columns for shard in getattr(column, name)] for name in ("ids", "offsets"))
    return TokenColumn(ids, offsets, Rows.of(sizes, live))


def _digest(digests: Sequence[str], names: Sequence[str]) -> str:
    return hashlib.sha256("\0".join([*digests, *names]).encode()).hexdigest()


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, told = 1, name
        while told in found:
            number += 1
            told = f"{name}-{number}"
        found.append(told)
    return found


def _clash(columns: Sequence[Sequence[str]]) -> bool:
    """Whether two columns share an id, by eight bytes of a hash each: a false alarm costs a prefix, nothing else."""
    hashes = [
        np.unique(np.fromiter((_hash(text) for text in column), dtype=np.uint64, count=len(column)))
        for column in columns
    ]
    together = np.concatenate(hashes)
    return len(np.unique(together)) < len(together)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
