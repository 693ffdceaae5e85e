"""The first rows of a file, read to tell what it is."""

from __future__ import annotations

from raytriever.data.rows import numbered_rows


def first_row(where: str) -> bytes:
    """The first row that is not blank, empty where there is none; raises `DataError` for a broken gzip."""
    rows = numbered_rows(where)
    try:
        return next(rows, (1, b""))[1]
    finally:
        rows.close()  # type: ignore[attr-defined]
