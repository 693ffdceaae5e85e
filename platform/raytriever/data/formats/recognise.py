"""Which format a data set is in, told from the names of its files and the fields of their first rows."""

from __future__ import annotations

from raytriever.data.formats import beir
from raytriever.data.formats.plan import Plan
from raytriever.data.source import Source

FORMATS = ("beir",)


def recognise(source: Source, format: str | None = None) -> Plan:
    """How a data set is to be read.

    Args:
        source: its files.
        format: one of `FORMATS`; None to find out.

    Raises:
        DataError: the files are of no known format, or of several.
    """
    return beir.plan(source)
