"""Preparation of a data set: from files of any known format to a directory of shards, once.

1. The files are listed and the format is recognised; the key is the digest of their bytes and of the settings.
2. A directory of that key is used as it is. Otherwise every chunk becomes a shard (`shards`), in this process, in a
   pool of processes, or by a `Runner` that uses Ray.
   Positions are computed (`assemble`). A preparation that was killed is continued (`shards`).
3. Bad rows are listed in `quarantine.jsonl`; a file with too many of them stops the preparation, and nothing is kept.
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

from raytriever.activity import activity
from raytriever.data.config import SplitConfig
from raytriever.data.digests import check_directory, content_digest
from raytriever.data.formats.chunks import FileChunk, read_chunks
from raytriever.data.formats.division import test_file
from raytriever.data.formats.plan import Part, Plan
from raytriever.data.formats.recognise import recognise
from raytriever.data.prepare.assemble import BadRows, assemble
from raytriever.data.prepare.prepared import DOCUMENTS, QUERIES, DatasetMeta, prepared_meta
from raytriever.data.prepare.shards import (
    WORK,
    ShardReport,
    ShardWriter,
    begin,
    bytes_of_shards,
    find_unfinished,
    gather,
)
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.data.pydocs import PYDOCS, pydocs_folder
from raytriever.data.records import QuarantineReport, bad_entry, check_share
from raytriever.data.sources import Source
from raytriever.errors import DataError, StorageError, setting
from raytriever.processes import ProcessDeath, map_in_processes
from raytriever.store.cache import cache_folder, keep_within_bound
from raytriever.store.capacity import check_disk, format_size
from raytriever.store.commit import FORMAT, committed_directory, one_writer
from raytriever.store.disk import files_below
from raytriever.terminal import warn


def count_rows(
    parts: Sequence[Part], reports: Sequence[ShardReport], late: BadRows
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the figures of each file (rows, bad rows, the first bad row), and all bad rows by file and row."""
    rows: Counter[int] = Counter()
    entries: list[tuple[int, dict[str, Any]]] = []
    for report in reports:
        rows[report.part] += report.rows
        entries += [(report.part, entry) for entry in report.bad]
    entries += [(part, bad_entry(parts[part].where, row, *reason)) for (part, row), reason in late.items()]
    entries.sort(key=lambda entry: (entry[0], entry[1]["row"]))
    bad = Counter(part for part, _ in entries)
    first: dict[int, dict[str, Any]] = {}
    for part, entry in entries:
        first.setdefault(part, entry)
    files = [
        {"where": part.where, "split": part.split, "rows": rows[index], "bad": bad[index], "first": first.get(index)}
        for index, part in enumerate(parts)
    ]
    return files, [entry for _, entry in entries]


class FirstChunks:
    """Check of the first chunk of every file: a file whose first rows are all bad is not read to its end.

    Chunks arrive in any order. If several files are bad, the error always names the first of them.
    """

    def __init__(self, parts: Sequence[Part], max_share: float) -> None:
        self._parts, self._max_share = parts, max_share
        self._pending = set(range(len(parts)))
        self._errors: dict[int, DataError] = {}

    def check(self, report: ShardReport) -> None:
        """Check the report of a chunk; raises `DataError` for a bad file as soon as no earlier file is pending."""
        if report.number > 0:
            return
        self._pending.discard(report.part)
        if report.rows == len(report.bad):
            try:
                where, first = self._parts[report.part].where, report.bad[0] if report.bad else None
                check_share(where, report.rows, len(report.bad), first, self._max_share)
            except DataError as error:
                self._errors[report.part] = error
        if self._errors and min(self._errors) < min(self._pending, default=len(self._parts)):
            self.finish()

    def finish(self) -> None:
        """Raise the `DataError` of the first bad file, if any, when no more chunks arrive."""
        if self._errors:
            raise self._errors[min(self._errors)]


def check_files(files: Sequence[Mapping[str, Any]], max_share: float, splits: Sequence[str] | None) -> None:
    """Raise `DataError` if a file, of the figures of `count_rows`, has too many bad rows; `splits` None checks all."""
    for file in files:
        if splits is None or file["split"] is None or file["split"] in splits:
            check_share(file["where"], file["rows"], file["bad"], file["first"], max_share)


