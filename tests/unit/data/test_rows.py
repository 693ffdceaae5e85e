"""Rows of files: JSON lines, arrays and Parquet in blocks of any size, and the quarantine of bad rows."""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from raytriever.core.errors import DataError, StorageError
from raytriever.data.formats.beir import QRELS_HEADER, document_row, judgement_columns
from raytriever.data.formats.file_blocks import Parsed, parse_block, read_blocks
from raytriever.data.formats.file_rows import column_names, numbered_rows, read_elements
from raytriever.data.formats.plan import Kind, Part
from raytriever.data.formats.tevatron_dpr_and_pairs import dpr_row
from raytriever.data.records_and_bad_rows import Quarantine, bad_entry, check_fraction

ODD = "line\u2028separator\u2029 next\u0085line \x0b\x0c\x1c\x1e \ufeffmark"


def part_of(file: Path, kind: Kind = "json", parse: Any = document_row) -> Part:
    return Part(str(file), kind, parse, tuple(QRELS_HEADER) if kind == "tsv" else ())


def parsed(part: Part, size: int = 1 << 20) -> list[Parsed]:
    return [parse_block(part, block) for block in read_blocks(part, 0, size)]


def texts(part: Part, size: int = 1 << 20) -> list[str]:
    return [row.text for result in parsed(part, size) for row in result.records.documents]


def bad(part: Part, size: int = 1 << 20) -> list[tuple[int, str]]:
    return [(entry["row"], entry["reason"]) for result in parsed(part, size) for entry in result.bad]


def write(file: Path, rows: list[bytes]) -> Path:
    content = b"".join(row + b"\n" for row in rows)
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file


def document(number: int, text: str) -> bytes:
    return json.dumps({"_id": f"d{number}", "text": text}, ensure_ascii=False).encode()


@pytest.mark.parametrize(("name", "size"), [("a.jsonl", 1), ("a.jsonl", 1000), ("a.jsonl.gz", 64)])
def test_rows_are_cut_at_newlines_only_at_any_size(tmp_path: Path, name: str, size: int) -> None:
    wanted = [f"{ODD} {n} " + "é" * (n % 50) for n in range(200)]
    file = write(tmp_path / name, [document(n, text) for n, text in enumerate(wanted)])
    blocks = list(read_blocks(part_of(file), 3, size))
    assert [block.number for block in blocks] == list(range(len(blocks)))
    assert {block.part for block in blocks} == {3}
    assert len(blocks) > 1 or size > 1000
    assert all(len(block.payload) < size + 400 for block in blocks)
    assert texts(part_of(file), size) == wanted


@pytest.mark.parametrize("size", [1, 30])
def test_numbers_count_every_line_of_the_file(tmp_path: Path, size: int) -> None:
    rows = [b"\xef\xbb\xbf" + document(1, "a"), b"", b"  \t", b"{", document(5, "b") + b"\r", b"", b"[1]"]
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join(rows))
    assert texts(part_of(file), size) == ["a", "b"]
    assert [row for row, _ in bad(part_of(file), size)] == [4, 7]
    assert sum(result.rows for result in parsed(part_of(file), size)) == 4
    numbers = [number for result in parsed(part_of(file), size) for number in result.rows_of("documents")]
    assert numbers == [1, 5]
    (first, *_) = [entry for result in parsed(part_of(file), size) for entry in result.bad]
    assert first == {"file": str(file), "row": 4, "reason": bad(part_of(file))[0][1], "raw": "{"}


def test_rows_of_tells_the_row_of_each_record(tmp_path: Path) -> None:
    contexts = [{"text": f"p{n}"} for n in range(3)]
    rows = [
        b"{",
        json.dumps({"question": "a", "positive_ctxs": contexts, "negative_ctxs": []}).encode(),
        json.dumps({"question": "b", "positive_ctxs": contexts[:1], "negative_ctxs": contexts[1:]}).encode(),
    ]
    (result,) = parsed(part_of(write(tmp_path / "a.jsonl", rows), parse=dpr_row))
    assert result.rows_of("queries").tolist() == [2, 3]
    assert result.rows_of("documents").tolist() == [2, 2, 2, 3, 3, 3]
    assert result.rows_of("judgements").tolist() == [2, 2, 2, 3]
    assert result.rows_of("negatives").tolist() == [3, 3]


def test_a_text_of_ten_megabytes_is_one_row(tmp_path: Path) -> None:
    long = "xy " * (10 << 20 >> 2) + ODD
    (tmp_path / "a.json").write_bytes(b"[" + b",\n".join(map(document, (1, 2, 3), ("a", long, "b"))) + b"]")
    assert texts(part_of(tmp_path / "a.json", "array")) == ["a", long, "b"]
    columns = pa.table({"_id": ["1", "2", "3"], "text": ["a", long, "b"]})
    parquet.write_table(columns, tmp_path / "a.parquet", row_group_size=1)
    assert texts(part_of(tmp_path / "a.parquet", "parquet")) == ["a", long, "b"]


