"""One chunk of rows becomes one shard: checked, tokenised, written, and told in a few bytes.

1. The rows are parsed; a bad one is put aside with its number and reason, alone.
2. Texts go to Arrow files, tokens to flat arrays beside them, ids and contents as keys to a work folder, from which
   `assemble` makes positions once every shard stands.
3. A process that dies over a chunk leaves a mark; whoever is given the chunk next looks for the text that did it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raytriever.data.answers import write_some
from raytriever.data.chunks import Chunk, parse_chunk
from raytriever.data.formats.plan import Part
from raytriever.data.quarantine import bad_entry
from raytriever.data.shard_files import Side, write_pairs
from raytriever.data.tokenise import Tokenisation
from raytriever.storage import disk_errors

DOCUMENTS, QUERIES, WORK = "documents", "queries", "work"
SIDES = (DOCUMENTS, QUERIES)


@dataclass(frozen=True)
class ShardReport:
    """What a shard holds.

    Args:
        part: which part of the data set its rows came from.
        number: which chunk of the part, from 0.
        rows: rows read, the bad ones too.
        bad: the bad rows, as `quarantine.bad_entry` tells them.
    """

    part: int
    number: int
    rows: int
    bad: tuple[dict[str, Any], ...] = ()

    @property
    def stem(self) -> str:
        """The name of its files; in the order of names the shards are in the order of the rows."""
        return f"{self.part:05d}-{self.number:06d}"


@dataclass(frozen=True)
class ShardWriter:
    """Turns chunks into shards; sent to the processes that do it.

    Args:
        parts: of the data set; a chunk names its part by place.
        folder: seen by every process.
        tokenisation: None for texts without tokens.
    """

    parts: tuple[Part, ...]
    folder: Path
    tokenisation: Tokenisation | None

    def __call__(self, chunk: Chunk) -> ShardReport:
        """Write the shard of a chunk; raises `DataError` if its part is broken as a whole."""
        parsed = parse_chunk(self.parts[chunk.part], chunk)
        report = ShardReport(chunk.part, chunk.number, parsed.rows, tuple(parsed.bad))
        where = self.parts[chunk.part].where
        with disk_errors(self.folder):
            mark = self.folder / WORK / f"{report.stem}.begun"
            died_before = not _leave(mark)
            sides = {
                DOCUMENTS: Side.of_documents(parsed, self.tokenisation),
                QUERIES: Side.of_queries(parsed, self.tokenisation),
            }
            killers: dict[int, str] = {}
            for name, side in sides.items():
                killers |= side.write(self.folder / name, report.stem, self.tokenisation, died_before)
                side.write_keys(self.folder / WORK / f"{report.stem}.{name}.npz")
            write_pairs(self.folder / WORK, report.stem, parsed)
            write_some(self.folder / WORK, report.stem, parsed.records.answers)
            mark.unlink()
        bad = tuple(bad_entry(where, row, reason, b"") for row, reason in killers.items())
        return replace(report, bad=report.bad + bad)


def make_folders(folder: Path) -> None:
    """The folders a writer writes into."""
    for name in (*SIDES, WORK):
        (folder / name).mkdir()


def _leave(mark: Path) -> bool:
    """Make the mark; false if it was there."""
    with suppress(FileExistsError):
        mark.touch(exist_ok=False)
        return True
    return False
