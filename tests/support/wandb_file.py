"""Reader of the files in which W&B stores its runs (`run-ID.wandb`): records of LevelDB's log format.

A file is a header of 7 bytes and blocks of 32 KiB. A record is one fragment of a block, or several of consecutive
blocks; each has a checksum, a length and its place in the record."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

FILE_HEADER, BLOCK = 7, 32768
HEADER = struct.Struct("<IHB")  # checksum, bytes, place in the record
WHOLE, LAST = 1, 4


def read_records(file: Path) -> Iterator[bytes]:
    content = file.read_bytes()
    offset, record = FILE_HEADER, b""
    while True:
        if (left := BLOCK - offset % BLOCK) < HEADER.size:
            offset += left
        if len(content) < offset + HEADER.size:
            return
        _, size, place = HEADER.unpack_from(content, offset)
        offset += HEADER.size
        record += content[offset : offset + size]
        offset += size
        if place in (WHOLE, LAST):
            yield record
            record = b""
