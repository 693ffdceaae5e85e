"""Shard writer: checks, tokenises and writes one chunk of rows as one shard, with a report of a few bytes.

1. The rows are parsed. Each bad row is quarantined alone, with its number and reason.
2. Texts go to Arrow files, tokens to flat arrays next to them, ids and contents as keys to a work folder, from which
   `assemble` computes positions when every shard exists.
3. A process that dies over a chunk leaves a mark; the next process that gets the chunk searches for the text that
   caused it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.columns import FILE, PROMPTS, write_some, write_table
from raytriever.data.dataset import joined
from raytriever.data.formats.chunks import FileChunk, Parsed, parse_chunk
from raytriever.data.formats.plan import Part
from raytriever.data.keys import Forms, forms_of, key_of, keys_of
from raytriever.data.prepare.tokenisation import Tokenisation, flat, try_each
from raytriever.data.records import ORIGINS, SOURCES, bad_entry
from raytriever.prompts import TITLE, fill_title
from raytriever.store.commit import disk_errors

# Bytes by bytes of uncompressed source; texts include keys and judgements.
_SHARE_OF_TEXTS, _SHARE_OF_TOKENS, _EXPANSION = 1.6, 1.0, 4
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".parquet")
DOCUMENTS, QUERIES, WORK = "documents", "queries", "work"
SIDES = (DOCUMENTS, QUERIES)
JUDGEMENTS, NEGATIVES, ABSENT = "judgements", "negatives", "absent"
FORMS = "forms.npy"  # behind the name of documents or queries
# Columns of the Arrow files of documents, of queries, and of the ids of pairs, with their Arrow types.
DOCUMENT_COLUMNS, QUERY_COLUMNS, PAIR_COLUMNS = (
    dict.fromkeys(names, "large_string") for names in (("id", "title", "text"), ("id", "text"), ("query", "document"))
)
ABSENT_COLUMNS = {"query": "int64", "document": "large_string", "score": "int64"}


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

    def write(self, folder: Path, stem: str, tokenisation: Tokenisation | None, careful: bool) -> dict[int, str]:
        """Write texts and tokens; return the reasons by row for texts that cannot be tokenised, which are left out."""
        killers: dict[int, str] = {}
        token_ids: Sequence[list[int]] = []
        if tokenisation and self.kept:
            token_ids, reasons = _tokenise(tokenisation, self.prompt, [self.texts[i] for i in self.kept], careful)
            killers = {int(self.rows[self.kept[index]]): reason for index, reason in reasons.items()}
            self.kept = [row for index, row in enumerate(self.kept) if index not in reasons]
            token_ids = [ids for index, ids in enumerate(token_ids) if index not in reasons]
        if not self.kept:
            return killers
        columns = {name: [column[index] for index in self.kept] for name, column in self.columns.items()}
        _write_texts(folder / f"{stem}.arrow", columns)
        if tokenisation:
            ids, offsets = flat(token_ids, tokenisation.dtype)
            np.save(folder / f"{stem}.tokens.npy", ids)
            np.save(folder / f"{stem}.offsets.npy", offsets)
        return killers

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


def _tokenise(
    tokenisation: Tokenisation, prompt: str, texts: list[str], careful: bool
) -> tuple[Sequence[Any], dict[int, str]]:
    if not careful:
        try:
            return tokenisation.encode(texts, prompt), {}
        except BaseException as error:  # a panic of the tokenizer is no `Exception`
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
    return try_each(partial(tokenisation.encode, prompt=prompt), texts)


def write_pairs(folder: Path, stem: str, parsed: Parsed) -> None:
    """Write judgements and negatives: queries and documents by key for matching, and by id for messages."""
    judgements, negatives = parsed.records.judgements, parsed.records.negatives
    kinds, splits = [SOURCES.index(row.source) for row in judgements], [row.split for row in judgements]
    _write_pairs(folder / f"{stem}.{JUDGEMENTS}", judgements, parsed.rows_of("judgements"), kinds, splits)
    kinds = [ORIGINS.index(row.origin) for row in negatives]
    _write_pairs(folder / f"{stem}.{NEGATIVES}", negatives, parsed.rows_of("negatives"), kinds, [])


def _write_pairs(stem: Path, pairs: Sequence[Any], rows: ndarray, kinds: list[int], splits: list[str]) -> None:
    if not pairs:
        return
    np.savez(
        f"{stem}.npz",
        queries=keys_of(key_of(pair.query) for pair in pairs),
        documents=keys_of(key_of(pair.document) for pair in pairs),
        scores=np.array([pair.score for pair in pairs]),
        ranks=np.array([pair.rank for pair in pairs], dtype=np.int64),
        kinds=np.array(kinds, dtype=np.int64),
        splits=np.array(splits, dtype=np.str_),
        rows=rows,
    )
    ids = {"query": [pair.query for pair in pairs], "document": [pair.document for pair in pairs]}
    _write_texts(Path(f"{stem}.arrow"), ids)


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
        is_repeatable: whether it has one document from each row, and nothing else: its files depend on the bytes of the
            chunk alone, not on the number of its first row.
        digest: digest of a repeatable chunk, see `reuse`.
        is_copied: whether it was copied from an earlier preparation.
    """

    part: int
    number: int
    rows: int
    bad: tuple[dict[str, Any], ...] = ()
    is_repeatable: bool = False
    digest: str = ""
    is_copied: bool = False

    @property
    def stem(self) -> str:
        """Stem of the names of its files. Sorted by name, shards are in the order of the rows."""
        return f"{self.part:05d}-{self.number:06d}"


