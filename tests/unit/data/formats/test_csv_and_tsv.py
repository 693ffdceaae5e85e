"""CSV and TSV files: line breaks in fields, line ends, headers, separators, lists in cells, and votes."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source
from raytriever.data.formats.csv_and_tsv import TableFile, texts_in
from raytriever.data.formats.known_formats import recognize
from raytriever.data.prepare.open_dataset import open_all_splits
from raytriever.data.records_and_bad_rows import BadRow


def rows_of(file: Path, content: str | bytes) -> list[tuple[int, list[str] | str]]:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(TableFile.open(str(file)).rows())


NEVER_CLOSED = "its last field begins with a quotation mark that is never closed"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # Quoted fields with a line break, a blank line or a tab.
        (['a\t"one\n\ntwo"', "b\tB"], [(2, ["a", "one\n\ntwo"]), (5, ["b", "B"])]),
        (['"a\nb"\tA', "c\tC"], [(2, ["a\nb", "A"]), (4, ["c", "C"])]),
        (['a\t"one\ttwo"', "b\tB"], [(2, ["a", "one\ttwo"]), (3, ["b", "B"])]),
        (['a\t"say ""x""\ny"'], [(2, ["a", 'say "x"\ny'])]),
        # Marks that belong to the text.
        (['a\t"lone', 'b\tan end"', "c\tC"], [(2, ["a", '"lone']), (3, ["b", 'an end"']), (4, ["c", "C"])]),
        (['a\t"x" or "y"', 'b\t5"', 'c\t"z'], [(2, ["a", '"x" or "y"']), (3, ["b", '5"']), (4, ["c", '"z'])]),
        # Neither: nothing of it is used.
        (['a\t"cut', "second line", "b\tB"], [(2, NEVER_CLOSED), (3, "1 fields, the header has 2"), (4, ["b", "B"])]),
        (["a", "b\tB"], [(2, "1 fields, the header has 2"), (3, ["b", "B"])]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_break_in_a_quoted_field_of_a_tsv_file(
    tmp_path: Path, lines: list[str], expected: list[tuple[int, list[str] | str]], end: str
) -> None:
    content = end.join(["query\tpassage", *(line.replace("\n", end) for line in lines)]) + end
    read = rows_of(tmp_path / "faq.tsv", content)
    plain = [(n, [f.replace(end, "\n") for f in row] if isinstance(row, list) else row) for n, row in read]
    assert plain == expected


def test_the_same_rows_as_csv_and_as_tsv(tmp_path: Path) -> None:
    rows = ["query,passage", *(f'q{n},"first {n}.\nsecond"' for n in range(60))]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    (tmp_path / "a.tsv").write_text("\n".join(row.replace(",", "\t") for row in rows))
    csv_set, tsv_set = (open_all_splits(tmp_path / f"a.{kind}", max_bad_rows=0) for kind in ("csv", "tsv"))
    assert csv_set.digest == tsv_set.digest
    assert len(tsv_set.documents) == 60


@pytest.mark.parametrize("name", ["faq.csv", "faq.tsv", "faq.CSV", "faq.TSV"])
def test_carriage_returns_end_the_lines_of_a_file_without_line_feeds(tmp_path: Path, name: str) -> None:
    sign = "\t" if "t" in name.lower()[-3:] else ","
    content = f'query{sign}passage\ra{sign}"first\nsecond"\rb{sign}B\r'
    assert rows_of(tmp_path / name, content) == [(2, ["a", "first\nsecond"]), (3, ["b", "B"])]


def test_headers_over_lines_and_separator_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('Question,"Answer\n(short)",answer\nq1,x,A1\n"q\n2",x,A2\nq3,x,A3\n')
    table = TableFile.open(str(file))
    assert table.columns == ("Question", "Answer (short)", "answer")
    assert [line for line, _ in table.rows()] == [3, 4, 6]
    assert sorted(open_all_splits(file).documents.texts) == ["A1", "A2", "A3"]
    for first in ("sep=;", '"sep=;"', "Sep=;"):
        assert rows_of(file, f"{first}\r\nQuestion;Answer\r\na;A, B\r\n") == [(3, ["a", "A, B"])]
    assert rows_of(file, "sep=#\nQuestion#Answer\na#A\n") == [(3, ["a", "A"])]
    assert rows_of(file, "\n\nquery,passage\na,A\n") == [(4, ["a", "A"])]
    assert rows_of(file, b"\xef\xbb\xbfsep=;\nquery;passage\na;A\n") == [(3, ["a", "A"])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"query,passage\na,first\rsecond\n",
            "a.csv line 2: is no CSV (a carriage return in a field); enclose the field",
        ),
        (b'"query,passage\na,A\n', "a.csv line 1: is no CSV (its header has an open quotation mark); close its"),
        (b"\n\n", "a.csv: the file is empty"),
        (
            "query,passage\na,A\n".encode("utf-16"),
            "is no CSV file in UTF-8 (byte 0xff in line 1); save it again as UTF-8",
        ),
        (
            "query,passage\na,Ä\n".encode("latin-1"),
            "is no CSV file in UTF-8 (byte 0xc4 in line 2); save it again as UTF",
        ),
    ],
)
def test_what_no_table_is_ends_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError) as error:
        rows_of(tmp_path / "a.csv", content)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("cell", "texts"),
    [
        ("['one', 'two']", ["one", "two"]),
        ('["it\'s", "a \\"b\\""]', ["it's", 'a "b"']),
        ("['one' 'two'\n 'three']", ["one", "two", "three"]),
        ('["caf\\u00e9"]', ["café"]),
        ("[]", []),
        (" ['one',] ", ["one"]),
        ("[1] see the manual", "[1] see the manual"),
        ("[deleted]", "[deleted]"),
        ("a 'b'", "a 'b'"),
    ],
)
def test_lists_in_cells_are_texts(cell: str, texts: object) -> None:
    assert texts_in(cell) == texts


@pytest.mark.parametrize("cell", ["['a', b, 'c']", "['a' ... 'c']", "['open, 'c']", '["a", null, "b"]', '["\\ud83d"]'])
def test_what_looks_like_a_list_and_is_none_is_a_bad_row(cell: str) -> None:
    with pytest.raises(BadRow):
        texts_in(cell)


def test_each_text_of_a_list_is_a_positive(tmp_path: Path) -> None:
    rows = [f"q{n},\"['a{n}', 'b{n}']\",\"['n{n}']\"" for n in range(4)]
    (tmp_path / "faq.csv").write_text("\n".join(["question,positive,negative", *rows, "\"['q']\",p,"]))
    dataset = open_all_splits(tmp_path / "faq.csv", max_bad_rows=0.5)
    assert sorted(dataset.documents.texts) == sorted(f"{kind}{n}" for n in range(4) for kind in "abn")
    assert [entry["reason"] for entry in dataset.quarantine.entries] == ['"anchor" is list, not a string']
    judged = [rows for rows in dataset.judgements.values() if len(rows)]
    assert sum(map(len, judged)) == 8
    assert {rank for rows in judged for rank in rows.ranks.tolist()} == {0, 1}


def test_a_column_score_is_read_only_if_it_is_named(tmp_path: Path) -> None:
    rows = ["question,answer,score,label"] + [f"q{n},A{n},{n % 4},{int(n > 0)}" for n in range(12)]
    votes = tmp_path / "votes.csv"
    votes.write_text("\n".join(row.rpartition(",")[0] for row in rows))
    lines: list[str] = []
    dataset = open_all_splits(votes, log=lines.append)
    note = "; 'score' is not read, since it may count votes; if it grades the passage, name it: --columns score=COLUMN"
    assert note in lines[0]
    assert sum(int((rows.scores > 0).sum()) for rows in dataset.judgements.values()) == 12
    named = recognize(Source.open(votes), columns="score=score")
    assert named.parts[0].header == ("anchor", "positive", "score")
    assert "score = 'score'" in named.note
    (tmp_path / "votes.jsonl").write_text('{"question": "q", "answer": "A", "score": 0}\n')
    assert recognize(Source.open(tmp_path / "votes.jsonl")).note == (
        "votes.jsonl: 'score' is read as the grade of the passage: 0 makes it a negative"
    )
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    assert recognize(Source.open(tmp_path / "labels.csv")).parts[0].header == ("anchor", "positive", "", "label")
