"""Bad rows stand aside, each with its file, row and reason; too many of them stop the job.

A few bad rows of millions should not cost a night; a column that is wrong everywhere should not train.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raytriever.errors import DataError
from raytriever.storage import write_atomically

QUARANTINE = "quarantine.jsonl"
_RAW_BYTES = 200


class BadRow(ValueError):
    """Why one row cannot be used; caught by the reader, which knows the row's number."""


@dataclass(frozen=True)
class QuarantineReport:
    """How many rows of which file were bad, and where they can be read."""

    counts: Mapping[str, int] = field(default_factory=dict)
    path: Path | None = None

    @property
    def total(self) -> int:
        """Bad rows of all files."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        if not self.total:
            return "no bad rows"
        files = ", ".join(f"{count} in {file}" for file, count in self.counts.items())
        rows = "row was" if self.total == 1 else "rows were"
        return f"{self.total} bad {rows} left out ({files})" + (f": see {self.path}" if self.path else "")


class Quarantine:
    """Collects the bad rows of a data set while it is read.

    Args:
        max_share: the share of a file's rows, 0 to 1, that may be bad.
    """

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._lines: list[str] = []
        self._first: dict[str, tuple[int, str]] = {}
        self._counts: dict[str, int] = {}

    def add(self, file: Path, row: int, reason: str, raw: bytes) -> None:
        """Put row `row` (counted from 1) of `file` aside."""
        entry = {
            "file": str(file),
            "row": row,
            "reason": reason,
            "raw": raw[:_RAW_BYTES].decode(errors="replace"),
        }
        self._lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
        self._first.setdefault(str(file), (row, reason))
        self._counts[str(file)] = self._counts.get(str(file), 0) + 1

    def close(self, file: Path, rows: int) -> None:
        """Decide on a file read to its end; raises `DataError` if too many of its `rows` were bad."""
        bad = self._counts.get(str(file), 0)
        if bad > self._max_share * rows:
            row, reason = self._first[str(file)]
            raise DataError(
                f"{reason}; {bad} of {rows} rows {'is' if bad == 1 else 'are'} bad ({bad / rows:.2%}), more "
                f"than the {self._max_share * 100:g} % allowed by --max-bad-rows",
                where=f"{file} row {row}",
                remedy="mend them or raise it",
            )

    def report(self, folder: Path | str | None) -> QuarantineReport:
        """Write `quarantine.jsonl` into `folder` if there is anything to write, and count."""
        path = None
        if self._lines and folder is not None:
            path = Path(folder) / QUARANTINE
            write_atomically(path, "".join(self._lines))
        return QuarantineReport(dict(self._counts), path)
