"""Shard writer, which checks, tokenizes and writes a block of rows as one shard, and returns a small report.

1. The rows are parsed. Each bad row is quarantined, with its number and reason.
2. Texts are written to Arrow files, and tokens to flat arrays next to them, in the folders of the data set.
3. The file `work/STEM.npz` is written last, and marks the shard as finished. It has the report with the digests of the
   other files, and the hashes of ids and contents. When every shard exists, `assemble` computes positions from them.

Every file is written under a temporary name and then renamed. A killed preparation leaves its hidden directory. The
next preparation with the same key renames this directory and continues in it. So a process of the
killed preparation that is still running cannot write there."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.core.errors import DataError, StorageError, disk_errors
from raytriever.core.processes import TRIES
from raytriever.core.reading.arrays import read_arrays
from raytriever.core.reading.json_and_yaml import parse_json
from raytriever.core.store.commit import FileEntry, entry_of, leftovers, put_file
from raytriever.data.columns import FILE, PREPARE_AGAIN, PROMPTS, write_table
from raytriever.data.dataset import joined
from raytriever.data.formats.file_blocks import FileBlock, Parsed, last_row, parse_block
from raytriever.data.formats.plan import Part
from raytriever.data.hashed_ids import TextHashes, hash_texts, key_of, keys_of
from raytriever.data.prepare.corpus_tokenization import Tokenization, flat
from raytriever.data.prepare.prepared import DOCUMENTS, JUDGEMENTS, NEGATIVES, QUERIES, SIDES
from raytriever.data.records_and_bad_rows import ORIGINS, SOURCES, Judgement, Negative, bad_entry
from raytriever.models.prompts import TITLE, fill_title

# Estimates: bytes of texts (with keys and judgements) and bytes of tokens per byte of source; factor of decompression.
_FRACTION_OF_TEXTS, _FRACTION_OF_TOKENS, _EXPANSION = 1.6, 1.0, 4
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".parquet")
WORK, _KEY, _SUMMARY = "work", "key", "summary"


@dataclass(frozen=True)
class Side:
    """Documents or queries of a block: the stored columns; and, for each text, its row number, the key of its content,
    and the text that the tokenizer reads after `prompt`."""

    columns: Mapping[str, Sequence[str]]
    texts: Sequence[str]
    prompt: str
    rows: Int64[ndarray, " texts"]
    contents: Sequence[bytes]
    hashes: TextHashes

    @classmethod
    def of_documents(cls, parsed: Parsed, tokenization: Tokenization | None) -> Side:
        """Return the documents of a block. The tokenizer reads the title with the text, or within the prompt."""
        ids, titles, texts = _columns(parsed.records.documents, 3)
        passages = list(map(joined, titles, texts))
        prompt, read = tokenization.passage_prompt if tokenization else "", passages
        if TITLE in prompt:
            read = [fill_title(prompt, title) + text for title, text in zip(titles, texts, strict=True)]
            prompt = ""
        columns = {"id": ids, "title": titles, "text": texts}
        return cls(
            columns, read, prompt, parsed.rows_of("documents"), list(map(key_of, titles, texts)), hash_texts(passages)
        )

    @classmethod
    def of_queries(cls, parsed: Parsed, tokenization: Tokenization | None) -> Side:
        """Return the queries of a block. The prompt of a row replaces the prompt of the data set."""
        ids, texts, prompts = _columns(parsed.records.queries, 3)
        default = tokenization.query_prompt if tokenization else ""
        read = [(prompt or default) + text for prompt, text in zip(prompts, texts, strict=True)]
        contents = [
            key_of(prompt, text) if prompt else key_of(text) for prompt, text in zip(prompts, texts, strict=True)
        ]
        return cls({"id": ids, "text": texts}, read, "", parsed.rows_of("queries"), contents, hash_texts(texts))


def _columns(rows: Sequence[tuple[Any, ...]], count: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(count)]


def _tokenize(tokenization: Tokenization, prompt: str, texts: list[str]) -> tuple[list[list[int]], dict[int, str]]:
    def encode(some: list[str]) -> list[list[int]] | BaseException:
        try:
            return tokenization.encode(some, prompt)
        except BaseException as error:  # a panic of the Rust tokenizer is not an `Exception`
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


def _pairs(
    name: str, pairs: Sequence[Judgement] | Sequence[Negative], kinds: list[int], splits: list[str], rows: ndarray
) -> dict[str, ndarray]:
    """Return judgements or negatives as arrays; queries and documents as keys for matching, and as ids for messages."""
    arrays = {
        "queries": keys_of(key_of(pair.query) for pair in pairs),
        "documents": keys_of(key_of(pair.document) for pair in pairs),
        "scores": np.array([pair.score for pair in pairs]),
        "ranks": np.array([pair.rank for pair in pairs], np.int64),
        "kinds": np.array(kinds, np.int64),
        "splits": np.array(splits, np.str_),
        "rows": rows,
        **_packed("query", [pair.query for pair in pairs]),
        **_packed("document", [pair.document for pair in pairs]),
    }
    return {f"{name}.{column}": values for column, values in arrays.items()}


def _packed(name: str, texts: Iterable[str]) -> dict[str, ndarray]:
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return {f"{name}.bytes": np.frombuffer(b"".join(encoded), np.uint8), f"{name}.offsets": offsets}


def texts_of(arrays: Mapping[str, ndarray], name: str) -> Any:
    """Return the texts that `_packed` has stored in arrays, as an Arrow array."""
    import pyarrow as pa

    offsets = arrays[f"{name}.offsets"]
    return pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(arrays[f"{name}.bytes"])
    )


def bytes_of_shards(files: Iterable[tuple[str, int]], tokens: bool) -> int:
    """Estimate how many bytes a preparation writes, with temporary files. `files` has each file's path and size."""
    texts = sum(size * (_EXPANSION if where.endswith(_COMPRESSED) else 1) for where, size in files)
    return int(texts * (_FRACTION_OF_TEXTS + (_FRACTION_OF_TOKENS if tokens else 0)))


