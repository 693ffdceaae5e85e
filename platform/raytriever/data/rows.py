"""The rows of a text file, plain or gzipped, one at a time, each with its number.

Rows end at the byte `\\n` and nowhere else: texts hold U+2028, U+0085 and other characters at which
`str.splitlines` would break them.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raytriever.data.quarantine import BadRow
from raytriever.errors import DataError
from raytriever.storage import disk_errors

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """The rows that are not blank, without their line ends, counted from 1.

    Raises:
        DataError: the file as a whole is broken: a gzip that is cut off or none at all.
    """
    number = 0
    try:
        with disk_errors(file), gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as stream:
            for number, line in enumerate(stream, start=1):
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                if not line.isspace():
                    yield number, line.rstrip(b"\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"the gzip is broken after row {number} ({error})", str(file), "copy or compress it again"
        ) from error


def text_of(row: bytes) -> str:
    """A row as text; raises `BadRow` naming the first byte that is not UTF-8."""
    try:
        return row.decode()
    except UnicodeDecodeError as error:
        byte = row[error.start]
        raise BadRow(f"byte 0x{byte:02x} at column {error.start + 1} is not UTF-8") from error


def object_of(row: bytes) -> dict[str, Any]:
    """A row as a JSON object; raises `BadRow` if it is none."""
    text = text_of(row)
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRow(f"not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise BadRow(f"not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise BadRow(f"a JSON object is expected, not {type(parsed).__name__}")
    return parsed


def string_field(row: dict[str, Any], name: str) -> str:
    """A field that must hold a text that is not blank; raises `BadRow` naming what there is."""
    if name not in row:
        raise BadRow(f'no field "{name}"; the fields are {", ".join(row) or "none"}')
    value = row[name]
    if not isinstance(value, str):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a string')
    if not value or value.isspace():
        raise BadRow(f'empty "{name}"')
    return encodable(value, name)


def encodable(value: str, name: str) -> str:
    """The value itself; raises `BadRow` for half of a surrogate pair: JSON can spell it, UTF-8 cannot."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRow(f'"{name}" holds half of a surrogate pair') from error
    return value
