"""Shard writer: checks, tokenises and writes one chunk of rows as one shard, with a report of a few bytes.

1. The rows are parsed. Each bad row is quarantined alone, with its number and reason.
2. Texts go to Arrow files, tokens to flat arrays next to them, ids and contents as keys to a work folder, from which
   `assemble` computes positions when every shard exists.
3. A shard is a part (`store.parts`) of an unfinished preparation:

       PARTS/key     what decides all shards, and their numbers
       PARTS/STEM/   files of a finished shard, in the folders in which the data set has them

   A killed preparation leaves its hidden directory. The next preparation of the same key goes on in it. A process that
   outlived the killed command cannot write there, because the directory has another name then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.columns import FILE, PROMPTS, write_some, write_table
from raytriever.data.dataset import joined
from raytriever.data.formats.chunks import FileChunk, Parsed, last_row, parse_chunk
from raytriever.data.formats.plan import Part
from raytriever.data.keys import Forms, forms_of, key_of, keys_of
from raytriever.data.prepare.prepared import DOCUMENTS, JUDGEMENTS, NEGATIVES, QUERIES, SIDES
from raytriever.data.prepare.tokenisation import Tokenisation, flat
from raytriever.data.records import ORIGINS, SOURCES, bad_entry
from raytriever.errors import DataError
from raytriever.processes import TRIES
from raytriever.prompts import TITLE, fill_title
from raytriever.reading.structured import conform
from raytriever.store.commit import leftovers, write_atomically
from raytriever.store.disk import disk_errors
from raytriever.store.parts import Parts

# Bytes by bytes of uncompressed source; texts include keys and judgements.
_SHARE_OF_TEXTS, _SHARE_OF_TOKENS, _EXPANSION = 1.6, 1.0, 4
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".parquet")
PARTS, WORK = "parts", "work"


@dataclass
class Side:
    """Documents or queries of a chunk; each pair of id and content occurs once."""

    columns: dict[str, list[str]]
    texts: list[str]
    prompt: str
    rows: Int64[ndarray, " texts"]
    keys: list[bytes]
    contents: list[bytes]
    forms: Forms
    kept: list[int] = field(default_factory=list)
    repeated: int = 0

    def __post_init__(self) -> None:
        seen: set[tuple[bytes, bytes]] = set()
        for index, row in enumerate(zip(self.keys, self.contents, strict=True)):
            if row not in seen:
                seen.add(row)
                self.kept.append(index)
        self.repeated = len(self.keys) - len(self.kept)

    @classmethod
    def of_documents(cls, parsed: Parsed, tokenisation: Tokenisation | None) -> Side:
        """Return the documents of a chunk; the tokenizer reads title and text joined, or the prompt with the title."""
        rows = parsed.records.documents
        ids, titles, texts = [list(column) for column in zip(*rows, strict=True)] if rows else ([], [], [])
        passages = list(map(joined, titles, texts))
        prompt, tokenised = tokenisation.passage_prompt if tokenisation else "", passages
        if TITLE in prompt:
            tokenised = [fill_title(prompt, title) + text for title, text in zip(titles, texts, strict=True)]
            prompt = ""
        return cls(
            {"id": ids, "title": titles, "text": texts},
            tokenised,
            prompt,
            parsed.rows_of("documents"),
            [key_of(name) for name in ids],
            [key_of(title, text) for title, text in zip(titles, texts, strict=True)],
            forms_of(passages),
        )

    @classmethod
    def of_queries(cls, parsed: Parsed, tokenisation: Tokenisation | None) -> Side:
        """Return the queries of a chunk; a prompt of the row replaces that of the data set."""
        rows = parsed.records.queries
        ids, texts, prompts = [list(column) for column in zip(*rows, strict=True)] if rows else ([], [], [])
        default = tokenisation.query_prompt if tokenisation else ""
        return cls(
            {"id": ids, "text": texts},
            [(prompt or default) + text for prompt, text in zip(prompts, texts, strict=True)] if tokenisation else [],
            "",
            parsed.rows_of("queries"),
            [key_of(name) for name in ids],
            [key_of(prompt, text) if prompt else key_of(text) for prompt, text in zip(prompts, texts, strict=True)],
            forms_of(texts),
        )

    def write(self, folder: Path, stem: str, tokenisation: Tokenisation | None) -> dict[int, str]:
        """Write texts and tokens; return the reasons by row for texts that cannot be tokenized, which are left out."""
        reasons: dict[int, str] = {}
        token_ids: Sequence[list[int]] = []
        if tokenisation and self.kept:
            tokens, errors = _tokenise(tokenisation, self.prompt, [self.texts[i] for i in self.kept])
            reasons = {int(self.rows[self.kept[index]]): reason for index, reason in errors.items()}
            self.kept = [row for index, row in enumerate(self.kept) if index not in errors]
            token_ids = [ids for index, ids in enumerate(tokens) if index not in errors]
        if not self.kept:
            return reasons
        columns = {name: [column[index] for index in self.kept] for name, column in self.columns.items()}
        _write_texts(folder / f"{stem}.arrow", columns)
        if tokenisation:
            ids, offsets = flat(token_ids, tokenisation.dtype)
            np.save(folder / f"{stem}.tokens.npy", ids)
            np.save(folder / f"{stem}.offsets.npy", offsets)
        return reasons

    def write_keys(self, file: Path) -> None:
        """Write the keys of ids and contents, the forms of the texts, and the numbers of their rows."""
        np.savez(
            file,
            keys=keys_of(self.keys[i] for i in self.kept),
            contents=keys_of(self.contents[i] for i in self.kept),
            forms=self.forms[self.kept],
            rows=self.rows[self.kept],
            repeated=self.repeated,
        )


def _tokenise(tokenisation: Tokenisation, prompt: str, texts: list[str]) -> tuple[list[list[int]], dict[int, str]]:
    """Return the token ids of texts, and the reasons for those that cannot be tokenized, by the index of the text."""

    def encode(some: list[str]) -> list[list[int]] | BaseException:
        try:
            return tokenisation.encode(some, prompt)
        except BaseException as error:  # a panic of the tokenizer is no `Exception`
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return error

    if not isinstance(tokens := encode(texts), BaseException):
        return tokens, {}
    results = [encode([text]) for text in texts]
    errors = {index: result for index, result in enumerate(results) if isinstance(result, BaseException)}
    reasons = {
        index: f"cannot be tokenized ({type(error).__name__}: {str(error)[:120]})" for index, error in errors.items()
    }
    return [[] if isinstance(result, BaseException) else result[0] for result in results], reasons


def _write_pairs(folder: Path, stem: str, parsed: Parsed) -> None:
    """Write judgements and negatives: queries and documents by key for matching, and by id for messages."""
    for name, kinds in ((JUDGEMENTS, SOURCES), (NEGATIVES, ORIGINS)):
        pairs: Sequence[Any] = getattr(parsed.records, name)
        if not pairs:
            continue
        of_kind = [kinds.index(pair.source if name == JUDGEMENTS else pair.origin) for pair in pairs]
        np.savez(
            folder / f"{stem}.{name}.npz",
            queries=keys_of(key_of(pair.query) for pair in pairs),
            documents=keys_of(key_of(pair.document) for pair in pairs),
            scores=np.array([pair.score for pair in pairs]),
            ranks=np.array([pair.rank for pair in pairs], dtype=np.int64),
            kinds=np.array(of_kind, dtype=np.int64),
            splits=np.array([pair.split for pair in pairs] if name == JUDGEMENTS else [], dtype=np.str_),
            rows=parsed.rows_of("judgements" if name == JUDGEMENTS else "negatives"),
        )
        ids = {"query": [pair.query for pair in pairs], "document": [pair.document for pair in pairs]}
        _write_texts(folder / f"{stem}.{name}.arrow", ids)


def _write_texts(file: Path, columns: dict[str, list[str]]) -> None:
    import pyarrow as pa

    write_table(file, {name: pa.array(column, pa.large_string()) for name, column in columns.items()})


def bytes_of_shards(files: Iterable[tuple[str, int]], tokens: bool) -> int:
    """Estimate the bytes that a preparation of files, given by path and size, writes, temporary files included."""
    texts = sum(size * (_EXPANSION if where.endswith(_COMPRESSED) else 1) for where, size in files)
    return int(texts * (_SHARE_OF_TEXTS + (_SHARE_OF_TOKENS if tokens else 0)))


@dataclass(frozen=True)
class ShardReport:
    """Report of a shard.

    Args:
        part: index of the part of the data set.
        number: number of the chunk of the part, from 0.
        rows: number of rows read, bad ones included.
        bad: bad rows, from `records.bad_entry`.
    """

    part: int
    number: int
    rows: int
    bad: tuple[dict[str, Any], ...] = ()

    @property
    def stem(self) -> str:
        """Stem of the names of its files. Sorted by name, shards are in the order of the rows."""
        return f"{self.part:05d}-{self.number:06d}"


@dataclass(frozen=True)
class ShardWriter:
    """Writer of the shards of all parts, sent to the processes that write them.

    Args:
        folder: directory of the data set, which every process can write.
        tokenisation: tokenizer and prompts; None for texts without tokens.
    """

    parts: tuple[Part, ...]
    folder: Path
    tokenisation: Tokenisation | None

    def __call__(self, chunk: FileChunk) -> ShardReport:
        """Write the shard of a chunk, unless it is finished; raises `DataError` if its part is broken."""
        report, shards = ShardReport(chunk.part, chunk.number, rows=0), Parts(self.folder / PARTS, durable=False)
        if there := shards.read(report.stem, _read_report):
            return there
        meta: dict[str, Any] = {}

        def save(folder: Path) -> None:
            nonlocal report
            make_folders(folder)
            report = self.write(chunk, folder)
            meta.update(report=asdict(report))

        shards.write(report.stem, save, meta)
        return report

    def fatal(self, chunk: FileChunk) -> DataError:
        """Return the error of a chunk over which `TRIES` processes died."""
        part = self.parts[chunk.part]
        return DataError(
            f"{TRIES} processes died while they wrote these rows",
            f"{part.where}, rows {chunk.first_row:,} to {last_row(part, chunk):,}",
            "free memory, or correct the rows",
        )

    def write(self, chunk: FileChunk, folder: Path) -> ShardReport:
        """Write the shard of a chunk to a folder; raises `DataError` if its part is broken as a whole."""
        part, stem = self.parts[chunk.part], ShardReport(chunk.part, chunk.number, rows=0).stem
        parsed = parse_chunk(part, chunk)
        with disk_errors(self.folder):
            sides = self._sides_of(parsed)
            reasons: dict[int, str] = {}
            for name, side in sides.items():
                reasons |= side.write(folder / name, stem, self.tokenisation)
            self._write_work(folder / WORK, stem, parsed, sides)
        bad = tuple(bad_entry(part.where, row, reason, b"") for row, reason in reasons.items())
        return ShardReport(chunk.part, chunk.number, parsed.rows, (*parsed.bad, *bad))

    def _sides_of(self, parsed: Parsed) -> dict[str, Side]:
        """Return documents and queries of a chunk by the names of their folders."""
        return {
            DOCUMENTS: Side.of_documents(parsed, self.tokenisation),
            QUERIES: Side.of_queries(parsed, self.tokenisation),
        }

    def _write_work(self, folder: Path, stem: str, parsed: Parsed, sides: Mapping[str, Side]) -> None:
        """Write what `assemble` needs of a shard."""
        for name, side in sides.items():
            side.write_keys(folder / f"{stem}.{name}.npz")
        _write_pairs(folder, stem, parsed)
        write_some(folder, stem, FILE, parsed.records.answers)
        prompts = [(query.id, query.prompt) for query in parsed.records.queries if query.prompt]
        write_some(folder, stem, PROMPTS, prompts)


class _Meta(TypedDict):
    report: ShardReport


def _read_report(path: Path, meta: dict[str, Any]) -> ShardReport:
    """Return the report of a finished shard; raises `StorageError` for a damaged one."""
    return conform(meta, str(path), _Meta, "prepare the data set again")["report"]


def make_folders(folder: Path) -> None:
    """Make the folders that a writer writes to."""
    for name in (*SIDES, WORK):
        (folder / name).mkdir()


def find_unfinished(folder: Path, key: str) -> Path | None:
    """Return the hidden directory of a killed preparation of `folder` with this key, if there is one."""
    for leftover in leftovers(folder):
        with suppress(OSError, ValueError):
            if (leftover / PARTS / "key").read_text() == key:
                return leftover
    return None


def begin(folder: Path, key: str) -> int:
    """Make the folders of the shards; of a killed preparation, remove everything but the finished shards, and return
    their number."""
    with disk_errors(folder):
        for path in folder.iterdir():
            if path.name != PARTS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        make_folders(folder)
        (folder / PARTS).mkdir(exist_ok=True)
        write_atomically(folder / PARTS / "key", key)
        return sum(path.is_dir() and path.name[0] != "." for path in (folder / PARTS).iterdir())


def gather(folder: Path, reports: Iterable[ShardReport]) -> None:
    """Move the files of all shards to the folders of the data set."""
    with disk_errors(folder):
        for report in reports:
            for name in (*SIDES, WORK):
                for file in (folder / PARTS / report.stem / name).iterdir():
                    os.rename(file, folder / name / file.name)
        shutil.rmtree(folder / PARTS)
