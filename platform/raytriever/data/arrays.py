"""A file that is one JSON array of objects, in pieces, never read whole: each object becomes one row of text.

1. Brackets are counted outside strings; where an object closes directly in the array, its row ends.
2. JSON has no raw newlines within strings, so those between its signs become blanks and a row is a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

from raytriever.data.files import open_stream, reading
from raytriever.data.lines import MOST_ROW_BYTES
from raytriever.data.rows import BYTE_ORDER_MARK
from raytriever.errors import DataError

# Anything up to the next bracket outside strings; or up to the quote of a string that goes on in the next block.
_SIGN = re.compile(rb'[^"\[\]{}]*+(?:"(?:[^"\\]++|\\.)*+"[^"\[\]{}]*+)*+([\[\]{}"])?', re.DOTALL)
_BEGIN = 1 << 16
_BETWEEN = b", \t\r\n"
_NEWLINES = bytes.maketrans(b"\r\n", b"  ")


def read_elements(where: str, size: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of at least `size` bytes, but for the last: the array's objects as lines, with the first one's number.

    Raises:
        DataError: the file is no array, is cut off, is empty, or its gzip is broken.
    """
    first, lines, length = 1, list[bytes](), 0
    for row in _elements(where, size):
        lines.append(row)
        length += len(row) + 1
        if length >= size:
            yield first, b"\n".join(lines) + b"\n"
            first, lines, length = first + len(lines), [], 0
    if lines:
        yield first, b"\n".join(lines) + b"\n"
    elif first == 1:
        raise DataError("no row in it", where, "give an array of JSON objects")


def _elements(where: str, size: int) -> Iterator[bytes]:
    rows, held, at, start, depth = [0], b"", 0, 0, 0
    with reading(where, rows), closing(open_stream(where)) as stream:
        held = stream.read(max(size, _BEGIN)).removeprefix(BYTE_ORDER_MARK)
        _check_begin(where, held)
        while True:
            for sign in _SIGN.finditer(held, at):
                byte = sign[1]
                at = sign.end() if byte != b'"' else sign.start(1)
                if not byte or byte == b'"':
                    break
                depth += 1 if byte in b"[{" else -1
                if (depth == 1 and byte in b"]}") or depth == 0:
                    row = held[start : at - (depth == 0)].lstrip(_BETWEEN) if start else b""
                    start = at
                    if row.strip(_BETWEEN):
                        rows[0] += 1
                        yield row.translate(_NEWLINES)
                if depth == 0:
                    return
                start = start or at  # behind the bracket that opens the array
            if len(held) - start > MOST_ROW_BYTES:
                raise DataError(
                    f"the row is longer than {MOST_ROW_BYTES >> 20} MB", f"{where} row {rows[0] + 1}", "cut it"
                )
            block = stream.read(max(size, len(held) - start))
            if not block:
                raise DataError(f"the JSON array is cut off after row {rows[0]}", where, "copy it again")
            held, at, start = held[start - 1 :] + block, at - start + 1, 1


def _check_begin(where: str, block: bytes) -> None:
    if not block:
        raise DataError("no row in it, the file is empty", where, "give an array of JSON objects")
    begin = block.lstrip()[:40]
    if not begin.startswith(b"["):
        raise DataError(
            f"begins with {begin.decode(errors='replace')!r}, not with a JSON array",
            where,
            "give an array of objects, or one object a line and name it .jsonl",
        )