# Raise it when the same files give other rows: the cache is then made again. Prepared directories stay readable.
_READING = 1
_SMALLEST, _LARGEST, _SHARDS = 1 << 20, 64 << 20, 256
_REPORT_SECONDS = 10

# Makes the shards of all parts, in any order: `run(writer, total_bytes)`, with the number of bytes of all files.
Runner = Callable[[ShardWriter, int], Iterator[ShardReport]]
Report = Callable[[str], None]


def ignore_line(text: str) -> None:
    """Do nothing: the report of callers that need none."""


def in_this_process(writer: ShardWriter, total_bytes: int) -> Iterator[ShardReport]:
    """Make the shards one after another in this process."""
    for index, part in enumerate(writer.parts):
        for chunk in read_chunks(part, index, chunk_bytes(total_bytes)):
            yield writer(chunk)


def chunk_bytes(total_bytes: int) -> int:
    """Return the size of chunks, for a few hundred within limits."""
    return min(_LARGEST, max(_SMALLEST, total_bytes // _SHARDS))


@dataclass(frozen=True)
class Request:
    """Request to prepare a data set; see `sources.Source.open`, `recognise` and `open.open_dataset`.

    `division` divides a single file of queries and passages.
    Bad rows in files of other splits than `splits` are quarantined and stop nothing; None checks all files.
    """

    dataset: str
    tokenisation: Tokenisation | None = None
    format: str | None = None
    max_bad_rows: float = 0.01
    splits: tuple[str, ...] | None = None
    columns: str = ""
    division: SplitConfig = field(default_factory=SplitConfig)

    @activity("comparing the data set's files with the cache")
    def key(self, source: Source, plan: Plan) -> str:
        """Return the SHA-256 over the bytes of the files, their paths, and all settings that decide the shards.

        The paths count because bad rows are listed by path.
        """
        tokens = self.tokenisation.digest if self.tokenisation else None
        read = {part.where for part in plan.parts}
        files = [(file.path, content_digest(file)) for file in source.files if file.where in read]
        decides: list[Any] = [FORMAT, _READING, plan.format, tokens, source.where, files, sorted(read)]
        decides += [part.header for part in plan.parts if part.kind == "table"]
        decides += [plan.division] if plan.division else []
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def prepare(
    request: Request, run: Runner = in_this_process, output: Path | None = None, report: Report = ignore_line
) -> Path:
    """Return the directory of a prepared data set; prepare it first if necessary, in `output` or in the cache.

    Raises:
        DataError: the data set does not exist, its format is unknown, a file is broken, or too many rows are bad.
        StorageError: `output` holds something else, or cannot be written.
    """
    is_embedded = request.dataset == PYDOCS
    source = Source.open(pydocs_folder() if is_embedded else request.dataset)
    source = replace(source, name=request.dataset) if is_embedded else source
    if request.tokenisation is not None:
        request = replace(request, tokenisation=request.tokenisation.for_dataset(source.name))
    if (tested := test_file(request.division)) is not None and tested.where not in {one.where for one in source.files}:
        source = replace(source, files=(*source.files, tested))
    plan = recognise(source, request.format, request.columns, request.division)
    if plan.note:
        report(plan.note)
    key = request.key(source, plan)
    folder = output or cache_folder() / "datasets" / f"{source.name}-{key[:16]}"
    if output is not None:
        meta = prepared_meta(output)  # its command holds the lock
    else:
        meta = _cached(folder, key, ignore_line)
        if meta is None:
            with one_writer(folder, wait=True, report=warn):
                meta = _cached(folder, key, report)  # made by another command meanwhile
                if meta is None:
                    _make(folder, request, source, plan, key, run, report, replace=folder.exists())
                    keep_within_bound(folder)
                    return folder
    if meta is not None and meta["key"] == key:
        check_files(meta["files"], request.max_bad_rows, request.splits)
        report(f"{source.name}: prepared before (digest {key[:12]}), read from {folder}")
        return folder
    if meta is not None and meta["source"] != source.where:
        raise StorageError(
            f"holds {meta['source']}, prepared", str(folder), f"give another {setting('output')}, or remove it"
        )
    _make(folder, request, source, plan, key, run, report, replace=meta is not None)
    return folder


def _make(
    folder: Path, request: Request, source: Source, plan: Plan, key: str, run: Runner, report: Report, replace: bool
) -> None:
    name, read = source.name, {part.where for part in plan.parts}
    sizes = [(file.where, file.size) for file in source.files if file.where in read]
    total = sum(size for _, size in sizes)
    unfinished_key = f"{key} {chunk_bytes(total)}"
    begun = find_unfinished(folder, unfinished_key)
    there = sum(file.stat().st_size for file in files_below(begun)) if begun else 0
    needed = bytes_of_shards(sizes, request.tokenisation is not None) - there
    check_disk(folder, max(0, needed), "the shards of the data set")
    report(f"{name}: preparing {format_size(total)} of {plan.format} data")
    meta: dict[str, Any] = {"kind": "dataset", "key": key, "source": source.where}
    with activity(f"{name}: preparing"), committed_directory(folder, meta, replace=replace, begun=begun) as aside:
        if shards := begin(aside, unfinished_key):
            report(f"{name}: a preparation was killed; continuing after {shards:,} shards")
        writer = ShardWriter(plan.parts, aside, request.tokenisation)
        _fill(writer, request, name, plan, total, run, meta, report)


def _fill(
    writer: ShardWriter,
    request: Request,
    name: str,
    plan: Plan,
    total: int,
    run: Runner,
    meta: dict[str, Any],
    report: Report,
) -> None:
    aside = writer.folder
    reports = []
    rows, last_report = 0, time.monotonic()
    first_chunks = FirstChunks(plan.parts, request.max_bad_rows)
    for shard in run(writer, total):
        first_chunks.check(shard)
        reports.append(shard)
        rows += shard.rows
        if time.monotonic() - last_report > _REPORT_SECONDS:
            report(f"{name}: {rows:,} rows")
            last_report = time.monotonic()
    first_chunks.finish()
    reports.sort(key=lambda shard: shard.stem)
    gather(aside, reports)
    sides, late = assemble(aside, reports)
    files, entries = count_rows(plan.parts, reports, late)
    QuarantineReport(tuple(entries)).write(aside)
    shutil.rmtree(aside / WORK)
    meta |= {
        "name": name,
        "format": plan.format,
        "tokenisation": request.tokenisation.digest if request.tokenisation else None,
        "files": files,
        "sides": {name: side.meta for name, side in sides.items()},
    }
    check_files(files, request.max_bad_rows, request.splits)
    for side, what in ((DOCUMENTS, "document"), (QUERIES, "query")):
        if not len(sides[side].live) and (side == DOCUMENTS or plan.has_queries):
            raise DataError(f"no {what} in it", meta["source"], "give a data set with documents and queries")


def _cached(folder: Path, key: str, report: Report) -> DatasetMeta | None:
    """Return the metadata of an undamaged cached data set; None if it must be prepared."""
    try:
        meta = prepared_meta(folder)
        if meta is not None and meta["key"] == key:
            check_directory(folder)
            return meta
    except StorageError as damage:
        report(f"{damage.where}: {damage.what}; preparing again")
        return None
    if folder.exists():
        report(f"{folder}: has no manifest of a prepared data set; preparing again")
    return None


# PyArrow imports pandas, if it is installed, with the first array of Python objects: 0.2 s of each process.
_SHARED = [__name__, "pyarrow", "pandas"]


def in_processes(writer: ShardWriter, total_bytes: int) -> Iterator[ShardReport]:
    """Make the shards in a pool of processes; reports arrive in the order of completion. Raise `DataError` if a file is
    broken, or several processes died over one chunk."""
    size = chunk_bytes(total_bytes)
    chunks = (chunk for index, part in enumerate(writer.parts) for chunk in read_chunks(part, index, size))
    try:
        yield from map_in_processes(_write, chunks, _SHARED, _begin, writer)
    except ProcessDeath as death:
        raise writer.fatal(*death.args) from death


_writers: list[ShardWriter] = []


def _begin(writer: ShardWriter) -> None:
    _writers.append(writer)


def _write(chunk: FileChunk) -> ShardReport:
    return _writers[0](chunk)
