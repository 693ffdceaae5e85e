"""Bad rows stand aside, each with its file, row and reason; too many of them stop the job.

A few bad rows of millions should not cost a night; a column that is wrong everywhere should not train.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raytriever.errors import DataError
from raytriever.storage import disk_errors, write_atomically

QUARANTINE = "quarantine.jsonl"
_RAW_BYTES = 200


class BadRow(ValueError):
    """Why one row cannot be used; caught by the reader, which knows the row's number."""


@dataclass(frozen=True)
class QuarantineReport:
    """The bad rows of a data set: `{"file", "row", "reason", "raw"}` each, and where they can be read, if anywhere."""

    entries: tuple[Mapping[str, Any], ...] = ()
    path: Path | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Bad rows by file."""
        return dict(Counter(entry["file"] for entry in self.entries))

    @property
    def total(self) -> int:
        """Bad rows of all files."""
        return len(self.entries)

    def write(self, folder: Path | str) -> QuarantineReport:
        """Write the rows to `folder/quarantine.jsonl`; where there are none, remove what an earlier reading left.

        Returns:
            The same report, naming the file.
        """
        path = Path(folder) / QUARANTINE
        if not self.entries:
            with disk_errors(path):
                path.unlink(missing_ok=True)
            return replace(self, path=None)
        write_atomically(path, "".join(json.dumps(dict(entry), ensure_ascii=False) + "\n" for entry in self.entries))
        return replace(self, path=path)

    def __str__(self) -> str:
        if not self.entries:
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
        self._entries: list[Mapping[str, Any]] = []
        self._first: dict[str, tuple[int, str]] = {}
        self._counts: Counter[str] = Counter()

    def add(self, file: Path, row: int, reason: str, raw: bytes) -> None:
        """Put row `row` (counted from 1) of `file` aside."""
        entry = {
            "file": str(file),
            "row": row,
            "reason": reason,
            "raw": raw[:_RAW_BYTES].decode(errors="replace"),
        }
        self._entries.append(entry)
        self._first.setdefault(str(file), (row, reason))
        self._counts[str(file)] += 1

    def close(self, file: Path, rows: int) -> None:
        """Decide on a file read to its end; raises `DataError` if too many of its `rows` were bad."""
        bad = self._counts[str(file)]
        if bad > self._max_share * rows:
            row, reason = self._first[str(file)]
            raise DataError(
                f"{reason}; {bad} of {rows} rows {'is' if bad == 1 else 'are'} bad ({bad / rows:.2%}), more "
                f"than the {self._max_share * 100:g} % allowed by --max-bad-rows",
                where=f"{file} row {row}",
                remedy="mend them or raise it",
            )

    def report(self) -> QuarantineReport:
        """What was put aside so far; nothing is written."""
        return QuarantineReport(tuple(self._entries))
