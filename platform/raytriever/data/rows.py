"""The rows of a text file, plain or gzipped, one at a time, each with its number; and the fields of a row, checked.

Rows end at the byte `\\n` and nowhere else: texts hold U+2028, U+0085 and other characters at which
`str.splitlines` would break them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Never

from raytriever.data.files import open_stream, reading
from raytriever.data.quarantine import BadRow

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_rows(file: Path | str) -> Iterator[tuple[int, bytes]]:
    """The rows that are not blank, without their line ends, counted from 1.

    Raises:
        DataError: the file as a whole is broken: a gzip that is cut off or none at all.
    """
    read = [0]
    with reading(str(file), read), closing(open_stream(str(file))) as stream:
        for number, line in enumerate(stream, start=1):
            read[0] = number
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            if not line.isspace():
                yield number, line.rstrip(b"\r\n")


def first_row(where: str) -> bytes:
    """The first row that is not blank, empty where there is none; raises `DataError` for a broken gzip."""
    rows: Any = numbered_rows(where)
    with closing(rows):
        return bytes(next(rows, (1, b""))[1])


def text_of(row: bytes) -> str:
    """A row as text; raises `BadRow` naming the first byte that is not UTF-8."""
    try:
        return row.decode()
    except UnicodeDecodeError as error:
        byte = row[error.start]
        raise BadRow(f"byte 0x{byte:02x} at column {error.start + 1} is not UTF-8") from error


def _no_number(name: str) -> Never:
    raise ValueError(f"{name} is not a number of JSON")


_decode = json.JSONDecoder(parse_constant=_no_number).decode


def object_of(row: bytes) -> dict[str, Any]:
    """A row as a JSON object; raises `BadRow` if it is none. `NaN` and `Infinity` are no JSON."""
    try:
        parsed = _decode(row.decode())
    except UnicodeDecodeError:
        text_of(row)
        raise
    except json.JSONDecodeError as error:
        raise BadRow(f"not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise BadRow(f"not JSON ({error})") from error
    if type(parsed) is not dict:
        raise BadRow(f"a JSON object is expected, not {type(parsed).__name__}")
    return parsed


def string_field(row: Mapping[str, Any], name: str) -> str:
    """A field that must hold a text that is not blank; raises `BadRow` naming what there is."""
    try:
        value = row[name]
    except KeyError:
        raise BadRow(f'no field "{name}"; the fields are {", ".join(row) or "none"}') from None
    return text_value(value, name)


def text_value(value: Any, name: str) -> str:
    """The value of a field, or of a place in one, that must be a text that is not blank; raises `BadRow`."""
    if not isinstance(value, str):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a string')
    if not value or value.isspace():
        raise BadRow(f'empty "{name}"')
    return encodable(value, name)


def id_field(row: Mapping[str, Any], name: str) -> str:
    """A field that must hold an id; whole numbers, as some exporters write them, are taken by their digits."""
    value = row.get(name)
    return str(value) if type(value) is int else string_field(row, name)


def id_value(value: Any, name: str) -> str:
    """`id_field` of a value that stands in a list."""
    return str(value) if type(value) is int else text_value(value, name)


def optional_text(row: Mapping[str, Any], name: str) -> str:
    """A field that may be missing, null or empty, which all give the empty text; raises `BadRow` for no string."""
    value = row.get(name) or ""
    if not isinstance(value, str):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a string')
    return encodable(value, name)


def encodable(value: str, name: str) -> str:
    """The value itself; raises `BadRow` for half of a surrogate pair: JSON can spell it, UTF-8 cannot."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRow(f'"{name}" holds half of a surrogate pair') from error
    return value


def answers_in(row: Mapping[str, Any]) -> list[str]:
    """The field `answers` of a row, a text or a list of texts; what else stands there is none, for no format is told by
    it. Raises `BadRow` for half of a surrogate pair."""
    value = row.get("answers")
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [encodable(text, "answers") for text in texts if isinstance(text, str) and text.strip()]