@dataclass(frozen=True)
class ShardSummary:
    """Summary of a shard."""

    part: int
    number: int  # number of the block within the part, from 0
    rows: int  # number of rows that were read, including bad rows
    bad: tuple[dict[str, Any], ...] = ()  # bad rows, made by `bad_entry`
    # Size and digest of each file, by its name in the data set.
    files: dict[str, FileEntry] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Stem of the shard's file names. Sorted by stem, shards are in the order of the rows."""
        return f"{self.part:05d}-{self.number:06d}"


@dataclass(frozen=True)
class ShardWriter:
    """Writer of shards. It is sent to every process that writes shards."""

    parts: tuple[Part, ...]
    folder: Path  # directory of the data set, to which every process can write
    tokenization: Tokenization | None  # tokenizer and prompts; None to write texts without tokens

    def __call__(self, block: FileBlock) -> ShardSummary:
        """Write the shard of a block, unless the shard is already finished. Raise `DataError` if the file is broken."""
        stem = ShardSummary(block.part, block.number, 0).stem
        with disk_errors(self.folder):
            return self._finished(stem) or self._write(block, stem)

    def fatal(self, block: FileBlock) -> DataError:
        """Return the error for a block on which `TRIES` processes died."""
        part = self.parts[block.part]
        where = f"{part.where}, rows {block.first_row:,} to {last_row(part, block):,}"
        what = f"{TRIES} processes died while they wrote these rows"
        return DataError(what, where, "free memory, or correct the rows")

    def _finished(self, stem: str) -> ShardSummary | None:
        file = self.folder / WORK / f"{stem}.npz"
        with suppress(FileNotFoundError, StorageError, BadZipFile, RuntimeError, EOFError, zlib.error):
            with ZipFile(file) as archive:
                if archive.testzip() is not None:
                    return None
            [text] = read_arrays(file, {_SUMMARY: (["uint8"], (None,))}, PREPARE_AGAIN).values()
            summary = parse_json(text.tobytes(), str(file), ShardSummary, PREPARE_AGAIN)
            if all(entry_of(self.folder / name) == entry for name, entry in summary.files.items()):
                return summary
        return None

    def _write(self, block: FileBlock, stem: str) -> ShardSummary:
        part = self.parts[block.part]
        parsed = parse_block(part, block)
        records, bad, files, arrays = parsed.records, [*parsed.bad], dict[str, FileEntry](), dict[str, ndarray]()
        for name, side in (
            (DOCUMENTS, Side.of_documents(parsed, self.tokenization)),
            (QUERIES, Side.of_queries(parsed, self.tokenization)),
        ):
            reasons, entries, keys = self._write_side(f"{name}/{stem}", side)
            bad += [bad_entry(part.where, row, reason, b"") for row, reason in reasons.items()]
            files |= entries
            arrays |= {f"{name}.{column}": values for column, values in keys.items()}
        judgements, negatives = records.judgements, records.negatives
        kinds, splits = [SOURCES.index(pair.source) for pair in judgements], [pair.split for pair in judgements]
        arrays |= _pairs(JUDGEMENTS, judgements, kinds, splits, parsed.rows_of("judgements"))
        kinds = [ORIGINS.index(pair.origin) for pair in negatives]
        arrays |= _pairs(NEGATIVES, negatives, kinds, [], parsed.rows_of("negatives"))
        prompts = [(query.id, query.prompt) for query in records.queries if query.prompt]
        for name, texts in ((FILE, records.answers), (PROMPTS, prompts)):
            arrays[f"{name}.queries"] = keys_of(key_of(query) for query, _ in texts)
            arrays |= _packed(f"{name}.text", [text for _, text in texts])
        summary = ShardSummary(block.part, block.number, parsed.rows, tuple(bad), files)
        arrays[_SUMMARY] = np.frombuffer(json.dumps(asdict(summary)).encode(), np.uint8)
        self._put(f"{WORK}/{stem}.npz", lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
        return summary

    def _write_side(self, stem: str, side: Side) -> tuple[dict[int, str], dict[str, FileEntry], dict[str, ndarray]]:
        """Write texts and tokens, only one time for equal ids and contents. Skip texts that cannot be tokenized.
        Return the reasons for skipped texts, by row; the entries of the files; and the keys for `assemble`."""
        import pyarrow as pa

        keys = list(map(key_of, side.columns["id"]))
        first: dict[tuple[bytes, bytes], int] = {}
        for index, pair in enumerate(zip(keys, side.contents, strict=True)):
            first.setdefault(pair, index)
        kept = list(first.values())
        reasons, entries = dict[int, str](), dict[str, FileEntry]()
        token_ids: Sequence[list[int]] = []
        if self.tokenization and kept:
            tokens, errors = _tokenize(self.tokenization, side.prompt, [side.texts[i] for i in kept])
            reasons = {int(side.rows[kept[index]]): reason for index, reason in errors.items()}
            kept = [row for index, row in enumerate(kept) if index not in errors]
            token_ids = [ids for index, ids in enumerate(tokens) if index not in errors]
        if kept:
            columns = {name: [column[index] for index in kept] for name, column in side.columns.items()}
            table = {name: pa.array(column, pa.large_string()) for name, column in columns.items()}
            entries[f"{stem}.arrow"] = entry_of(self._put(f"{stem}.arrow", lambda file: write_table(file, table)))
            if self.tokenization:
                ids, offsets = flat(token_ids, self.tokenization.dtype)
                for name, values in ((f"{stem}.tokens.npy", ids), (f"{stem}.offsets.npy", offsets)):
                    entries[name] = entry_of(self._put(name, partial(np.save, arr=values)))
        arrays = {
            "keys": keys_of(keys[i] for i in kept),
            "contents": keys_of(side.contents[i] for i in kept),
            "hashes": side.hashes[kept],
            "rows": side.rows[kept],
            "repeated": np.array(len(keys) - len(first)),
        }
        return reasons, entries, arrays

    def _put(self, name: str, save: Callable[[Path], object]) -> Path:
        return put_file(self.folder / name, self.folder / WORK, save)


def find_unfinished(folder: Path, key: str) -> Path | None:
    """Return the hidden directory that a killed preparation of `folder` with this key left; None if there is none."""
    for leftover in leftovers(folder):
        with suppress(OSError, ValueError):
            if (leftover / WORK / _KEY).read_text() == key:
                return leftover
    return None


def begin(folder: Path, key: str) -> int:
    """Make the folders for the shards. Return how many finished shards a killed preparation left."""
    for name in (*SIDES, WORK):
        (folder / name).mkdir(exist_ok=True)
    (folder / WORK / _KEY).write_text(key)
    return len(list((folder / WORK).glob("*-*.npz")))
