from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from raytriever.data.formats.beir import QRELS_HEADER, document_row, judgement_columns, query_row
from raytriever.data.formats.chunks import Parsed, parse_chunk, read_chunks
from raytriever.data.formats.plan import Kind, Part
from raytriever.data.formats.row_formats import dpr_row
from raytriever.data.records import Records
from raytriever.errors import DataError

ODD = "line\u2028separator\u2029 next\u0085line \x0b\x0c\x1c\x1e \ufeffmark"


@dataclass(frozen=True)
class Kept:
    """Keeps rows as they come, in place of a format."""

    def __call__(self, row: Any, records: Records) -> None:
        records.documents.append(row)


def part_of(file: Path, kind: Kind = "json", parse: Any = document_row) -> Part:
    return Part(str(file), kind, parse, tuple(QRELS_HEADER) if kind == "tsv" else ())


def parsed(part: Part, size: int = 1 << 20) -> list[Parsed]:
    return [parse_chunk(part, chunk) for chunk in read_chunks(part, 0, size)]


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


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("size", [1, 7, 64, 1000, 1 << 20])
def test_rows_are_cut_at_newlines_only_at_any_size(tmp_path: Path, name: str, size: int) -> None:
    wanted = [f"{ODD} {n} " + "é" * (n % 50) for n in range(200)]
    file = write(tmp_path / name, [document(n, text) for n, text in enumerate(wanted)])
    chunks = list(read_chunks(part_of(file), 3, size))
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert {chunk.part for chunk in chunks} == {3}
    assert len(chunks) > 1 or size > 1000
    assert all(len(chunk.payload) < size + 400 for chunk in chunks)
    assert texts(part_of(file), size) == wanted


@pytest.mark.parametrize("size", [1, 30, 1 << 20])
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
    rows = [document(1, "a"), document(2, long), document(3, "b")]
    assert texts(part_of(write(tmp_path / "a.jsonl", rows))) == ["a", long, "b"]
    (tmp_path / "a.json").write_bytes(b"[" + b",\n".join(rows) + b"]")
    assert texts(part_of(tmp_path / "a.json", "array")) == ["a", long, "b"]
    parquet.write_table(
        pa.table({"_id": ["1", "2", "3"], "text": ["a", long, "b"]}), tmp_path / "a.parquet", row_group_size=1
    )
    assert texts(part_of(tmp_path / "a.parquet", "parquet")) == ["a", long, "b"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"_id": "a", "text": "\xed\xa0\x80"}', "byte 0xed at column 23 is not UTF-8"),
        (rb'{"_id": "\udc00", "text": "x"}', '"_id" holds half of a surrogate pair'),
        (b'{"_id": "a", "text": NaN}', "not JSON (NaN is not a number of JSON)"),
        (b'{"_id": "a", "text": "x", "score": -Infinity}', "not JSON (-Infinity is not a number of JSON)"),
        (b'{"_id": "a", "text": ' + b"1" * 5000 + b"}", "not JSON (Exceeds the limit"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": "x"}', 'no field "_id"; the fields are text'),
        (b'{"_id": true, "text": "x"}', '"_id" is bool, not a string'),
        (b'{"_id": "a", "text": "\\u2028 "}', 'empty "text"'),
    ],
)
def test_one_bad_row_is_quarantined_alone(tmp_path: Path, row: bytes, reason: str) -> None:
    part = part_of(write(tmp_path / "a.jsonl", [document(1, "a"), row, document(3, "b")]))
    assert texts(part) == ["a", "b"]
    ((number, message),) = bad(part)
    assert number == 2
    assert message.startswith(reason)


def test_whole_numbers_serve_as_ids(tmp_path: Path) -> None:
    part = part_of(write(tmp_path / "a.jsonl", [b'{"_id": 7, "text": "a"}', b'{"_id": -1, "text": "b"}']))
    assert [row.id for result in parsed(part) for row in result.records.documents] == ["7", "-1"]


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: b"text\n", lambda raw: raw[:40] + b"x" * 40])
@pytest.mark.parametrize("kind", ["json", "array", "tsv"])
def test_a_broken_gzip_is_reported_by_file(tmp_path: Path, damage: Any, kind: Kind) -> None:
    rows = [document(n, f"text {n}") for n in range(1000)]
    content = b"[" + b",".join(rows) + b"]" if kind == "array" else b"query-id\tcorpus-id\tscore\n" + b"\n".join(rows)
    file = tmp_path / "a.gz"
    file.write_bytes(damage(gzip.compress(content)))
    with pytest.raises(DataError, match=r"a\.gz: the gzip is broken after row \d+ .*copy or compress it again"):
        list(read_chunks(part_of(file, kind), 0))


def test_a_gzip_broken_late_gives_the_rows_before(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    rows = [document(n, f"{n * n * 7919} " * 40) for n in range(3000)]
    file.write_bytes(gzip.compress(b"\n".join(rows))[:-100])
    got = []
    with pytest.raises(DataError, match=r"the gzip is broken after row [1-9]\d+ "):
        got += [chunk.number for chunk in read_chunks(part_of(file), 0, 4096)]
    chunks = read_chunks(part_of(file), 0, 4096)
    assert next(chunks).first_row == 1
    chunks.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("header", ["q1\td1\t1", "query-id corpus-id score", "\ufeff\ufeff"])
def test_a_wrong_header_stops(tmp_path: Path, header: str) -> None:
    file = write(tmp_path / "a.tsv", [header.encode(), b"q1\td1\t1"])
    with pytest.raises(DataError, match=r"a\.tsv row 1: the header is .*query-id<TAB>corpus-id<TAB>score"):
        list(read_chunks(part_of(file, "tsv"), 0))


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_judgements_are_columns_behind_a_header(tmp_path: Path, size: int) -> None:
    rows = [b"\xef\xbb\xbfquery-id\tcorpus-id\tscore\r", b"q1\td1\t1\r", b"", b"q1\td2", b"q\xff\td2\t0", b"q 1\td2\t0"]
    part = part_of(write(tmp_path / "a.tsv", rows), "tsv", partial(judgement_columns, ()))
    results = [row for one in parsed(part, size) for row in one.records.judgements]
    assert [(row.query, row.document, row.score) for row in results] == [("q1", "d1", 1), ("q 1", "d2", 0)]
    assert bad(part, size) == [(4, "2 columns, not 3 separated by tabs"), (5, "byte 0xff at column 2 is not UTF-8")]
    (judged_nought,) = [row for one in parsed(part, size) for row in one.records.negatives]
    assert (judged_nought.document, judged_nought.origin) == ("d2", "gold")
    assert math.isnan(judged_nought.score)


def test_a_header_alone_holds_no_judgement(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", [b"query-id\tcorpus-id\tscore"])
    with pytest.raises(DataError, match="no judgement in it; give rows of query-id<TAB>corpus-id<TAB>score"):
        list(read_chunks(part_of(file, "tsv"), 0))


@pytest.mark.data
def test_squad_is_read_whole(data_packs: Path) -> None:
    documents = part_of(data_packs / "squad" / "corpus.jsonl.gz")
    queries = part_of(data_packs / "squad" / "queries.jsonl.gz", parse=query_row)
    assert sum(len(result.records.documents) for result in parsed(documents)) == 20_958
    assert sum(len(result.records.queries) for result in parsed(queries, 1 << 16)) == 98_159
    assert max(len(chunk.payload) for chunk in read_chunks(documents, 0)) < 1.1 * (1 << 20)
