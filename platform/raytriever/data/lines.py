"""A text file, plain or gzipped, in pieces of whole rows. Rows end at the byte `\\n` and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from raytriever.data.files import open_stream, reading
from raytriever.data.rows import BYTE_ORDER_MARK
from raytriever.errors import DataError

# A longer row is no text that anybody wrote, but a file without rows, or one packed to fill memory.
MOST_ROW_BYTES = 1 << 28


def read_lines(where: str, size: int, header: tuple[str, ...] = ()) -> Iterator[tuple[int, bytes]]:
    """Pieces of at least `size` bytes, but for the last, each with the number of its first row, counted from 1.

    Args:
        where: the file.
        size: bytes; a piece is longer by a row's rest at most.
        header: the columns that the first row must name; it is then no part of the pieces.

    Raises:
        DataError: there is no row, one is far too long, the header is another, or the gzip is broken.
    """
    row, seen = 1, False
    for piece in _whole_rows(where, size):
        if row == 1:
            piece = piece.removeprefix(BYTE_ORDER_MARK)
            if header:
                first, _, piece = piece.partition(b"\n")
                _check_header(where, first, header)
                row = 2
        if piece and not piece.isspace():
            seen = True
            yield row, piece
        row += piece.count(b"\n")
    if row == 1 and header:
        raise _wrong_header(where, "'' (the file is empty)", header)
    if not seen and header:
        raise DataError("no judgement in it", where, f"give rows of {'<TAB>'.join(header)}")
    if not seen:
        raise DataError(
            "no row in it" + (", the file is empty" if row == 1 else ""), where, "give one JSON object a line"
        )


def _whole_rows(where: str, size: int) -> Iterator[bytes]:
    rows = [0]
    held: list[bytes] = []
    with reading(where, rows), closing(open_stream(where)) as stream:
        while block := stream.read(size):
            cut = block.rfind(b"\n") + 1
            if not cut:
                held.append(block)  # joined once, when the row has come to its end
                if sum(map(len, held)) > MOST_ROW_BYTES:
                    raise DataError(
                        f"the row is longer than {MOST_ROW_BYTES >> 20} MB", f"{where} row {rows[0] + 1}", "cut it"
                    )
                continue
            held.append(block[:cut])
            piece = b"".join(held)
            held = [block[cut:]]
            rows[0] += piece.count(b"\n")
            yield piece
    if any(held):
        yield b"".join(held)


def _check_header(where: str, row: bytes, header: tuple[str, ...]) -> None:
    found = row.rstrip(b"\r").decode(errors="replace")
    if found.split("\t") != list(header):
        raise _wrong_header(where, repr(found[:80]), header)


def _wrong_header(where: str, found: str, header: tuple[str, ...]) -> DataError:
    return DataError(f"the header is {found}", f"{where} row 1", f"it must be {'<TAB>'.join(header)}")
