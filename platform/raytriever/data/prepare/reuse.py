"""Shards that are not made again: those of a killed preparation, and those of the same chunks of earlier data sets.

    PARTS/key     what decides all shards, and their numbers
    PARTS/STEM/   files of a finished shard, in the folders in which the data set has them; see `store.parts`

A killed preparation leaves its hidden directory. The next preparation of the same key goes on in it. A process that
outlived the killed command cannot write there, because the directory has another name then.

After a change of a corpus only the chunks with a changed row are parsed and tokenised again, because most chunks are
cut at the same rows as before (`rows.read_lines`). The digest of a chunk covers its bytes and everything else that
decides its shard. Only shards of nothing but documents are copied, one from each row: those of a corpus. The earlier
data sets are those in the cache and those that `prepare` wrote elsewhere (`store.cache.record_location`). A damaged
file is not used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from raytriever.activity import activity
from raytriever.data.columns import PREPARE_AGAIN
from raytriever.data.formats.chunks import FileChunk, Parsed
from raytriever.data.formats.plan import Part
from raytriever.data.prepare.prepared import prepared_meta
from raytriever.data.prepare.shards import (
    DOCUMENT_COLUMNS,
    DOCUMENTS,
    SIDES,
    WORK,
    ShardReport,
    ShardWriter,
    make_folders,
)
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.data.records import Document, Records
from raytriever.errors import StorageError
from raytriever.reading.arrays import read_arrow
from raytriever.reading.structured import conform
from raytriever.store.cache import recorded_locations
from raytriever.store.commit import cache_folder, disk_errors, leftovers, read_manifest, sha256_of, write_atomically
from raytriever.store.parts import Parts

# Endings of the files of a shard: texts, tokens, and where the tokens of each text begin.
_ENDINGS = (".arrow", ".tokens.npy", ".offsets.npy")
_STEM = re.compile(r"\d{5}-\d{6}")


def settings_digest(reads: object, format: str, tokenisation: Tokenisation | None) -> str:
    """Return the SHA-256 over what decides all shards of a data set besides its files.

    Args:
        reads: version of what is read from files and written to shards.
        format: name of the format.
        tokenisation: tokenizer and prompts, if texts are tokenised.
    """
    decides = [reads, format, tokenisation.digest if tokenisation else None]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def chunk_digest(settings: str, part: Part, chunk: FileChunk) -> str:
    """Return the BLAKE2b over everything that decides the shard of a chunk.

    Args:
        settings: `settings_digest` of the data set.
        part: file of the chunk. Its parser is a dataclass, whose text form has its settings.
        chunk: the chunk.
    """
    state = hashlib.blake2b(json.dumps([settings, part.kind, repr(part.parse), part.header]).encode(), digest_size=16)
    state.update(chunk.payload)
    return state.hexdigest()


@dataclass(frozen=True)
class EarlierShards:
    """Shards of earlier preparations; sent to the processes that write shards.

    Args:
        stems: for the digest of a chunk, the folder of documents and the stem of the shard's files.
        digests: SHA-256 of the files, by path.
    """

    stems: Mapping[str, tuple[Path, str]]
    digests: Mapping[Path, str]

    def copy(self, digest: str, folder: Path, stem: str) -> bool:
        """Copy the files of the shard of a chunk; return False if there is none that is whole.

        Args:
            digest: digest of the chunk.
            folder: folder of the new shards.
            stem: stem of the new files.
        """
        if digest not in self.stems:
            return False
        earlier, earlier_stem = self.stems[digest]
        for ending in _ENDINGS:
            source, target = earlier / f"{earlier_stem}{ending}", folder / f"{stem}{ending}"
            if source not in self.digests:  # there are no tokens
                continue
            with suppress(OSError):  # removed meanwhile, or of another user
                shutil.copyfile(source, target)
                if sha256_of(target) == self.digests[source]:
                    continue
            for written in _ENDINGS:
                (folder / f"{stem}{written}").unlink(missing_ok=True)
            return False
        return True


@dataclass(frozen=True)
class ReusingShardWriter(ShardWriter):
    """Shard writer that copies what earlier preparations have.

    Args:
        settings: `settings_digest` of the data set.
        earlier: shards of earlier preparations.
    """

    settings: str
    earlier: EarlierShards

    def __call__(self, chunk: FileChunk) -> ShardReport:
        """Copy or write the shard of a chunk, unless it is finished; raises `DataError` if its part is broken."""
        report, shards = ShardReport(chunk.part, chunk.number, rows=0), shards_of(self.folder)
        if there := shards.read(report.stem, read_report):
            return there
        meta: dict[str, Any] = {}

        def save(folder: Path) -> None:
            nonlocal report
            make_folders(folder)
            report = self._copy_or_write(chunk, report, folder)
            meta.update(meta_of(report))

        shards.write(report.stem, save, meta)
        return report

    def _copy_or_write(self, chunk: FileChunk, report: ShardReport, folder: Path) -> ShardReport:
        digest = chunk_digest(self.settings, self.parts[chunk.part], chunk)
        if self.earlier.copy(digest, folder / DOCUMENTS, report.stem):
            rows = self._write_keys(folder, report.stem, chunk.first_row)
            return replace(report, rows=rows, digest=digest, is_copied=True)
        report = self.write(chunk, folder)
        return replace(report, digest=digest) if report.is_repeatable else report

    def _write_keys(self, folder: Path, stem: str, first_row: int) -> int:
        """Write what `assemble` needs of a copied shard; return the number of its rows."""
        table = read_arrow(folder / DOCUMENTS / f"{stem}.arrow", DOCUMENT_COLUMNS, PREPARE_AGAIN)
        columns = [table[name].to_pylist() for name in DOCUMENT_COLUMNS]
        documents = [Document(*row) for row in zip(*columns, strict=True)]
        marks = [(row, count, 0, 0, 0) for count, row in enumerate(range(first_row, first_row + len(documents)), 1)]
        parsed = Parsed(Records(documents), [], len(documents), marks)
        self.write_work(folder / WORK, stem, parsed, self.sides_of(parsed))
        return parsed.rows


@activity("looking for shards of the same chunks")
def find_earlier(output: Path) -> EarlierShards:
    """Find the shards of earlier preparations, of any data set.

    Args:
        output: directory that will be written, and may hold an earlier version of the data set.
    """
    stems: dict[str, tuple[Path, str]] = {}
    digests: dict[Path, str] = {}
    for folder in (output, *(cache_folder() / "datasets").glob("*"), *recorded_locations()):
        with suppress(OSError, StorageError):
            meta = prepared_meta(folder)
            if meta is None or "chunks" not in meta:  # made by an earlier version
                continue
            files = read_manifest(folder, verify=None)["files"]
            for stem, digest in meta["chunks"].items():
                is_there = _STEM.fullmatch(stem) and f"{DOCUMENTS}/{stem}{_ENDINGS[0]}" in files
                if is_there and digest not in stems:
                    stems[digest] = folder / DOCUMENTS, stem
                    for ending in _ENDINGS:
                        if entry := files.get(f"{DOCUMENTS}/{stem}{ending}"):
                            digests[folder / DOCUMENTS / f"{stem}{ending}"] = entry["sha256"]
    return EarlierShards(stems, digests)


PARTS, _KEY = "parts", "key"


class _Meta(TypedDict):
    report: ShardReport


def find_unfinished(folder: Path, key: str) -> Path | None:
    """Return the hidden directory of a killed preparation of `folder` with this key, if there is one."""
    for leftover in leftovers(folder):
        with suppress(OSError, ValueError):
            if (leftover / PARTS / _KEY).read_text() == key:
                return leftover
    return None


def begin(folder: Path, key: str) -> int:
    """Make the folders of the shards; of a killed preparation, remove everything but the finished shards.

    Returns:
        The number of finished shards.
    """
    with disk_errors(folder):
        for path in folder.iterdir():
            if path.name != PARTS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        make_folders(folder)
        (folder / PARTS).mkdir(exist_ok=True)
        write_atomically(folder / PARTS / _KEY, key)
        return sum(path.is_dir() and path.name[0] != "." for path in (folder / PARTS).iterdir())


def shards_of(folder: Path) -> Parts:
    """Return the finished shards of a preparation."""
    return Parts(folder / PARTS, durable=False)


def meta_of(report: ShardReport) -> dict[str, Any]:
    """Return the metadata of a finished shard."""
    return {"report": asdict(report)}


def read_report(path: Path, meta: dict[str, Any]) -> ShardReport:
    """Return the report of a finished shard; raises `StorageError` for that of another version."""
    return conform(meta, str(path), _Meta, "prepare the data set again")["report"]


def gather(folder: Path, reports: Iterable[ShardReport]) -> None:
    """Move the files of all shards to the folders of the data set."""
    with disk_errors(folder):
        for report in reports:
            for name in (*SIDES, WORK):
                for file in (folder / PARTS / report.stem / name).iterdir():
                    os.rename(file, folder / name / file.name)
        shutil.rmtree(folder / PARTS)
