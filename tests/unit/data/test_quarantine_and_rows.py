from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from raytriever.data.formats.rows import numbered_rows
from raytriever.data.records import QuarantineReport, bad_entry, check_share
from raytriever.errors import DataError, StorageError

FILE = Path("corpus.jsonl")


def test_rows_end_at_newlines_only_and_keep_their_numbers(tmp_path: Path) -> None:
    texts = ["one\u2028still one", "two\u0085two", "three\x0bthree\x0cthree"]
    raw = "\ufeff" + texts[0] + "\r\n" + texts[1] + "\n\n" + texts[2]
    for name, content in (("a.jsonl", raw.encode()), ("a.jsonl.gz", gzip.compress(raw.encode()))):
        (tmp_path / name).write_bytes(content)
        rows = [(number, row.decode()) for number, row in numbered_rows(tmp_path / name)]
        assert rows == [(1, texts[0]), (2, texts[1]), (4, texts[2])]


def report_of(row: int, raw: bytes) -> QuarantineReport:
    return QuarantineReport((bad_entry(str(FILE), row, "not JSON", raw),))


def test_few_bad_rows_are_written_down_and_counted(tmp_path: Path) -> None:
    result = report_of(7, b"\xff" + b"x" * 500)
    assert str(result) == "1 bad row was left out (1 in corpus.jsonl)"
    report = result.write(tmp_path / "run")
    assert report.total == 1
    assert report.path == tmp_path / "run" / "quarantine.jsonl"
    assert str(report) == f"1 bad row was left out (1 in corpus.jsonl): see {report.path}"
    entry = json.loads(report.path.read_text())
    assert entry == {"file": "corpus.jsonl", "row": 7, "reason": "not JSON", "raw": "\ufffd" + "x" * 199}
    assert QuarantineReport.read(tmp_path / "run") == report
    assert report.without({"other.jsonl"}).total == 1
    assert report.without({"corpus.jsonl"}).total == 0


def test_too_many_bad_rows_stop_with_one_line() -> None:
    first = bad_entry(str(FILE), 7, "not JSON", b"")
    check_share("other.jsonl", 1, 0, None, 0.01)
    check_share(str(FILE), 200, 2, first, 0.01)
    check_share(str(FILE), 3, 1, first, 0.01)  # rounded up
    for rows, bad, share in ((1, 1, 0.01), (100, 1, 0.0), (3, 3, 0.99)):
        with pytest.raises(DataError):
            check_share(str(FILE), rows, bad, first, share)
    with pytest.raises(DataError) as caught:
        check_share(str(FILE), 199, 3, first, 0.01)
    assert str(caught.value) == (
        "corpus.jsonl row 7: not JSON; 3 of 199 rows are bad (1.51%), more than the 1 % allowed by "
        "--max-bad-rows; correct the rows, or raise --max-bad-rows"
    )


def test_nothing_bad_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "quarantine.jsonl").write_text("what an earlier reading left")
    report = QuarantineReport().write(tmp_path)
    assert str(report) == str(QuarantineReport()) == "no bad rows"
    assert report.path is None
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file is in the way"):
        report_of(1, b"").write(tmp_path / "file")
