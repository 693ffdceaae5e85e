"""Records and bad rows. Rows of every format are converted to records: documents, queries, judged pairs, negatives.

The row parser of a format adds records to a `Records`. The records of a bad row are removed. Pairs refer to queries and
documents by id, in any file or row. The ids are replaced by positions after everything has been read.

A bad row is quarantined with its file, row number and reason. Too many of them stop the job. A few bad rows among
millions should not cost a night; a column that is wrong everywhere should not train."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from raytriever.core.errors import DataError, setting
from raytriever.core.reading.json_and_yaml import parse_json
from raytriever.core.store.commit import remove, write_atomically

SOURCES = ("human", "llm")
# Document id of a judgement which says that the corpus has no answer to the query. No real document has an empty id.
NO_ANSWER = ""
ORIGINS = ("gold", "bm25", "dense", "cross-query", "random")
RELEVANT_FROM = 0.5  # a label of at least this is relevant


class Document(NamedTuple):
    """One passage. Its title or its text may be empty, but not both."""

    id: str
    title: str
    text: str


class Query(NamedTuple):
    """One query. Its text is not empty. `prompt` is the prompt in its row; "" if there is none."""

    id: str
    text: str
    prompt: str = ""


class Judgement(NamedTuple):
    """Judged pair of a split.

    `score` is a grade, a whole number, relevant above 0; or a label between 0 and 1, relevant from 0.5. `source` is one
    of `SOURCES`. `rank` counts the positives of a query from 0, the most useful first; it is 0 for all positives if
    their order is unknown."""

    split: str
    query: str
    document: str
    score: float
    source: str = SOURCES[0]
    rank: int = 0


class Negative(NamedTuple):
    """Hard negative of a query. `origin` is one of `ORIGINS`. `rank` counts from 0, hardest first. `score` comes from
    the retriever or the teacher; it is NaN if the data set has none."""

    query: str
    document: str
    origin: str
    rank: int = 0
    score: float = math.nan


@dataclass(slots=True)
class Records:
    """Records of a block, in the order of the rows. An answer has the id of its query and a text."""

    documents: list[Document] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    negatives: list[Negative] = field(default_factory=list)
    answers: list[tuple[str, str]] = field(default_factory=list)


def content_id(*texts: str) -> str:
    """Return an id for a text without an id: 20 hexadecimal digits of its hash."""
    state = hashlib.blake2b(digest_size=10)
    for text in texts:
        raw = text.encode()
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()


QUARANTINE = "quarantine.jsonl"
UNKNOWN_DOCUMENT = "unknown document id"
_RAW_BYTES = 200  # maximum bytes of a bad row in the report; the rest is cut off


class BadEntry(TypedDict):
    """Bad row in the form of `quarantine.jsonl`."""

    file: str
    row: int
    reason: str
    raw: str


class BadRow(ValueError):
    """A row cannot be used. The reader that knows the row's number catches this error."""


@dataclass(frozen=True)
class Quarantine:
    """Bad rows of a data set, each `{"file", "row", "reason", "raw"}`, and the path of the file that lists them."""

    entries: tuple[Mapping[str, Any], ...] = ()
    path: Path | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Number of bad rows, by file."""
        return dict(Counter(entry["file"] for entry in self.entries))

    @property
    def total(self) -> int:
        """Number of bad rows in all files together."""
        return len(self.entries)

    @classmethod
    def read(cls, folder: Path | str) -> Quarantine:
        """Read the report that `write` wrote. Without a file, it is empty. Raise `StorageError` for a damaged file."""
        path = Path(folder) / QUARANTINE
        if not path.exists():
            return cls()
        rows = path.read_bytes().split(b"\n")
        remedy = "make the directory again"
        entries = [
            parse_json(row, f"{path} line {number}", BadEntry, remedy) for number, row in enumerate(rows, 1) if row
        ]
        return cls(tuple(entries), path)

    def without(self, files: Set[str]) -> Quarantine:
        """Return the report without the rows of these files."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry["file"] not in files))

    def write(self, folder: Path | str) -> Quarantine:
        """Write the rows to `folder/quarantine.jsonl`. If there are no rows, remove an earlier file. Return the report
        with the path of the file."""
        path = Path(folder) / QUARANTINE
        if not self.entries:
            remove(path)
            return replace(self, path=None)
        write_atomically(path, "".join(json.dumps(dict(entry), ensure_ascii=False) + "\n" for entry in self.entries))
        return replace(self, path=path)

    def __str__(self) -> str:
        if not self.entries:
            return "no bad rows"
        files = ", ".join(f"{count} in {file}" for file, count in self.counts.items())
        rows = "row was" if self.total == 1 else "rows were"
        return f"{self.total} bad {rows} left out ({files})" + (f": see {self.path}" if self.path else "")


def bad_entry(where: str, row: int, reason: str, raw: bytes) -> dict[str, Any]:
    """Return a bad row in the form of `quarantine.jsonl`: `row` counts from 1, `raw` is cut to 200 bytes."""
    return {"file": where, "row": row, "reason": reason, "raw": raw[:_RAW_BYTES].decode(errors="replace")}


def check_fraction(where: str, rows: int, bad: int, first: Mapping[str, Any] | None, max_fraction: float) -> None:
    """Check the fraction of bad rows of a file that was read to its end.

    `first` is the first bad row. `max_fraction` is 0 to 1; the allowed number of bad rows is rounded up. Unless
    `max_fraction` is 1, at least one row of the file must be good. Raise `DataError` if too many rows are bad."""
    # Round up: in a small file, one bad row is more than 1 % of the rows, but no reason to refuse the others.
    if first is None or (bad <= math.ceil(max_fraction * rows) and (bad < rows or max_fraction == 1)):
        return
    if str(first["reason"]).startswith(UNKNOWN_DOCUMENT) and bad > rows / 2:
        raise DataError(
            f"the judgements seem to belong to another corpus: {bad} of {rows} rows are bad, the first "
            f"for an {first['reason']}",
            where=f"{where} row {first['row']}",
            remedy="give the corpus that was judged",
        )
    raise DataError(
        f"{first['reason']}; {bad} of {rows} rows {'is' if bad == 1 else 'are'} bad ({bad / rows:.2%}), more "
        f"than the {max_fraction * 100:g} % allowed by {setting('max_bad_rows')}",
        where=f"{where} row {first['row']}",
        remedy=f"correct the rows, or raise {setting('max_bad_rows')}",
    )
