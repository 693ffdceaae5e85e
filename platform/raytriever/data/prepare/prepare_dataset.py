"""Preparation of a data set: files of any known format are converted once to a directory of shards.

1. The files are listed and the format is recognized. The key is a digest of the files' bytes and of the settings.
2. An existing directory with that key is used. Otherwise a `Runner` converts every block to a shard (`text_shards`): in
   this process, in a pool of processes, or with Ray. Then positions are computed (`assemble_shards`).
   A preparation that was killed is continued (`text_shards`).
3. Bad rows are listed in `quarantine.jsonl`. If a file has too many of them, the preparation stops and stores nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raytriever.core.errors import DataError, StorageError, setting
from raytriever.core.processes import ProcessDeath, map_in_processes
from raytriever.core.progress import activity
from raytriever.core.store.cache import cache_folder
from raytriever.core.store.capacity import check_disk, format_size
from raytriever.core.store.commit import FORMAT, FileEntry, committed_directory
from raytriever.core.store.disk import files_below
from raytriever.core.store.unfinished_pieces import make_once
from raytriever.data.data_settings import SplitConfig
from raytriever.data.data_sources import Source
from raytriever.data.file_digests import content_digest
from raytriever.data.formats.file_blocks import FileBlock, read_blocks
from raytriever.data.formats.known_formats import recognize
from raytriever.data.formats.plan import Part, Plan
from raytriever.data.formats.train_dev_test import test_file
from raytriever.data.prepare.assemble_shards import BadRows, assemble
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.prepared import DOCUMENTS, QUERIES, PreparedDirectory
from raytriever.data.prepare.text_shards import WORK, ShardSummary, ShardWriter, begin, bytes_of_shards, find_unfinished
from raytriever.data.pydocs import PYDOCS, pydocs_folder
from raytriever.data.records_and_bad_rows import Quarantine, bad_entry, check_fraction

# Increase this number if the same files now give other rows. Then data sets are prepared again in the cache. Prepared
# directories stay readable.
_READING = 2
_SMALLEST, _LARGEST, _SHARDS = 1 << 20, 64 << 20, 256
# If a source has at least this many bytes, its result is synced to disk. A smaller one is quickly prepared again.
_DURABLE_FROM = 64 << 20
_LOG_SECONDS = 10

# `run(writer, total_bytes)` writes the shards of all parts, in any order. `total_bytes` is the size of all files.
Runner = Callable[[ShardWriter, int], Iterator[ShardSummary]]
Log = Callable[[str], None]


def ignore_line(text: str) -> None:
    """Do nothing. Callers that print no lines pass this function as `log`."""


def in_this_process(writer: ShardWriter, total_bytes: int) -> Iterator[ShardSummary]:
    """Write the shards one after another in this process."""
    for index, part in enumerate(writer.parts):
        for block in read_blocks(part, index, block_bytes(total_bytes)):
            yield writer(block)


def block_bytes(total_bytes: int) -> int:
    """Return the block size in bytes that gives a few hundred blocks, unless they would be too small or large."""
    return min(_LARGEST, max(_SMALLEST, total_bytes // _SHARDS))


@dataclass(frozen=True)
class Request:
    """Request to prepare a data set; see `Source.open`, `recognize` and `open_dataset`.

    `division` divides a single file of queries and passages. A file of a split that is not in `splits` may have any
    number of bad rows; None checks all files."""

    dataset: str
    tokenization: Tokenization | None = None
    format: str | None = None
    max_bad_rows: float = 0.01
    splits: tuple[str, ...] | None = None
    columns: str = ""
    division: SplitConfig = field(default_factory=SplitConfig)

    @activity("comparing the data set's files with the cache")
    def key(self, source: Source, plan: Plan) -> str:
        """Return the SHA-256 of the bytes of the files, their paths, and all settings that determine the shards. The
        paths are included because bad rows are listed by path."""
        tokens = self.tokenization.digest if self.tokenization else None
        read = {part.where for part in plan.parts}
        files = [(file.path, content_digest(file)) for file in source.files if file.where in read]
        decides: list[Any] = [FORMAT, _READING, plan.format, tokens, source.where, files, sorted(read)]
        decides += [part.header for part in plan.parts if part.kind == "table"]
        decides += [plan.division] if plan.division else []
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def check_files(self, files: Sequence[Mapping[str, Any]]) -> None:
        """Raise `DataError` if a file of the checked splits has too many bad rows. `files` comes from `count_rows`."""
        for file in files:
            if self.splits is None or file["split"] is None or file["split"] in self.splits:
                check_fraction(file["where"], file["rows"], file["bad"], file["first"], self.max_bad_rows)


def prepare(
    request: Request, run: Runner = in_this_process, output: Path | None = None, log: Log = ignore_line
) -> PreparedDirectory:
    """Return a prepared data set in `output` or in the cache. Prepare the data set if this was not yet done. Raise
    `DataError` if the data set does not exist, its format is unknown, a file is damaged, or too many rows are bad.
    Raise `StorageError` if `output` holds something else, or cannot be written."""
    is_embedded = request.dataset == PYDOCS
    source = Source.open(pydocs_folder() if is_embedded else request.dataset)
    source = replace(source, name=request.dataset) if is_embedded else source
    if request.tokenization is not None:
        request = replace(request, tokenization=request.tokenization.for_dataset(source.name))
    if (tested := test_file(request.division)) is not None and tested.where not in {
        file.where for file in source.files
    }:
        source = replace(source, files=(*source.files, tested))
    plan = recognize(source, request.format, request.columns, request.division)
    if plan.note:
        log(plan.note)
    work = _Preparation(request, source, plan, request.key(source, plan), run, log)
    if output is not None:  # the calling command holds the lock of `output`
        directory = PreparedDirectory.find(output)
        if directory is not None and directory.meta["key"] != work.key and directory.meta["source"] != source.where:
            what = f"is a prepared data set of {directory.meta['source']}"
            raise StorageError(what, str(output), f"give another {setting('output')}, or remove this one")
        if directory is None or directory.meta["key"] != work.key:
            return work.make(output, replace=directory is not None, durable=True)
        return work.known(directory)
    folder = cache_folder() / "datasets" / f"{source.name}-{work.key[:16]}"
    found: list[PreparedDirectory] = []

    def make() -> None:
        found[:] = [work.make(folder, replace=folder.exists(), durable=work.size >= _DURABLE_FROM)]

    make_once(folder, make, lambda _: found.append(work.known(work.cached(folder))))
    return found[0]


@dataclass(frozen=True)
class _Preparation:
    request: Request
    source: Source
    plan: Plan
    key: str
    run: Runner
    log: Log

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """Path and size of each file that the plan reads."""
        read = {part.where for part in self.plan.parts}
        return [(file.where, file.size) for file in self.source.files if file.where in read]

    @property
    def size(self) -> int:
        """Number of bytes of all files that the plan reads."""
        return sum(size for _, size in self.sizes)

    def cached(self, folder: Path) -> PreparedDirectory:
        """Return a prepared data set of the cache. Raise `StorageError` if it is missing or damaged."""
        directory = PreparedDirectory.find(folder)
        if directory is None or directory.meta["key"] != self.key:
            raise StorageError("has no manifest of a prepared data set", str(folder))
        directory.check()
        return directory

    def known(self, directory: PreparedDirectory) -> PreparedDirectory:
        """Return a data set that was prepared before, after a check that the request allows its number of bad rows."""
        self.request.check_files(directory.meta["files"])
        self.log(f"{self.source.name}: prepared before (digest {self.key[:12]}), read from {directory.folder}")
        return directory

    def make(self, folder: Path, replace: bool, durable: bool) -> PreparedDirectory:
        """Prepare the data set, or continue a preparation that was killed."""
        name, tokenized = self.source.name, self.request.tokenization is not None
        unfinished_key = f"{self.key} {block_bytes(self.size)}"
        begun = find_unfinished(folder, unfinished_key)
        there = sum(file.stat().st_size for file in files_below(begun)) if begun else 0
        check_disk(folder, max(0, bytes_of_shards(self.sizes, tokenized) - there), "the shards of the data set")
        self.log(f"{name}: preparing {format_size(self.size)} of {self.plan.format} data")
        meta, entries = dict[str, Any](), dict[str, FileEntry]()
        with (
            activity(f"{name}: preparing"),
            committed_directory(folder, meta, replace=replace, begun=begun, durable=durable, entries=entries) as aside,
        ):
            if shards := begin(aside, unfinished_key):
                self.log(f"{name}: a preparation was killed; continuing after {shards:,} shards")
            summaries = self._write_shards(aside)
            sides, late = assemble(aside, summaries)
            files, bad = count_rows(self.plan.parts, summaries, late)
            Quarantine(tuple(bad)).write(aside)
            shutil.rmtree(aside / WORK)
            for shard in summaries:
                entries.update(shard.files)
            meta |= {"kind": "dataset", "key": self.key, "source": self.source.where, "name": name}
            tokens = self.request.tokenization.digest if self.request.tokenization else None
            of_sides = {end: side.meta for end, side in sides.items()}
            meta |= {"format": self.plan.format, "files": files, "sides": of_sides, "tokenisation": tokens}
            self.request.check_files(files)
            for end, what in ((DOCUMENTS, "documents"), (QUERIES, "queries")):
                if not len(sides[end].live) and (end == DOCUMENTS or self.plan.has_queries):
                    raise DataError(f"has no {what}", self.source.where, "give a data set with documents and queries")
        directory = PreparedDirectory.find(folder)
        assert directory is not None
        directory.check(is_new=True)
        return directory

    def _write_shards(self, folder: Path) -> list[ShardSummary]:
        """Write the shards of all files. If all rows of a file's first block are bad, stop with an error."""
        summaries, first, checked = list[ShardSummary](), dict[int, ShardSummary](), 0
        rows, logged_at = 0, time.monotonic()
        for shard in self.run(ShardWriter(self.plan.parts, folder, self.request.tokenization), self.size):
            if shard.number == 0:
                first[shard.part] = shard
            while checked in first:  # in the files' order, so that the error always names the first bad file
                begin_of_file, where = first.pop(checked), self.plan.parts[checked].where
                count, bad = begin_of_file.rows, begin_of_file.bad
                if count == len(bad):
                    check_fraction(where, count, len(bad), bad[0] if bad else None, self.request.max_bad_rows)
                checked += 1
            summaries.append(shard)
            rows += shard.rows
            if time.monotonic() - logged_at > _LOG_SECONDS:
                self.log(f"{self.source.name}: {rows:,} rows")
                logged_at = time.monotonic()
        return sorted(summaries, key=lambda shard: shard.stem)


