"""Reader of a prepared data set. Columns are memory-mapped, and judgements are loaded into memory.

Correct digests do not make a directory safe, because an attacker can write digests too. So each file must have the
types and lengths that `prepare` writes, and every position must refer to an existing row. The checks of offsets and
texts read all files. Like the check of digests, these checks run again only after a file has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np
from numpy import ndarray

from raytriever.core.errors import DataError, StorageError
from raytriever.core.progress import activity
from raytriever.core.reading.arrays import read_array, read_arrow
from raytriever.core.reading.json_and_yaml import conform
from raytriever.core.store.cache import hold
from raytriever.core.store.commit import MANIFEST, Manifest, read_manifest
from raytriever.data.columns import (
    FILE,
    PREPARE_AGAIN,
    PROMPTS,
    Answers,
    QueryPrompts,
    Rows,
    TextColumn,
    TokenColumn,
    read_texts,
)
from raytriever.data.dataset import (
    AbsentDocuments,
    Documents,
    Judgements,
    NegativeRows,
    Queries,
    RetrievalDataset,
    Tokens,
)
from raytriever.data.file_digests import check_directory
from raytriever.data.hashed_ids import TextHashes
from raytriever.data.records_and_bad_rows import ORIGINS, SOURCES, BadEntry, Quarantine

T = TypeVar("T")
DOCUMENTS, QUERIES = SIDES = "documents", "queries"

JUDGEMENTS, NEGATIVES, ABSENT, UNANSWERABLE = "judgements", "negatives", "absent", "unanswerable"
LABELS = "labels"  # folder of the judgements' labels, if the data has labels; it has a file for each split
HASHES = "hashes.npy"  # end of the file names `documents.hashes.npy` and `queries.hashes.npy`
# Columns of the Arrow files of documents and of queries, with their Arrow types.
DOCUMENT_COLUMNS, QUERY_COLUMNS = (
    dict.fromkeys(names, "large_string") for names in (("id", "title", "text"), ("id", "text"))
)
ABSENT_COLUMNS = {"query": "int64", "document": "large_string", "score": "int64"}


class FileMeta(TypedDict):
    """Statistics of one file of the source: the number of rows, the number of bad rows, and the first bad row."""

    where: str
    split: str | None
    rows: int
    bad: int
    first: BadEntry | None


class SideMeta(TypedDict):
    """Statistics of the documents or the queries.

    Args:
        rows: number of all rows, including repeated ones.
        live: number of rows that have a position, see `columns.Rows`.
        digest: SHA-256 of ids and contents, in order.
        repeated: number of rows that repeat an earlier row.
        same_text: number of rows whose text is a copy of an earlier text; see `hashed_ids`.
    """

    rows: int
    live: int
    digest: str
    repeated: int
    same_text: int


class SidesMeta(TypedDict):
    """Statistics of documents and of queries."""

    documents: SideMeta
    queries: SideMeta


class DatasetMeta(TypedDict):
    """Metadata in the manifest of a prepared data set."""

    kind: Literal["dataset"]
    key: str
    source: str
    name: str
    format: str
    tokenisation: str | None
    files: list[FileMeta]
    sides: SidesMeta


@dataclass(frozen=True)
class PreparedDirectory:
    """Directory of a prepared data set, which may be damaged. The manifest, which is read at the beginning, has the
    names of the files and the metadata."""

    folder: Path
    manifest: Manifest
    meta: DatasetMeta

    @classmethod
    def find(cls, folder: Path) -> PreparedDirectory | None:
        """Return the prepared data set in a folder; None if there is none. Raise `StorageError` if the manifest was
        changed or has another format."""
        file = folder / MANIFEST
        if not file.is_file():
            return None
        try:
            manifest = read_manifest(folder, verify=None)
        except StorageError:
            if all((folder / side).is_dir() for side in SIDES):
                raise
            return None
        if manifest["meta"].get("kind") != "dataset":
            return None
        return cls(folder, manifest, conform(manifest["meta"], str(file), DatasetMeta, PREPARE_AGAIN))

    @property
    def splits(self) -> list[str]:
        """Splits for which the data set has judgements."""
        return sorted(file.stem for file in self.files(f"{JUDGEMENTS}/", ".npy"))

    def require_splits(self, splits: Iterable[str], where: str) -> None:
        """Raise `DataError` for a missing split. The error lists the existing splits."""
        for split in splits:
            if split not in self.splits:
                choices = ", ".join(self.splits) or "none"
                remedy = f"choose from {choices}" if self.splits else "add judgements"
                remedy = f"training needs a train split; {remedy}" if split == "train" and self.splits else remedy
                raise DataError(f"no split {split!r}; there are: {choices}", where, remedy)

    def check(self, is_new: bool = False) -> None:
        """Compare the files with their digests; see `check_directory`."""
        check_directory(self.folder, manifest=self.manifest, is_new=is_new)

    @activity("opening the prepared data set")
    def open(self, splits: Iterable[str] | None = None, vocabulary: int | None = None) -> RetrievalDataset:
        """Open the data set.

        Only the judgements and bad rows of `splits` are read; None for all splits. Missing splits are skipped.
        `vocabulary` is the number of token ids of the tokenizer, if known. Raise `StorageError` if a file is missing,
        damaged or changed, or has other contents than `prepare` writes."""
        against = "" if vocabulary is None else f", {vocabulary} tokens"
        examine = partial(self._read, None, full=True, vocabulary=vocabulary)
        check_directory(self.folder, examine, against, manifest=self.manifest)
        dataset = self._read(None if splits is None else set(splits), full=False)
        hold(self.folder, dataset.documents.texts)  # every copy of the data set or its documents refers to this column
        return dataset

    def files(self, begin: str, end: str = "") -> list[Path]:
        """Return, sorted, the files of the manifest with this prefix and suffix. Ignore all other files."""
        names = sorted(self.manifest["files"])
        return [self.folder / name for name in names if name.startswith(begin) and name.endswith(end)]

    def _read(self, splits: set[str] | None, full: bool, vocabulary: int | None = None) -> RetrievalDataset:
        meta, files, folder = self.meta, self.files, self.folder
        tokenized, sides = meta["tokenisation"], meta["sides"]
        tokens = partial(_tokens, full=full, vocabulary=vocabulary) if tokenized is not None else None
        (ids, titles, texts), document_tokens = _side(files, DOCUMENTS, DOCUMENT_COLUMNS, full, tokens)
        (query_ids, query_texts), query_tokens = _side(files, QUERIES, QUERY_COLUMNS, full, tokens)
        queries, documents = len(query_ids), len(ids)
        stored = Documents(
            ids, titles, texts, sides["documents"]["digest"], None, _hashes(folder, DOCUMENTS, documents)
        )

        def by_split(name: str, end: str, read: Callable[[Path], T]) -> dict[str, T]:
            there = files(f"{name}/", end)
            return {file.stem: read(file) for file in there if splits is None or file.stem in splits}

        labels = {file.name: file for file in files(f"{LABELS}/", ".npy")}
        other = {file["where"] for file in meta["files"] if file["split"] and splits and file["split"] not in splits}
        return RetrievalDataset(
            name=meta["name"],
            documents=stored,
            queries=Queries(query_ids, query_texts, sides["queries"]["digest"], _hashes(folder, QUERIES, queries)),
            judgements=by_split(
                JUDGEMENTS, ".npy", lambda file: _judgements(file, labels.get(file.name), queries, documents)
            ),
            quarantine=Quarantine.read(folder).without(other),
            negatives=_first(files(f"{NEGATIVES}.npy"), lambda file: _negatives(file, queries, documents)),
            answers=_first(files(FILE), lambda file: Answers(*_query_texts(file, queries, full, 0))),
            prompts=_first(files(PROMPTS), lambda file: QueryPrompts(*_query_texts(file, queries, full, 1))),
            location=str(folder),
            absent=by_split(ABSENT, ".arrow", lambda file: _absent(file, queries, full)),
            unanswerable=by_split(UNANSWERABLE, ".npy", lambda file: _positions(file, queries)),
            tokens=Tokens(query_tokens, document_tokens, tokenized)
            if tokenized is not None and query_tokens is not None and document_tokens is not None
            else None,
        )


def _first(files: Sequence[Path], read: Callable[[Path], T]) -> T | None:
    return read(files[0]) if files else None


def _side(
    files: Callable[..., list[Path]],
    name: str,
    columns: dict[str, str],
    full: bool,
    read_tokens: Callable[[Path, int], tuple[ndarray, ndarray]] | None,
) -> tuple[list[TextColumn], TokenColumn | None]:
    shards = files(f"{name}/", ".arrow")
    tables = [read_arrow(file, columns, PREPARE_AGAIN, full) for file in shards]
    lengths = [len(table) for table in tables]
    rows = Rows.of(
        lengths, _first(files(f"{name}.live.npy"), lambda file: _positions(file, sum(lengths), "a row", "rows"))
    )
    texts = [TextColumn([table[column].chunk(0) for table in tables], rows) for column in columns]
    if read_tokens is None:
        return texts, None
    # Without documents, there are no shards. The column of tokens is then empty, not missing.
    tokens = [read_tokens(file, length) for file, length in zip(shards, lengths, strict=True)]
    return texts, TokenColumn([ids for ids, _ in tokens], [offsets for _, offsets in tokens], rows)


def _hashes(folder: Path, name: str, rows: int) -> TextHashes:
    return read_array(folder / f"{name}.{HASHES}", ["uint64"], (rows,), PREPARE_AGAIN, mapped="r")


def _positions(file: Path, count: int, what: str = "the position of a query", plural: str = "queries") -> ndarray:
    positions = read_array(file, ["int64"], (None,), PREPARE_AGAIN)
    _check_range(file, what, positions, count)
    _check_order(file, plural, bool((np.diff(positions) > 0).all()))
    return positions


def _tokens(file: Path, rows: int, full: bool, vocabulary: int | None) -> tuple[ndarray, ndarray]:
    ids = read_array(file.with_suffix(".tokens.npy"), ["uint16", "uint32"], (None,), PREPARE_AGAIN, mapped="r")
    of_offsets = file.with_suffix(".offsets.npy")
    offsets = read_array(of_offsets, ["int64"], (rows + 1,), PREPARE_AGAIN, mapped="r")
    ends = (int(offsets[0]), int(offsets[-1]))
    if ends != (0, len(ids)):
        wrong = f"begins at {ends[0]} and ends at {ends[1]}, expected 0 and the number of tokens, {len(ids)}"
        raise StorageError(wrong, str(of_offsets), PREPARE_AGAIN)
    if full:
        _check_order(of_offsets, "offsets", bool((np.diff(offsets) >= 0).all()))
        _check_range(file.with_suffix(".tokens.npy"), "a token", ids, vocabulary or 1 << 32)
    return ids, offsets


def _judgements(file: Path, labels: Path | None, queries: int, documents: int) -> Judgements:
    judgements = Judgements(*read_array(file, ["int64"], (5, None), PREPARE_AGAIN))
    if labels is not None:
        judgements = replace(judgements, labels=read_array(labels, ["float32"], (len(judgements),), PREPARE_AGAIN))
        if ((judgements.labels < 0) | (judgements.labels > 1)).any():
            raise StorageError("a label is not between 0 and 1", str(labels), PREPARE_AGAIN)
    _check_pairs(file, judgements.queries, judgements.documents, queries, documents)
    _check_range(file, "a source", judgements.sources, len(SOURCES))
    _check_range(file, "a rank", judgements.ranks)
    step = np.diff(judgements.queries)
    _check_order(file, "pairs", bool(((step > 0) | ((step == 0) & (np.diff(judgements.documents) > 0))).all()))
    return judgements


def _absent(file: Path, queries: int, full: bool) -> AbsentDocuments:
    table = read_arrow(file, ABSENT_COLUMNS, PREPARE_AGAIN, full)
    absent = AbsentDocuments(table["query"].to_numpy(), table["document"].to_pylist(), table["score"].to_numpy())
    _check_range(file, "the position of a query", absent.queries, queries)
    _check_order(file, "queries", bool((np.diff(absent.queries) >= 0).all()))
    _check_range(file, "a grade", absent.scores - 1)
    return absent


def _negatives(file: Path, queries: int, documents: int) -> NegativeRows:
    columns = read_array(file, ["int64"], (4, None), PREPARE_AGAIN)
    scores = read_array(file.with_suffix(".scores.npy"), ["float32"], (columns.shape[1],), PREPARE_AGAIN)
    _check_pairs(file, columns[0], columns[1], queries, documents)
    _check_range(file, "an origin", columns[2], len(ORIGINS))
    _check_range(file, "a rank", columns[3])
    return NegativeRows(columns[0], columns[1], columns[2], columns[3], scores)


def _query_texts(file: Path, queries: int, full: bool, least_step: int) -> tuple[ndarray, Any]:
    """Return query positions and their texts. Each position must be at least `least_step` above the one before."""
    positions, texts = read_texts(file, full)
    _check_range(file, "the position of a query", positions, queries)
    _check_order(file, "queries", bool((np.diff(positions) >= least_step).all()))
    return positions, texts


def _check_pairs(file: Path, queries: ndarray, documents: ndarray, of_queries: int, of_documents: int) -> None:
    _check_range(file, "the position of a query", queries, of_queries)
    _check_range(file, "the position of a document", documents, of_documents)


def _check_range(file: Path, what: str, values: ndarray, end: int = 1 << 31) -> None:
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < end:
        outside = values[(values < 0) | (values >= end)][0]
        raise StorageError(f"{what} is {outside}, expected 0 to {end - 1}", str(file), PREPARE_AGAIN)


def _check_order(file: Path, what: str, ascending: bool) -> None:
    if not ascending:
        raise StorageError(f"the {what} do not ascend", str(file), PREPARE_AGAIN)
