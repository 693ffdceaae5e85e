from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from raytriever.data.quarantine import BadRow, Quarantine, QuarantineReport
from raytriever.data.rows import numbered_rows, object_of, string_field
from raytriever.errors import DataError, StorageError

FILE = Path("corpus.jsonl")


def test_rows_end_at_newlines_only_and_keep_their_numbers(tmp_path: Path) -> None:
    texts = ["one\u2028still one", "two\u0085two", "three\x0bthree\x0cthree"]
    raw = "\ufeff" + texts[0] + "\r\n" + texts[1] + "\n\n" + texts[2]
    for name, content in (("a.jsonl", raw.encode()), ("a.jsonl.gz", gzip.compress(raw.encode()))):
        (tmp_path / name).write_bytes(content)
        rows = [(number, row.decode()) for number, row in numbered_rows(tmp_path / name)]
        assert rows == [(1, texts[0]), (2, texts[1]), (4, texts[2])]


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: b"text\n", lambda raw: raw[:40] + b"x" * 40])
def test_a_broken_gzip_is_told_by_file(tmp_path: Path, damage) -> None:
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(damage(gzip.compress(b"".join(b"row %d\n" % n for n in range(1000)))))
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: the gzip is broken after row \d+ .*copy or compress it again"):
        list(numbered_rows(file))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"_id": "a", "text": "caf\xe9"}', r"byte 0xe9 at column 26 is not UTF-8"),
        (b'{"_id": "a"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'["a"]', "a JSON object is expected, not list"),
        (b'{"_id": "a", "contents": "x"}', 'no field "text"; the fields are _id, contents'),
        (b'{"text": "  "}', 'empty "text"'),
        (b'{"text": null}', '"text" is NoneType, not a string'),
        (rb'{"text": "\ud800"}', "half of a surrogate pair"),
    ],
)
def test_each_bad_row_has_its_reason(row: bytes, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        string_field(object_of(row), "text")


def test_few_bad_rows_are_written_down_and_counted(tmp_path: Path) -> None:
    quarantine = Quarantine(max_share=0.01)
    quarantine.add(FILE, 7, "not JSON", b"\xff" + b"x" * 500)
    quarantine.close(FILE, 100)
    assert str(quarantine.report()) == "1 bad row was left out (1 in corpus.jsonl)"
    report = quarantine.report().write(tmp_path / "run")
    assert report.total == 1
    assert report.path == tmp_path / "run" / "quarantine.jsonl"
    assert str(report) == f"1 bad row was left out (1 in corpus.jsonl): see {report.path}"
    entry = json.loads(report.path.read_text())
    assert entry == {"file": "corpus.jsonl", "row": 7, "reason": "not JSON", "raw": "\ufffd" + "x" * 199}


def test_too_many_bad_rows_stop_with_one_line() -> None:
    quarantine = Quarantine(max_share=0.01)
    quarantine.add(FILE, 7, "not JSON", b"")
    quarantine.add(FILE, 9, "later", b"")
    quarantine.close(Path("other.jsonl"), 1)
    quarantine.close(FILE, 200)
    with pytest.raises(DataError) as caught:
        quarantine.close(FILE, 199)
    assert str(caught.value) == (
        "corpus.jsonl row 7: not JSON; 2 of 199 rows are bad (1.01%), more than the 1 % allowed by "
        "--max-bad-rows; mend them or raise it"
    )


def test_nothing_bad_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "quarantine.jsonl").write_text("what an earlier reading left")
    report = Quarantine(0.01).report().write(tmp_path)
    assert str(report) == str(QuarantineReport()) == "no bad rows"
    assert report.path is None
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    quarantine = Quarantine(1)
    quarantine.add(FILE, 1, "bad", b"")
    with pytest.raises(StorageError, match="a file is in the way"):
        quarantine.report().write(tmp_path / "file")
