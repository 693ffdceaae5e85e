from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from raytriever.data.formats.beir import document_row
from raytriever.data.formats.chunks import parse_chunk, read_chunks
from raytriever.data.formats.plan import Part
from raytriever.data.formats.rows import column_names
from raytriever.errors import DataError


def part_of(file: Path, parse: Any = document_row) -> Part:
    return Part(str(file), "parquet", parse)


def write(file: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), file)
    return file


def test_batches_are_about_as_large_as_asked(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", _id=list(range(5000)), text=[f"text {n} " * 20 for n in range(5000)])
    chunks = list(read_chunks(part_of(file), 0, 1 << 16))
    assert len(chunks) > 5
    assert max(len(chunk.payload) for chunk in chunks) < 4 * (1 << 16)
    results = [parse_chunk(part_of(file), chunk) for chunk in chunks]
    assert [row.id for one in results for row in one.records.documents] == [str(n) for n in range(5000)]
    assert [number for one in results for number in one.rows_of("documents")] == list(range(1, 5001))


def test_a_bad_row_is_quarantined_alone(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xffbad", None, b"good", b" "], pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    file = write(tmp_path / "a.parquet", _id=["1", "2", "3", "4", "5"], text=text)
    (result,) = (parse_chunk(part_of(file), chunk) for chunk in read_chunks(part_of(file), 0))
    assert [row.id for row in result.records.documents] == ["1", "4"]
    assert [(entry["row"], entry["reason"]) for entry in result.bad] == [
        (2, '"text": byte 0xff at position 1 is not UTF-8'),
        (3, '"text" is NoneType, not a string'),
        (5, 'empty "text"'),
    ]
    assert result.bad[1]["raw"] == '{"_id": "3", "text": null}'


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, (str(self.trace), 0o777, True)


class Pickled(pa.ExtensionType):
    """Unpickles what stands in the schema as soon as the schema is read, as some do."""

    def __init__(self, name: str, payload: bytes) -> None:
        self.payload = payload
        super().__init__(pa.binary(), name)

    def __arrow_ext_serialize__(self) -> bytes:
        return self.payload

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, payload: bytes) -> Pickled:
        pickle.loads(payload)  # noqa: S301
        return cls("test", payload)


@pytest.fixture(params=["ray.data.arrow_pickled_object", "arrow.py_extension_type", "somebody.elses"])
def registered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pickled]:
    kind = Pickled(request.param, pickle.dumps(Evil(tmp_path / "trace")))
    rays = "ray.data" in sys.modules and request.param.startswith("ray.data")
    if rays:  # imported by another test, Ray Data has registered a type of its own under this name
        pa.unregister_extension_type(request.param)
    pa.register_extension_type(kind)
    yield kind
    pa.unregister_extension_type(request.param)
    if rays:
        from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType

        pa.register_extension_type(ArrowPythonObjectType())


@pytest.mark.parametrize("nested", [False, True])
def test_extension_types_are_refused_and_never_unpickled(registered: Pickled, tmp_path: Path, nested: bool) -> None:
    values = pa.ExtensionArray.from_storage(registered, pa.array([b"x"]))
    column = pa.StructArray.from_arrays([values], ["inner"]) if nested else values
    file = write(tmp_path / "a.parquet", _id=["1"], text=column)
    assert not (tmp_path / "trace").exists()
    with pytest.raises(DataError) as caught:
        list(read_chunks(part_of(file), 0))
    name = "inner" if nested else "text"
    assert str(caught.value).startswith(
        f"{file}: column {name!r} is of the extension type {registered.extension_name!r}"
    )
    with pytest.raises(DataError):
        column_names(str(file))
    assert not (tmp_path / "trace").exists()
    # The trap works: read in the common way, it snaps.
    parquet.read_schema(file)
    assert (tmp_path / "trace").exists()


def test_broken_files_are_one_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", _id=["1"] * 1000, text=[f"text {n}" for n in range(1000)])
    content = file.read_bytes()
    file.write_bytes(content[:8] + b"\xff" * 300 + content[308:])
    with pytest.raises(DataError, match="the Parquet is broken"):
        list(read_chunks(part_of(file), 0))
