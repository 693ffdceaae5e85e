"""Files written and read back whole, through the same steps as in use."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from raytriever.data.data_sources import Source
from raytriever.data.formats.file_blocks import parse_block, read_blocks
from raytriever.data.formats.known_formats import recognize
from raytriever.data.formats.plan import Plan
from raytriever.data.records_and_bad_rows import Records


@dataclass
class Read:
    """What all blocks of all parts gave together."""

    plan: Plan
    records: Records
    bad: list[str]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that files have, in their order."""
        return tuple(dict.fromkeys(part.split for part in self.plan.parts if part.split))

    @property
    def texts(self) -> dict[str, str]:
        """The texts of queries and documents by their ids; each id has one text."""
        results: dict[str, str] = {}
        for query in (*self.records.queries, *self.records.documents):
            assert results.setdefault(query.id, query.text) == query.text
        return results

    def positives(self) -> list[tuple[str, str, int]]:
        """Query text, document text and rank of each positive."""
        texts = self.texts
        return [
            (texts[row.query], texts[row.document], row.rank) for row in self.records.judgements if row.score >= 0.5
        ]

    def negatives(self) -> list[tuple[str, str, str, int]]:
        """Query text, document text, origin and rank of each hard negative."""
        texts = self.texts
        return [(texts[row.query], texts[row.document], row.origin, row.rank) for row in self.records.negatives]


@pytest.fixture
def read() -> Callable[..., Read]:
    def whole(path: Path | str, format: str | None = None, size: int = 1 << 20) -> Read:
        plan = recognize(Source.open(path), format)
        result = Read(plan, Records(), [])
        for index, part in enumerate(plan.parts):
            for block in read_blocks(part, index, size):
                parsed = parse_block(part, block)
                result.bad += [entry["reason"] for entry in parsed.bad]
                for column in ("documents", "queries", "judgements", "negatives", "answers"):
                    getattr(result.records, column).extend(getattr(parsed.records, column))
        return result

    return whole


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Rows as a file of the kind that its name says."""

    def rows(name: str, rows: Sequence[dict[str, Any]]) -> Path:
        file = tmp_path / "set" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            parquet.write_table(pa.Table.from_pylist(list(rows)), file)
            return file
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        text = "[" + ",\n".join(lines) + "]" if ".json" in name and ".jsonl" not in name else "\n".join(lines) + "\n"
        file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return file

    return rows
