"""Reads a prepared data set: columns memory-mapped, judgements loaded, nothing else touched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.answers import FILE, read_answers
from raytriever.data.columns import Rows, TextColumn, TokenColumn, map_texts
from raytriever.data.content import check_directory
from raytriever.data.dataset import (
    AbsentDocuments,
    Documents,
    Judgements,
    NegativeRows,
    Queries,
    RetrievalDataset,
    Tokens,
)
from raytriever.data.quarantine import QuarantineReport
from raytriever.data.shard_files import ABSENT, JUDGEMENTS, NEGATIVES
from raytriever.data.shards import DOCUMENTS, QUERIES
from raytriever.errors import DataError
from raytriever.storage import disk_errors, read_manifest


@activity("opening the prepared data set")
def read_prepared(place: Path, splits: Iterable[str] | None = None) -> RetrievalDataset:
    """Open the directory that `prepare` made.

    Args:
        place: the directory.
        splits: whose judgements, and bad rows of judgements, are wanted; all where None. What is not there is
            left out.

    Raises:
        StorageError: a file is missing, torn or changed.
    """
    check_directory(place)
    meta = read_manifest(place, verify=False)["meta"]
    tokenised = meta["tokenisation"]
    with disk_errors(place, reading=True):
        (ids, titles, texts), document_tokens = _side(place, DOCUMENTS, ("id", "title", "text"), tokenised)
        (query_ids, query_texts), query_tokens = _side(place, QUERIES, ("id", "text"), tokenised)
        judgements = {
            file.stem: Judgements(*np.load(file, allow_pickle=False))
            for file in sorted((place / JUDGEMENTS).glob("*.npy"))
            if splits is None or file.stem in splits
        }
        # What an earlier version prepared has no such folder.
        absent = {
            file.stem: _absent(file)
            for file in sorted((place / ABSENT).glob("*.arrow"))
            if splits is None or file.stem in splits
        }
        negatives = None
        if (place / f"{NEGATIVES}.npy").exists():
            scores = np.load(place / f"{NEGATIVES}.scores.npy", allow_pickle=False)
            queries, documents, origins, ranks = np.load(place / f"{NEGATIVES}.npy", allow_pickle=False)
            negatives = NegativeRows(queries, documents, origins, ranks, scores)
        answers = read_answers(place / FILE)
    other = {file["where"] for file in meta["files"] if file["split"] and splits and file["split"] not in splits}
    digests = {side: meta["sides"][side]["digest"] for side in (DOCUMENTS, QUERIES)}
    return RetrievalDataset(
        name=meta["name"],
        documents=Documents(ids, titles, texts, digests[DOCUMENTS]),
        queries=Queries(query_ids, query_texts, digests[QUERIES]),
        judgements=judgements,
        quarantine=QuarantineReport.read(place).without(other),
        negatives=negatives,
        answers=answers,
        place=str(place),
        absent=absent,
        tokens=Tokens(query_tokens, document_tokens, tokenised) if query_tokens and document_tokens else None,
    )


def splits_of(place: Path) -> list[str]:
    """The splits a prepared data set has judgements of."""
    return sorted(file.stem for file in (place / JUDGEMENTS).glob("*.npy"))


def require_splits(place: Path, splits: Iterable[str], where: str) -> None:
    """Raise `DataError` for a split that is not there, naming those that are."""
    there = splits_of(place)
    for split in splits:
        if split not in there:
            known = ", ".join(there) or "none"
            remedy = f"choose from {known}" if there else "add judgements"
            remedy = f"training needs one; {remedy}" if split == "train" and there else remedy
            raise DataError(f"no split {split!r}; there are: {known}", where, remedy)


def _absent(file: Path) -> AbsentDocuments:
    table = map_texts(file)
    queries, scores = (table[name].to_numpy() for name in ("query", "score"))
    return AbsentDocuments(queries, table["document"].to_pylist(), scores)


def _side(
    place: Path, name: str, columns: tuple[str, ...], tokenised: str | None
) -> tuple[list[TextColumn], TokenColumn | None]:
    files = sorted((place / name).glob("*.arrow"))
    tables = [map_texts(file) for file in files]
    live_file = place / f"{name}.live.npy"
    live: ndarray | None = np.load(live_file, allow_pickle=False) if live_file.exists() else None
    rows = Rows.of([len(table) for table in tables], live)
    texts = [TextColumn([_whole(table[column]) for table in tables], rows) for column in columns]
    if tokenised is None:
        return texts, None
    # A column of no shards is still one of tokens: no document had any.
    ids, offsets = (
        [np.load(file.with_suffix(f".{part}.npy"), mmap_mode="r", allow_pickle=False) for file in files]
        for part in ("tokens", "offsets")
    )
    return texts, TokenColumn(ids, offsets, rows)


def _whole(column: Any) -> Any:
    """A column as one array; a shard is one record batch, so nothing is copied."""
    return column.chunk(0)