def test_a_gzip_broken_late_gives_the_rows_before(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    rows = [document(n, f"{n * n * 7919} " * 40) for n in range(3000)]
    file.write_bytes(gzip.compress(b"\n".join(rows))[:-100])
    blocks = read_blocks(part_of(file), 0, 4096)
    assert next(blocks).first_row == 1
    with pytest.raises(DataError, match=r"the gzip file is broken after row [1-9]\d+ "):
        list(blocks)


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_judgements_are_columns_behind_a_header(tmp_path: Path, size: int) -> None:
    rows = [b"\xef\xbb\xbfquery-id\tcorpus-id\tscore\r", b"q1\td1\t1\r", b"", b"q1\td2", b"q\xff\td2\t0", b"q 1\td2\t0"]
    part = part_of(write(tmp_path / "a.tsv", rows), "tsv", partial(judgement_columns, tuple(QRELS_HEADER)))
    results = [row for item in parsed(part, size) for row in item.records.judgements]
    assert [(row.query, row.document, row.score) for row in results] == [("q1", "d1", 1), ("q 1", "d2", 0)]
    assert bad(part, size) == [(4, "2 columns, not 3 separated by tabs"), (5, "byte 0xff at column 2 is not UTF-8")]
    (judged_nought,) = [row for item in parsed(part, size) for row in item.records.negatives]
    assert (judged_nought.document, judged_nought.origin) == ("d2", "gold")
    assert math.isnan(judged_nought.score)


def test_a_header_alone_holds_no_judgement(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", [b"query-id\tcorpus-id\tscore"])
    with pytest.raises(DataError, match="has no judgements; give rows of query-id<TAB>corpus-id<TAB>score"):
        list(read_blocks(part_of(file, "tsv"), 0))


def part_of_parquet(file: Path, parse: Any = document_row) -> Part:
    return Part(str(file), "parquet", parse)


def write_parquet(file: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), file)
    return file


def test_batches_are_about_as_large_as_asked(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", _id=list(range(5000)), text=[f"text {n} " * 20 for n in range(5000)])
    blocks = list(read_blocks(part_of_parquet(file), 0, 1 << 16))
    assert len(blocks) > 5
    assert max(len(block.payload) for block in blocks) < 4 * (1 << 16)
    results = [parse_block(part_of_parquet(file), block) for block in blocks]
    assert [row.id for result in results for row in result.records.documents] == [str(n) for n in range(5000)]
    assert [number for result in results for number in result.rows_of("documents")] == list(range(1, 5001))


def test_a_bad_row_is_quarantined_alone(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xffbad", None, b"good", b" "], pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    ids = pa.array(["1", "2", "3", "4", "5"]).dictionary_encode()
    file = write_parquet(tmp_path / "a.parquet", _id=ids, text=text)
    (result,) = (parse_block(part_of_parquet(file), block) for block in read_blocks(part_of_parquet(file), 0))
    assert [row.id for row in result.records.documents] == ["1", "4"]
    assert [(entry["row"], entry["reason"]) for entry in result.bad] == [
        (2, '"text": byte 0xff at position 1 is not UTF-8'),
        (3, '"text" is NoneType, not a string'),
        (5, 'empty "text"'),
    ]
    assert result.bad[1]["raw"] == '{"_id": "3", "text": null}'


class Pickled(pa.ExtensionType):
    """Type that leaves a trace as soon as a schema with it is read, as those with pickles would."""

    def __init__(self, name: str, trace: str) -> None:
        self.trace = trace
        super().__init__(pa.binary(), name)

    def __arrow_ext_serialize__(self) -> bytes:
        return self.trace.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, payload: bytes) -> Pickled:
        os.makedirs(payload, exist_ok=True)
        return cls("test", payload.decode())


@pytest.fixture(params=["ray.data.arrow_pickled_object", "somebody.elses"])
def registered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pickled]:
    kind = Pickled(request.param, str(tmp_path / "trace"))
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
    file = write_parquet(tmp_path / "a.parquet", _id=["1"], text=column)
    assert not (tmp_path / "trace").exists()
    with pytest.raises(DataError) as caught:
        list(read_blocks(part_of_parquet(file), 0))
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
    file = write_parquet(tmp_path / "a.parquet", _id=["1"] * 1000, text=[f"text {n}" for n in range(1000)])
    content = file.read_bytes()
    file.write_bytes(content[:8] + b"\xff" * 300 + content[308:])
    with pytest.raises(DataError, match="the Parquet file is broken"):
        list(read_blocks(part_of_parquet(file), 0))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='"\\[]{},: \nab\u2028é'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='"\\[]{}a'), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raytriever.data.formats.file_rows._BEGIN", 8)


