"""Preparation of a data set: from files of any known format to a directory of shards, once.

1. The files are listed and the format is recognised; the key is the digest of their bytes and of the settings.
2. A directory of that key is used as it is. Otherwise every chunk becomes a shard (`shards`), in this process, in a
   pool of processes, or by a `Runner` that uses Ray, and positions are computed (`assemble`).
3. Bad rows are listed in `quarantine.jsonl`; a file with too many of them stops the preparation, and nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

from raytriever.activity import activity
from raytriever.data.digests import check_directory, content_digest
from raytriever.data.formats.chunks import Chunk, read_chunks
from raytriever.data.formats.plan import Part, Plan
from raytriever.data.formats.recognise import recognise
from raytriever.data.prepare.assemble import BadRows, SideFound, assemble
from raytriever.data.prepare.prepared import VERSION, DatasetMeta, prepared_meta
from raytriever.data.prepare.shards import DOCUMENTS, QUERIES, WORK, ShardReport, ShardWriter, make_folders
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.data.pydocs.builder import PYDOCS, pydocs_folder
from raytriever.data.quarantine import QuarantineReport, bad_entry, check_share
from raytriever.data.sources import Source
from raytriever.errors import DataError, StorageError
from raytriever.interruption import end_with_parent
from raytriever.storage import cache_folder, committed_directory, one_writer
from raytriever.terminal import warn


def accounts_of(
    parts: Sequence[Part], reports: Sequence[ShardReport], late: BadRows
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """For each file its rows, its bad rows and the first of them; and all bad rows, by file and row."""
    rows: Counter[int] = Counter()
    entries: list[tuple[int, dict[str, Any]]] = []
    for report in reports:
        rows[report.part] += report.rows
        entries += [(report.part, entry) for entry in report.bad]
    entries += [(part, bad_entry(parts[part].where, row, *told)) for (part, row), told in late.items()]
    entries.sort(key=lambda entry: (entry[0], entry[1]["row"]))
    bad = Counter(part for part, _ in entries)
    first: dict[int, dict[str, Any]] = {}
    for part, entry in entries:
        first.setdefault(part, entry)
    files = [
        {"where": part.where, "split": part.split, "rows": rows[place], "bad": bad[place], "first": first.get(place)}
        for place, part in enumerate(parts)
    ]
    return files, [entry for _, entry in entries]


def refuse_hopeless(part: Part, report: ShardReport, max_share: float) -> None:
    """Stop at once where a file begins with nothing but bad rows, rather than read it to its end."""
    if report.number == 0 and report.rows == len(report.bad):
        check_share(part.where, report.rows, len(report.bad), report.bad[0] if report.bad else None, max_share)


def check_files(files: Sequence[Mapping[str, Any]], max_share: float, splits: Sequence[str] | None) -> None:
    """Raise `DataError` where a file has too many bad rows.

    Args:
        files: as `accounts_of` tells them.
        max_share: the share of rows, 0 to 1, that may be bad.
        splits: those whose judgements matter; all where None.
    """
    for file in files:
        if splits is None or file["split"] is None or file["split"] in splits:
            check_share(file["where"], file["rows"], file["bad"], file["first"], max_share)


# Changes whenever more is read out of the same files: the cache makes it anew, and what was prepared before is read on.
_READS = "absent"
_SMALLEST, _LARGEST, _SHARDS = 1 << 20, 64 << 20, 256
_TELL_SECONDS = 10

# Makes the shards of all parts, in any order: `run(writer, total_bytes)`, where the files have so many bytes.
Runner = Callable[[ShardWriter, int], Iterator[ShardReport]]
Say = Callable[[str], None]


def quietly(text: str) -> None:
    """Says nothing."""


def in_this_process(writer: ShardWriter, total_bytes: int) -> Iterator[ShardReport]:
    """The runner that needs nothing."""
    for index, part in enumerate(writer.parts):
        for chunk in read_chunks(part, index, chunk_bytes(total_bytes)):
            yield writer(chunk)


def chunk_bytes(total_bytes: int) -> int:
    """How large chunks are: some hundreds of them where that leaves them of use, never too large for memory."""
    return min(_LARGEST, max(_SMALLEST, total_bytes // _SHARDS))


@dataclass(frozen=True)
class Request:
    """What is to be prepared.

    Args:
        dataset: `pydocs`, a path, or a URI; see `source.Source.open`.
        tokenisation: None where only texts are wanted.
        format: its name, or None to recognise it.
        max_bad_rows: the share of each file's rows, 0 to 1, that may be bad.
        splits: those whose judgements matter: bad rows in a file of another are put aside and stop nothing. All
            matter when None.
    """

    dataset: str
    tokenisation: Tokenisation | None = None
    format: str | None = None
    max_bad_rows: float = 0.01
    splits: tuple[str, ...] | None = None

    @activity("comparing the data set's files with the cache")
    def key(self, source: Source, plan: Plan) -> str:
        """SHA-256 over the bytes of the files, where they are (bad rows are told by file), and all settings that
        decide what the shards hold."""
        tokens = self.tokenisation.digest if self.tokenisation else None
        read = {part.where for part in plan.parts}
        files = [(file.path, content_digest(file)) for file in source.files if file.where in read]
        decides = [VERSION, _READS, plan.format, tokens, source.where, files, sorted(read)]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def prepare(request: Request, run: Runner = in_this_process, output: Path | None = None, say: Say = quietly) -> Path:
    """The directory of a prepared data set, made if it is not there.

    Args:
        request: what is to be prepared.
        run: how its shards are made.
        output: where the directory shall stand; in the cache when None.
        say: hears whether anything had to be done.

    Raises:
        DataError: no such data set, a format nobody knows, a broken file, or too many bad rows.
        StorageError: `output` holds something else, or cannot be written.
    """
    source = Source.open(str(pydocs_folder()) if request.dataset == PYDOCS else request.dataset)
    name = PYDOCS if request.dataset == PYDOCS else source.name
    plan = recognise(source, request.format)
    key = request.key(source, plan)
    place = output or cache_folder() / "datasets" / f"{name}-{key[:16]}"
    if output is not None:
        found = prepared_meta(output)  # its command holds the lock
    else:
        found = _cached(place, key, quietly)
        if found is None:
            with one_writer(place, wait=True, report=warn):
                found = _cached(place, key, say)  # made by another command meanwhile
                if found is None:
                    _make(place, request, source, plan, key, run, say, replace=place.exists())
                    return place
    if found is not None and found["key"] == key:
        check_files(found["files"], request.max_bad_rows, request.splits)
        say(f"{name}: prepared before (digest {key[:12]}), read from {place}")
        return place
    if found is not None and found["source"] != source.where:
        raise StorageError(f"holds {found['source']}, prepared", str(place), "give another --output, or remove it")
    _make(place, request, source, plan, key, run, say, replace=found is not None)
    return place


def _make(
    place: Path, request: Request, source: Source, plan: Plan, key: str, run: Runner, say: Say, replace: bool
) -> None:
    name = PYDOCS if request.dataset == PYDOCS else source.name
    read = {part.where for part in plan.parts}
    total = sum(file.size for file in source.files if file.where in read)
    say(f"{name}: preparing {_size(total)} of {plan.format} data")
    meta: dict[str, Any] = {"kind": "dataset", "key": key, "source": source.where}
    with activity(f"{name}: preparing"), committed_directory(place, meta, replace=replace) as aside:
        _fill(aside, request, name, plan, total, run, meta, say)


def _fill(
    aside: Path, request: Request, name: str, plan: Plan, total: int, run: Runner, meta: dict[str, Any], say: Say
) -> None:
    make_folders(aside)
    reports = []
    rows, told = 0, time.monotonic()
    for report in run(ShardWriter(plan.parts, aside, request.tokenisation), total):
        refuse_hopeless(plan.parts[report.part], report, request.max_bad_rows)
        reports.append(report)
        rows += report.rows
        if time.monotonic() - told > _TELL_SECONDS:
            say(f"{name}: {rows:,} rows")
            told = time.monotonic()
    reports.sort(key=lambda report: report.stem)
    sides, late = assemble(aside, reports)
    files, entries = accounts_of(plan.parts, reports, late)
    QuarantineReport(tuple(entries)).write(aside)
    shutil.rmtree(aside / WORK)
    meta |= {
        "version": VERSION,
        "name": name,
        "format": plan.format,
        "tokenisation": request.tokenisation.digest if request.tokenisation else None,
        "files": files,
        "sides": {side: _told(found) for side, found in sides.items()},
    }
    check_files(files, request.max_bad_rows, request.splits)
    for side, what in ((DOCUMENTS, "document"), (QUERIES, "query")):
        if not len(sides[side].live):
            raise DataError(f"no {what} in it", meta["source"], "give a data set with documents and queries")


def _cached(place: Path, key: str, say: Say) -> DatasetMeta | None:
    """What the cache has, undamaged; an entry without a manifest, or a damaged one, is made again."""
    try:
        found = prepared_meta(place)
        if found is not None and found["key"] == key:
            check_directory(place)
            return found
    except StorageError as damage:
        say(f"{damage.where}: {damage.what}; preparing again")
        return None
    if place.exists():
        say(f"{place}: has no manifest of a prepared data set; preparing again")
    return None


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _told(side: SideFound) -> dict[str, Any]:
    return {
        "rows": side.rows,
        "live": len(side.live),
        "digest": side.digest,
        "repeated": side.repeated,
        "same_text": side.same_text,
    }


TRIES = 3


def in_processes(writer: ShardWriter, total_bytes: int) -> Iterator[ShardReport]:
    """The runner of the jobs for small data sets; reports come in the order in which shards are done.

    Raises:
        DataError: a file is broken, or `TRIES` times processes died with one chunk at hand.
    """
    size = chunk_bytes(total_bytes)
    chunks = (chunk for index, part in enumerate(writer.parts) for chunk in read_chunks(part, index, size))
    workers = len(os.sched_getaffinity(0))
    losses: Counter[tuple[int, int]] = Counter()
    lost: list[Chunk] = []
    while True:
        with _pool(writer, workers) as pool:
            waiting: dict[Future[ShardReport], Chunk] = {}
            try:
                while True:
                    while len(waiting) < 2 * workers and (chunk := lost.pop() if lost else next(chunks, None)):
                        with _without_main():
                            waiting[pool.submit(_write, chunk)] = chunk
                    if not waiting:
                        return
                    for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                        report = done.result()
                        del waiting[done]
                        yield report
            except BrokenProcessPool:
                # The pool is gone with all it had at hand; each chunk but the one that did it is as good as new.
                lost += waiting.values()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        for chunk in lost:
            losses[chunk.part, chunk.number] += 1
            if losses[chunk.part, chunk.number] == TRIES:
                where = f"{writer.parts[chunk.part].where} row {chunk.first_row}"
                raise DataError(f"{TRIES} processes died over it or beside it", where, "free memory, or mend the rows")


def _pool(writer: ShardWriter, workers: int) -> ProcessPoolExecutor:
    # Forked from a server that holds nothing: this process may have threads, and spawning is slow.
    context = get_context("forkserver")
    context.set_forkserver_preload(["raytriever.data.prepare.shards"])
    return ProcessPoolExecutor(workers, context, _begin, (writer,))


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module while a process starts.

    A process of `multiprocessing` runs the main module again. A user's script without `if __name__ == "__main__"` would
    prepare the data set again in each process, and wait for itself forever.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_writers: list[ShardWriter] = []


def _begin(writer: ShardWriter) -> None:
    end_with_parent()
    # Ctrl-C is the parent's to deal with; and every core has a process, so a tokenizer needs no threads of its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = "1"
    _writers.append(writer)


def _write(chunk: Chunk) -> ShardReport:
    return _writers[0](chunk)