def count_rows(
    parts: Sequence[Part], summaries: Sequence[ShardSummary], late: BadRows
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return each file's numbers of rows and of bad rows, and its first bad row. Also return all bad rows in order."""
    rows: Counter[int] = Counter()
    bad: list[list[dict[str, Any]]] = [[] for _ in parts]
    for shard in summaries:
        rows[shard.part] += shard.rows
        bad[shard.part] += shard.bad
    for (part, row), reason in late.items():
        bad[part].append(bad_entry(parts[part].where, row, *reason))
    for entries in bad:
        entries.sort(key=lambda entry: entry["row"])
    files = []
    for index, entries in enumerate(bad):
        figures = {"rows": rows[index], "bad": len(entries), "first": next(iter(entries), None)}
        files.append({"where": parts[index].where, "split": parts[index].split, **figures})
    return files, [entry for entries in bad for entry in entries]


# PyArrow imports pandas for the first array of Python objects. Importing it once saves 0.2 s in each process.
_SHARED = [__name__, "pyarrow", "pandas"]


def in_processes(writer: ShardWriter, total_bytes: int) -> Iterator[ShardSummary]:
    """Write the shards in a pool of processes, and yield reports as they finish. Raise `DataError` if a file is broken,
    or if `TRIES` processes died while they wrote one block."""
    size = block_bytes(total_bytes)
    blocks = (block for index, part in enumerate(writer.parts) for block in read_blocks(part, index, size))
    try:
        yield from map_in_processes(_write, blocks, _SHARED, _begin, writer)
    except ProcessDeath as death:
        raise writer.fatal(*death.args) from death


_writers: list[ShardWriter] = []


def _begin(writer: ShardWriter) -> None:
    _writers.append(writer)


def _write(block: FileBlock) -> ShardSummary:
    return _writers[0](block)
