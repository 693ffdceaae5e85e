"""The files of one shard: texts and tokens for good, keys and pairs for as long as positions are being made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.careful import try_each
from raytriever.data.chunks import Parsed
from raytriever.data.keys import key_of, keys_of
from raytriever.data.records import ORIGINS, SOURCES, joined
from raytriever.data.tokenise import Tokenisation, flat

JUDGEMENTS, NEGATIVES, ABSENT = "judgements", "negatives", "absent"
# The columns of an Arrow file of documents, of queries, and of the ids of pairs, with Arrow's type of each.
DOCUMENT_COLUMNS, QUERY_COLUMNS, PAIR_COLUMNS = (
    dict.fromkeys(names, "large_string") for names in (("id", "title", "text"), ("id", "text"), ("query", "document"))
)
ABSENT_COLUMNS = {"query": "int64", "document": "large_string", "score": "int64"}


@dataclass
class Side:
    """The documents or the queries of a chunk, each id with one content once."""

    columns: dict[str, list[str]]
    texts: list[str]
    prefix: str
    rows: Int64[ndarray, " texts"]
    keys: list[bytes]
    contents: list[bytes]
    kept: list[int] = field(default_factory=list)
    repeated: int = 0

    def __post_init__(self) -> None:
        seen: set[tuple[bytes, bytes]] = set()
        for place, row in enumerate(zip(self.keys, self.contents, strict=True)):
            if row not in seen:
                seen.add(row)
                self.kept.append(place)
        self.repeated = len(self.keys) - len(self.kept)

    @classmethod
    def of_documents(cls, parsed: Parsed, tokenisation: Tokenisation | None) -> Side:
        """The documents of a chunk; their text for the tokenizer is title and text joined."""
        found = parsed.records.documents
        ids, titles, texts = [list(column) for column in zip(*found, strict=True)] if found else ([], [], [])
        return cls(
            {"id": ids, "title": titles, "text": texts},
            list(map(joined, titles, texts)) if tokenisation else [],
            tokenisation.passage_prefix if tokenisation else "",
            parsed.rows_of("documents"),
            [key_of(name) for name in ids],
            [key_of(title, text) for title, text in zip(titles, texts, strict=True)],
        )

    @classmethod
    def of_queries(cls, parsed: Parsed, tokenisation: Tokenisation | None) -> Side:
        """The queries of a chunk."""
        found = parsed.records.queries
        ids, texts = [list(column) for column in zip(*found, strict=True)] if found else ([], [])
        return cls(
            {"id": ids, "text": texts},
            texts if tokenisation else [],
            tokenisation.query_prefix if tokenisation else "",
            parsed.rows_of("queries"),
            [key_of(name) for name in ids],
            [key_of(text) for text in texts],
        )

    def write(self, folder: Path, stem: str, tokenisation: Tokenisation | None, careful: bool) -> dict[int, str]:
        """Texts and tokens to files; answers the rows whose texts cannot be tokenised, which are left out, and why."""
        killers: dict[int, str] = {}
        token_ids: Sequence[list[int]] = []
        if tokenisation and self.kept:
            token_ids, reasons = _tokenise(tokenisation, self.prefix, [self.texts[i] for i in self.kept], careful)
            killers = {int(self.rows[self.kept[place]]): reason for place, reason in reasons.items()}
            self.kept = [row for place, row in enumerate(self.kept) if place not in reasons]
            token_ids = [ids for place, ids in enumerate(token_ids) if place not in reasons]
        if not self.kept:
            return killers
        columns = {name: [column[place] for place in self.kept] for name, column in self.columns.items()}
        _write_texts(folder / f"{stem}.arrow", columns)
        if tokenisation:
            ids, offsets = flat(token_ids, tokenisation.dtype)
            np.save(folder / f"{stem}.tokens.npy", ids)
            np.save(folder / f"{stem}.offsets.npy", offsets)
        return killers

    def write_keys(self, file: Path) -> None:
        """Keys of ids and contents, and the numbers of the rows they came from."""
        np.savez(
            file,
            keys=keys_of(self.keys[i] for i in self.kept),
            contents=keys_of(self.contents[i] for i in self.kept),
            rows=self.rows[self.kept],
            repeated=self.repeated,
        )


def _tokenise(
    tokenisation: Tokenisation, prefix: str, texts: list[str], careful: bool
) -> tuple[Sequence[Any], dict[int, str]]:
    if not careful:
        try:
            return tokenisation.encode(texts, prefix), {}
        except BaseException as error:  # a panic of the tokenizer is no `Exception`
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
    return try_each(partial(tokenisation.encode, prefix=prefix), texts)


def write_pairs(folder: Path, stem: str, parsed: Parsed) -> None:
    """Judgements and negatives; their ends by key for matching, and by id for messages."""
    judgements, negatives = parsed.records.judgements, parsed.records.negatives
    _write_pairs(
        folder / f"{stem}.{JUDGEMENTS}",
        judgements,
        rows=parsed.rows_of("judgements"),
        kinds=[SOURCES.index(row.source) for row in judgements],
        splits=[row.split for row in judgements],
    )
    _write_pairs(
        folder / f"{stem}.{NEGATIVES}",
        negatives,
        rows=parsed.rows_of("negatives"),
        kinds=[ORIGINS.index(row.origin) for row in negatives],
        splits=[],
    )


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
    """Write columns of texts as one Arrow file."""
    write_table(file, pa.table({name: pa.array(column, pa.large_string()) for name, column in columns.items()}))


def write_table(file: Path, table: Any) -> None:
    """Write a table as one uncompressed Arrow file, which can be memory-mapped."""
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