@dataclass(frozen=True)
class ShardWriter:
    """Writer of the shards of all parts to a folder that every process can write; sent to the worker processes."""

    parts: tuple[Part, ...]
    folder: Path
    tokenisation: Tokenisation | None

    def __call__(self, chunk: FileChunk) -> ShardReport:
        """Write the shard of a chunk to the directory of the data set; see `write`."""
        return self.write(chunk, self.folder)

    def write(self, chunk: FileChunk, folder: Path) -> ShardReport:
        """Write the shard of a chunk to a folder; raises `DataError` if its part is broken as a whole."""
        parsed = parse_chunk(self.parts[chunk.part], chunk)
        report = ShardReport(chunk.part, chunk.number, parsed.rows, tuple(parsed.bad))
        where = self.parts[chunk.part].where
        with disk_errors(self.folder):
            mark = self.folder / WORK / f"{report.stem}.begun"
            died_before = mark.exists()
            mark.touch()
            sides = self.sides_of(parsed)
            killers: dict[int, str] = {}
            for name, side in sides.items():
                killers |= side.write(folder / name, report.stem, self.tokenisation, died_before)
            self.write_work(folder / WORK, report.stem, parsed, sides)
            mark.unlink()
        bad = tuple(bad_entry(where, row, reason, b"") for row, reason in killers.items())
        return replace(report, bad=report.bad + bad, is_repeatable=_is_repeatable(chunk, parsed, sides[DOCUMENTS]))

    def sides_of(self, parsed: Parsed) -> dict[str, Side]:
        """Return documents and queries of a chunk by the names of their folders."""
        return {
            DOCUMENTS: Side.of_documents(parsed, self.tokenisation),
            QUERIES: Side.of_queries(parsed, self.tokenisation),
        }

    def write_work(self, folder: Path, stem: str, parsed: Parsed, sides: Mapping[str, Side]) -> None:
        """Write what `assemble` needs of a shard."""
        for name, side in sides.items():
            side.write_keys(folder / f"{stem}.{name}.npz")
        write_pairs(folder, stem, parsed)
        write_some(folder, stem, FILE, parsed.records.answers)
        prompts = [(query.id, query.prompt) for query in parsed.records.queries if query.prompt]
        write_some(folder, stem, PROMPTS, prompts)


def _is_repeatable(chunk: FileChunk, parsed: Parsed, documents: Side) -> bool:
    rows = np.arange(chunk.first_row, chunk.first_row + parsed.rows)
    kept = documents.rows[documents.kept]
    has_others = any(getattr(parsed.records, name) for name in ("queries", "judgements", "negatives", "answers"))
    return len(rows) > 0 and np.array_equal(kept, rows) and not has_others


def make_folders(folder: Path) -> None:
    """Make the folders that a writer writes to."""
    for name in (*SIDES, WORK):
        (folder / name).mkdir()
