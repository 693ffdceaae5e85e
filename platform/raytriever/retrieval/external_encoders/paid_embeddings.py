"""Store of paid embeddings: an SQLite database with the embeddings of one model of one service. Rows are never removed.

A row is found by the hash of its text. The row is on disk before its embedding is used. So if the process is killed,
only the requests in flight are lost. Several processes may add rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypedDict

import numpy as np
from jaxtyping import Bool, Float32
from numpy import ndarray

from raytriever.core.errors import StorageError, disk_errors
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import write_atomically

_ABOUT, _TEXTS = "about.json", "texts.sqlite"
_COLUMNS = "key BLOB PRIMARY KEY, tokens INTEGER, bytes INTEGER, embedding BLOB"
_SECONDS = 120.0  # longest wait for another process that adds rows
_REMEDY = "remove the folder; its texts must then be paid for again"


class PaidModel(TypedDict):
    """Description of a model: its service, the dimension of its embeddings, and the length of the first one."""

    base_url: str
    model: str
    dim: int
    length: float


class PaidEmbeddings:
    """Paid embeddings in a folder. `about` is None before the first `begin`. Any thread may call the methods."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: PaidModel | None = None
        self.tokens = self.bytes = 0  # totals over all rows
        if (folder / _ABOUT).exists():
            self.about = read_json(folder / _ABOUT, PaidModel, _REMEDY)
            with self._database() as database:
                query = "SELECT ifnull(sum(tokens), 0), ifnull(sum(bytes), 0) FROM texts"
                self.tokens, self.bytes = database.execute(query).fetchone()

    def begin(self, about: PaidModel) -> None:
        """Create the folder, and describe the model in it."""
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / _ABOUT, json.dumps(about, indent=1))
        self.about = about

    def find(self, keys: Sequence[bytes]) -> tuple[Float32[ndarray, "texts dim"], Bool[ndarray, " texts"], int]:
        """Return embeddings (zeros if missing), a mask of the texts that have one, and their tokens in total."""
        assert self.about is not None
        embeddings = np.zeros((len(keys), self.about["dim"]), np.float32)
        is_found, tokens = np.zeros(len(keys), bool), 0
        with self._database() as database:
            for number, key in enumerate(keys):
                if row := database.execute("SELECT embedding, tokens FROM texts WHERE key = ?", [key]).fetchone():
                    embeddings[number], is_found[number] = np.frombuffer(row[0], "<f4"), True
                    tokens += row[1]
        return embeddings, is_found, tokens

    def put(
        self,
        keys: Sequence[bytes],
        embeddings: Float32[ndarray, "texts dim"],
        tokens: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        """Store embeddings, with the number of tokens and bytes of their texts. Return when they are on disk."""
        rows = zip(keys, tokens, sizes, [row.tobytes() for row in embeddings.astype("<f4")], strict=True)
        with self._database() as database:
            database.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)", rows)
        self.tokens, self.bytes = self.tokens + sum(tokens), self.bytes + sum(sizes)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Open the database for a transaction. At the end of the block, its changes are on disk."""
        try:
            with closing(sqlite3.connect(self.folder / _TEXTS, timeout=_SECONDS)) as database, database:
                database.execute(f"CREATE TABLE IF NOT EXISTS texts ({_COLUMNS})")
                yield database
        except sqlite3.Error as error:
            remedy = "free some disk space" if "full" in str(error) else _REMEDY
            raise StorageError(f"cannot be used ({error})", str(self.folder / _TEXTS), remedy) from error
