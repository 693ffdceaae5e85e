"""Reader of the files in which W&B stores its runs (`run-ID.wandb`): records of LevelDB's log format.

A file is a header of 7 bytes and blocks of 32 KiB. A record is one fragment of a block, or several of consecutive
blocks; each has a checksum, a length and its place in the record. A record that was cut off ends the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

_FILE_HEADER, _BLOCK = 7, 32768
_HEADER = struct.Struct("<IHB")  # checksum, bytes, place in the record
_WHOLE, _LAST = 1, 4


def read_history(files: Iterable[Path]) -> Iterator[dict[str, str]]:
    """Yield the logged rows of files: JSON by name. What follows a damaged record is left out."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    for file in files:
        for content in _records(file):
            try:
                record = Record.FromString(content)
            except DecodeError:
                break
            if record.WhichOneof("record_type") == "history":
                yield {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}


def _records(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        stream.seek(_FILE_HEADER)
        offset, record = _FILE_HEADER, b""
        while True:
            if (left := _BLOCK - offset % _BLOCK) < _HEADER.size:
                offset += len(stream.read(left))
            header = stream.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return
            _, size, place = _HEADER.unpack(header)
            content = stream.read(size)
            if len(content) < size or not _WHOLE <= place <= _LAST:
                return
            offset += _HEADER.size + size
            record += content
            if place in (_WHOLE, _LAST):
                yield record
                record = b""
