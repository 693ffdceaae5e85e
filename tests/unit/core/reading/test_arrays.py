"""Arrays, columns and tensors of other people: exact types and shapes, nothing run, nothing believed of a header."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file

from raytriever.core.errors import ConfigError, DataError, StorageError
from raytriever.core.reading.arrays import open_parquet, open_tensors, read_array, read_arrays, read_arrow

TEXTS = {"id": "large_string", "text": "large_string"}


def npy(header: bytes, values: bytes = b"", version: bytes = b"\1\0") -> bytes:
    length = struct.pack("<H", len(header)) if version == b"\1\0" else struct.pack("<I", len(header))
    return b"\x93NUMPY" + version + length + header + values


def header(descr: str = "<i8", shape: str = "(4,)", fortran: bool = False) -> bytes:
    return f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()


@pytest.mark.parametrize("mapped", [None, "r", "c"])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (4,), (2, 3), (2, 1, 3)])
def test_an_array_is_read_as_it_was_saved(tmp_path: Path, mapped: Any, shape: tuple[int, ...]) -> None:
    saved = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "a.npy", saved)
    result = read_array(tmp_path / "a.npy", ["int8", "float32"], (None,) * len(shape), "", mapped)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, saved)
    assert isinstance(result, np.memmap) == (mapped is not None and saved.size > 0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it has no header of a plain array"),
        (b"PK\3\4", "it has no header of a plain array"),
        (npy(header())[:20], "it has no header of a plain array"),
        (npy(header(), bytes(33)), r"has 33 bytes of values, but its shape \(4,\) needs 32"),
        (npy(header(shape="(999999999999,)"), bytes(32)), "has 32 bytes of values, but its shape"),
        (npy(header("|O"), b"cos\nsystem\n"), r"holds values of type '\|O', expected int64"),
        (npy(header("<f8"), bytes(32)), "holds values of type '<f8', expected int64"),
        (npy(header(">i8"), bytes(32)), "holds values of type '>i8', expected int64"),
        (npy(header("<i8", "(2, 2)"), bytes(32)), "has the shape 2 x 2, expected any"),
        (npy(header("<i8", "(-4,)"), bytes(32)), "it has no header of a plain array"),
        (npy(header("<i8", "(4,)", fortran=True), bytes(32)), "it has no header of a plain array"),
        (npy(header("<i8", f"({'9' * 100},)"), bytes(32)), "it has no header of a plain array"),
        (npy(b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (4,), }\n"), "it has no header of a plain"),
        (npy(b"__import__('os').system('true')\n"), "it has no header of a plain array"),
        (npy(b"[" * 5000), "it has no header of a plain array"),
        (npy(header(), bytes(32), b"\2\0"), None),
    ],
)
def test_an_array_of_another_type_or_shape_is_one_line(tmp_path: Path, content: bytes, says: str | None) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    if says is None:
        assert read_array(tmp_path / "a.npy", ["int64"], (4,), "").tolist() == [0, 0, 0, 0]
        return
    with pytest.raises(StorageError, match=rf"a\.npy: .*{says}.*; make it again$"):
        read_array(tmp_path / "a.npy", ["int64"], (None,), "make it again")


def test_an_archive_gives_the_arrays_that_are_asked_for(tmp_path: Path) -> None:
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", rows=np.arange(3), names=np.array(["a", "bcd"]), one=7, rest=np.zeros(9))
        kinds: dict[str, Any] = {"rows": (["int64"], (None,)), "names": (["str"], (2,)), "one": (["int64"], ())}
        result = read_arrays(tmp_path / "a.npz", kinds, "")
        assert [result["rows"].tolist(), result["names"].tolist(), int(result["one"])] == [[0, 1, 2], ["a", "bcd"], 7]
        assert result.keys() == kinds.keys()
        result["rows"][0] = 5


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        ({"scores": (["int64"], (None,))}, "there is no array 'scores'"),
        ({"rows": (["float32"], (None,))}, "rows: holds values of type '<i8', expected float32"),
        ({"rows": (["int64"], (4,))}, "rows: has the shape 3, expected 4"),
        ({"objects": (["int64"], (None,))}, r"objects: holds values of type '\|O', expected int64"),
    ],
)
def test_an_archive_of_other_arrays_is_one_line(tmp_path: Path, kinds: Any, says: str) -> None:
    np.savez(tmp_path / "a.npz", rows=np.arange(3), objects=np.array([{}, {}], dtype=object))
    with pytest.raises(StorageError, match=says):
        read_arrays(tmp_path / "a.npz", kinds, "")


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", rows=np.arange(300))
    whole = (tmp_path / "a.npz").read_bytes()
    kinds: dict[str, Any] = {"rows": (["int64"], (None,))}
    middle = len(whole) // 3
    for damaged in (b"", whole[:50], whole[:-5], whole[:middle] + b"\xff\xff\xff" + whole[middle + 3 :]):
        (tmp_path / "a.npz").write_bytes(damaged)
        with pytest.raises(StorageError, match=r"a\.npz.*: is damaged or changed.*; make it again$"):
            read_arrays(tmp_path / "a.npz", kinds, "make it again")


def write_arrow(file: Path, table: pa.Table, **options: Any) -> Path:
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, table.schema, **options) as writer:
        writer.write_table(table)
    return file


def texts(count: int = 2, length: int = 3) -> pa.Table:
    return pa.table({name: pa.array([name[0] * length] * count, pa.large_string()) for name in TEXTS})


def test_columns_are_mapped_not_read(tmp_path: Path) -> None:
    file = write_arrow(tmp_path / "a.arrow", texts(20, 1_000_000))
    before = pa.total_allocated_bytes()
    mapped = read_arrow(file, TEXTS, "", full=True)
    assert mapped["text"][19].as_py() == "t" * 1_000_000
    assert pa.total_allocated_bytes() - before < 1_000_000


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({"id": ["a"]}), "has the columns 'id', expected 'id', 'text'"),
        (pa.table({}), "has the columns none, expected"),
        (pa.table({"text": ["a"], "id": ["b"]}), "has the columns 'text', 'id', expected 'id', 'text'"),
        (pa.table({"id": texts()["id"], "text": ["a", "b"]}), "column 'text' has the type 'string', expected 'large_"),
        (pa.table({"id": texts()["id"], "text": texts()["text"].dictionary_encode()}), "has the type 'dictionary<"),
        (pa.table({"id": texts()["id"], "text": pa.array([1, 2])}), "column 'text' has the type 'int64'"),
        (pa.table({"id": texts()["id"], "text": pa.array(["a", None], pa.large_string())}), "is empty in 1 rows"),
        (pa.concat_tables([texts(), texts()]), "it has 2 record batches, expected one"),
        (texts(0), "it has 0 record batches, expected one"),
    ],
)
def test_other_columns_are_one_line(tmp_path: Path, table: pa.Table, says: str) -> None:
    file = write_arrow(tmp_path / "a.arrow", table)
    with pytest.raises(StorageError, match=rf"a\.arrow: .*{says}.*; make it again$"):
        read_arrow(file, TEXTS, "make it again")


def extended(storage: pa.Array, name: str) -> pa.Field:
    return pa.field("text", storage.type, metadata={"ARROW:extension:name": name, "ARROW:extension:metadata": ""})


@pytest.mark.parametrize("nested", [False, True])
def test_an_extension_type_is_refused_without_being_built(tmp_path: Path, nested: bool) -> None:
    class Built(pa.ExtensionType):
        """Count of the instances that reading a schema creates."""

        instances = 0

        def __init__(self) -> None:
            super().__init__(pa.large_string(), "test.built")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Built:
            cls.instances += 1
            return cls()

    ids, field = texts()["id"], extended(texts()["text"], "test.built")
    if nested:
        struct_type = pa.struct([field.with_name("inner")])
        values: Any = pa.array([{"inner": "a"}, {"inner": "b"}], pa.struct([("inner", pa.large_string())]))
        field = pa.field("text", struct_type)
        values = pa.StructArray.from_arrays([texts()["text"].chunk(0)], fields=list(struct_type))
    else:
        values = texts()["text"]
    schema = pa.schema([pa.field("id", pa.large_string()), field])
    file = write_arrow(tmp_path / "a.arrow", pa.Table.from_arrays([ids, values], schema=schema))
    pa.register_extension_type(Built())
    try:
        with pytest.raises(StorageError, match=r"has the extension type 'test\.built', expected"):
            read_arrow(file, TEXTS, "")
        assert Built.instances == 0
        assert "built" in str(pa.ipc.open_file(pa.memory_map(str(file))).schema)
        assert Built.instances > 0
    finally:
        pa.unregister_extension_type("test.built")


def test_compressed_columns_are_refused(tmp_path: Path) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    file = write_arrow(tmp_path / "a.arrow", texts(1000, 1000), options=options)
    with pytest.raises(StorageError, match="column 'id' is compressed"):
        read_arrow(file, TEXTS, "")


def test_offsets_and_texts_are_validated_in_full(tmp_path: Path) -> None:
    file = write_arrow(tmp_path / "a.arrow", texts(4, 3))
    whole = file.read_bytes()
    offsets = np.array([0, 3, 6, 9, 12], "<i8").tobytes()
    assert whole.count(offsets) == 2
    for changed in ([0, 3, 1 << 40, 9, 12], [0, -5, 6, 9, 12], [0, 9, 6, 9, 12], [0, 3, 6, 9, 1 << 40]):
        file.write_bytes(whole.replace(offsets, np.array(changed, "<i8").tobytes()))
        with pytest.raises(StorageError, match=r"a\.arrow: is damaged or changed: .*; make it again$"):
            read_arrow(file, TEXTS, "make it again", full=True)
    file.write_bytes(whole.replace(b"ttt", b"\xff\xfft"))
    with pytest.raises(StorageError, match=r"is damaged or changed: .*[uU][tT][fF]-?8"):
        read_arrow(file, TEXTS, "make it again", full=True)


def test_a_damaged_arrow_file_is_one_line(tmp_path: Path) -> None:
    file = write_arrow(tmp_path / "a.arrow", texts(40, 30))
    whole = file.read_bytes()
    footer = int.from_bytes(whole[-10:-6], "little")
    damaged = [b"", whole[:4], whole[:-1], whole[100:], b"x" * 500 + b"ARROW1"]
    damaged += [whole[:-10] + struct.pack("<i", length) + b"ARROW1" for length in (-1, 0, 5, footer - 8, 1 << 30)]
    damaged += [
        whole[:offset] + bytes(8) + whole[offset + 8 :] for offset in range(len(whole) - 10 - footer, len(whole), 24)
    ]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(StorageError, match=r"a\.arrow: .*; make it again$"):
            read_arrow(file, TEXTS, "make it again", full=True)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    for read in (
        lambda file: read_arrow(file, TEXTS, "make it again"),
        lambda file: read_array(file, ["int64"], (None,), "make it again"),
        lambda file: read_arrays(file, {}, "make it again"),
    ):
        with pytest.raises(StorageError, match=r"b\.bin: is missing; make it again"):
            read(tmp_path / "b.bin")


def test_damaged_parquet_is_one_line(tmp_path: Path) -> None:
    parquet.write_table(texts(), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    for content in (b"", b"PAR1", whole[:-1], b"PAR1" + b"\xff" * 90 + struct.pack("<I", 90) + b"PAR1"):
        (tmp_path / "a.parquet").write_bytes(content)
        with pa.OSFile(str(tmp_path / "a.parquet")) as stream, pytest.raises(DataError, match=r"a\.parquet: "):
            open_parquet(str(tmp_path / "a.parquet"), stream)


def test_damaged_tensors_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"weight": torch.ones(4)}, file)
    whole = file.read_bytes()
    with open_tensors(file, "") as tensors:
        assert tensors.get_tensor("weight").tolist() == [1, 1, 1, 1]
    for content in (b"", whole[:5], whole[:-4], struct.pack("<Q", 1 << 60) + whole[8:], whole.replace(b"F32", b"F99")):
        file.write_bytes(content)
        with (
            pytest.raises(ConfigError, match=r"a\.safetensors: is damaged or changed: .*; copy"),
            open_tensors(file, "copy it again", ConfigError),
        ):
            pass
