"""Plain tables of the figures of indexes."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines under a header, the first column to the left, the others to the right."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip()

    return "\n".join(line(row) for row in (head, *rows))


def count(value: float) -> str:
    """A number of documents or queries; what a library does not tell is so called."""
    return "not told" if isnan(value) else f"{value:,.0f}"