def rows(file: Path, size: int = 1 << 20) -> list[bytes]:
    results = []
    for first, payload in read_elements(str(file), size):
        assert first == len(results) + 1
        assert payload.endswith(b"\n")
        results += payload.split(b"\n")[:-1]
    return results


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.dictionaries(st.text(alphabet='"\\[]{}a', max_size=4), VALUES, max_size=3), min_size=1),
    size=st.integers(1, 60),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
)
def test_any_array_comes_back_object_by_object(
    tmp_path_factory: pytest.TempPathFactory, values: list[object], size: int, indent: int | None, ascii_only: bool
) -> None:
    file = tmp_path_factory.mktemp("array") / "a.json"
    file.write_text(json.dumps(values, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    assert [json.loads(row) for row in rows(file, size)] == values


def test_a_bad_object_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf [ {"a": 1}, {"a": nul}, \n 7, {"b": "]}"} , [1] ]\n')
    assert rows(tmp_path / "a.json", 3) == [b'{"a": 1}', b'{"a": nul}', b'7, {"b": "]}"}', b"[1]"]


def test_a_truncated_array_is_reported_with_its_last_row(tmp_path: Path) -> None:
    content = json.dumps([{"a": "x" * 30}, {"b": "y" * 30}]).encode()
    for end in (1, 2, 20):
        (tmp_path / "a.json.gz").write_bytes(gzip.compress(content[:-end]))
        row = 2 if end == 1 else 1
        with pytest.raises(DataError, match=rf"a\.json\.gz: the JSON array is cut off after row {row}"):
            rows(tmp_path / "a.json.gz")


def test_a_file_without_an_array_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match=r"begins with '\{\"a\": 1\}', not with a JSON array"):
        rows(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(" [ ] ")
    with pytest.raises(DataError, match="has no rows; give an array of JSON objects"):
        rows(tmp_path / "a.json")


FILE = Path("corpus.jsonl")


def test_rows_end_at_newlines_only_and_keep_their_numbers(tmp_path: Path) -> None:
    texts = ["one\u2028still one", "two\u0085two", "three\x0bthree\x0cthree"]
    raw = "\ufeff" + texts[0] + "\r\n" + texts[1] + "\n\n" + texts[2]
    for name, content in (("a.jsonl", raw.encode()), ("a.jsonl.gz", gzip.compress(raw.encode()))):
        (tmp_path / name).write_bytes(content)
        rows = [(number, row.decode()) for number, row in numbered_rows(tmp_path / name)]
        assert rows == [(1, texts[0]), (2, texts[1]), (4, texts[2])]


def report_of(row: int, raw: bytes) -> Quarantine:
    return Quarantine((bad_entry(str(FILE), row, "not JSON", raw),))


def test_few_bad_rows_are_written_down_and_counted(tmp_path: Path) -> None:
    result = report_of(7, b"\xff" + b"x" * 500)
    assert str(result) == "1 bad row was left out (1 in corpus.jsonl)"
    report = result.write(tmp_path / "run")
    assert report.total == 1
    assert report.path == tmp_path / "run" / "quarantine.jsonl"
    assert str(report) == f"1 bad row was left out (1 in corpus.jsonl): see {report.path}"
    entry = json.loads(report.path.read_text())
    assert entry == {"file": "corpus.jsonl", "row": 7, "reason": "not JSON", "raw": "\ufffd" + "x" * 199}
    assert Quarantine.read(tmp_path / "run") == report
    assert report.without({"other.jsonl"}).total == 1
    assert report.without({"corpus.jsonl"}).total == 0
    # Nothing bad leaves no file of an earlier reading.
    nothing = Quarantine().write(tmp_path / "run")
    assert str(nothing) == str(Quarantine()) == "no bad rows"
    assert nothing.path is None
    assert not list((tmp_path / "run").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        result.write(tmp_path / "file")


def test_too_many_bad_rows_stop_with_one_line() -> None:
    first = bad_entry(str(FILE), 7, "not JSON", b"")
    check_fraction("other.jsonl", 1, 0, None, 0.01)
    check_fraction(str(FILE), 200, 2, first, 0.01)
    check_fraction(str(FILE), 3, 1, first, 0.01)  # rounded up
    for rows, bad, fraction in ((1, 1, 0.01), (100, 1, 0.0), (3, 3, 0.99)):
        with pytest.raises(DataError):
            check_fraction(str(FILE), rows, bad, first, fraction)
    with pytest.raises(DataError) as caught:
        check_fraction(str(FILE), 199, 3, first, 0.01)
    assert str(caught.value) == (
        "corpus.jsonl row 7: not JSON; 3 of 199 rows are bad (1.51%), more than the 1 % allowed by "
        "max_bad_rows; correct the rows, or raise max_bad_rows"
    )
