"""CSV and TSV files, and folders that `datasets` saved: separators, columns, splits, line breaks, lists, bad rows."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source
from raytriever.data.formats.csv_and_tsv import TableFile, texts_in
from raytriever.data.formats.file_blocks import parse_block, read_blocks
from raytriever.data.formats.known_formats import recognize
from raytriever.data.prepare.open_dataset import open_all_splits, open_dataset
from raytriever.data.records_and_bad_rows import BadRow

ROWS = [(f"question {number}?", f"answer {number}") for number in range(40)]


def table(folder: Path, header: str, separator: str = ",", name: str = "faq.csv") -> Path:
    file = folder / name
    file.write_text("\n".join([header, *(separator.join(row) for row in ROWS)]) + "\n")
    return file


@pytest.mark.parametrize(
    ("name", "header", "separator", "note"),
    [
        ("faq.csv", "Question,Answer", ",", "query = 'Question', passage = 'Answer', columns separated by commas"),
        ("faq.csv", "text; query", ";", "passage = 'text', query = 'query', columns separated by semicolons"),
        ("faq.csv", "anchor|positive", "|", "query = 'anchor', passage = 'positive', columns separated by |"),
        ("faq.tsv", "query\tpassage", "\t", "query = 'query', passage = 'passage', columns separated by tabs, quot"),
    ],
)
def test_separators_and_columns_are_recognized_and_said(
    tmp_path: Path, name: str, header: str, separator: str, note: str
) -> None:
    lines: list[str] = []
    dataset = open_dataset(table(tmp_path, header, separator, name), ["train", "dev", "test"], log=lines.append)
    assert lines[0].startswith(f"{name} is read with {note}")
    assert dataset.counts()["documents"] == 40
    first = "answer 0" if header.startswith("text") else "question 0?"
    assert first in list(dataset.queries.texts)


def test_queries_are_divided_by_their_digest(tmp_path: Path) -> None:
    lines: list[str] = []
    dataset = open_all_splits(table(tmp_path, "query,passage"), log=lines.append)
    assert lines[0].endswith(
        "; of its queries train has 16, dev has 12, test has 12, by their digest. Of 40 questions test has "
        "12 and dev has 12, fewer than the 50 that metrics and thresholds should have: add questions, or raise "
        "--test-fraction (now 0.3) and --dev-fraction (now 0.3)."
    )
    ordered = sorted((row[0] for row in ROWS), key=lambda text: hashlib.sha256(text.encode()).digest())
    for split, expected in {"test": ordered[:12], "dev": ordered[12:24], "train": ordered[24:]}.items():
        texts = {dataset.queries.texts[int(query)] for query in dataset.judgements[split].queries}
        assert texts == set(expected)


def test_a_column_or_the_names_of_files_say_the_split(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("split,query,passage\ntrain,a,A\nvalidation,b,B\n../x,c,C\n")
    dataset = open_all_splits(tmp_path / "a.csv", max_bad_rows=0.5)
    assert sorted(dataset.judgements) == ["dev", "train"]
    assert dataset.quarantine.entries[0]["reason"].startswith("split '../x' is not a name")
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("train", "test"):
        table(folder, "query,passage", name=f"{name}.csv")
    assert sorted(open_all_splits(folder).judgements) == ["test", "train"]


def test_a_bad_row_has_the_line_on_which_it_begins(tmp_path: Path) -> None:
    text = 'query,passage\n"two\nlines","A ""quoted"" one"\n\na,b,c\n,x\nlast,one\nanother,text\n'
    (tmp_path / "faq.csv.gz").write_bytes(gzip.compress(text.encode("utf-8-sig")))
    plan = recognize(Source.open(tmp_path / "faq.csv.gz"))
    for size in (1, 1 << 20):
        parsed = [parse_block(plan.parts[0], block) for block in read_blocks(plan.parts[0], 0, size)]
        queries = [query.text for item in parsed for query in item.records.queries]
        assert queries == ["two\nlines", "last", "another"]
        bad = [(entry["row"], entry["reason"]) for item in parsed for entry in item.bad]
        assert bad == [(5, "3 fields, the header has 2"), (6, 'empty "anchor"')]
        assert sum(item.rows for item in parsed) == 5


def test_negatives_scores_and_inference_are_columns_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("query,answer,negative_1,negative_2\na,A,x,\nb,B,,\nc,C,y,z\n")
    assert len(open_all_splits(tmp_path / "a.csv").documents) == 6
    (tmp_path / "b.csv").write_text("sentence1,sentence2,score\na,A,1.0\nb,B,0.2\nc,C,1\n")
    assert open_all_splits(tmp_path / "b.csv").counts()["bad_rows"] == 0
    (tmp_path / "c.csv").write_text("premise,hypothesis,label\na,A,entailment\nb,B,contradiction\n")
    assert open_all_splits(tmp_path / "c.csv").counts()["train_positives"] == 1
    # A column that is called like a score, but holds words.
    (tmp_path / "d.csv").write_text("query,answer,label\na,A,billing\nb,B,billing\nc,C,other\n")
    assert open_all_splits(tmp_path / "d.csv").counts()["documents"] == 3


def test_columns_may_be_named(tmp_path: Path) -> None:
    source = Source.open(table(tmp_path, "Frage,Antwort"))
    plan = recognize(source, columns="query=Frage, passage=Antwort")
    assert plan.parts[0].header == ("anchor", "positive")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"anchor": "a", "positive": "A"}\n')
    with pytest.raises(DataError, match="columns: has no effect: there is no CSV or TSV file to read"):
        recognize(Source.open(tmp_path / "set"), columns="query=Frage,passage=Antwort")


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (b"Frage,Antwort\na,A\n", "", "no column of the query and of the passage is recognized; it has Frage, Ant"),
        (b"Frage,Antwort\na,A\n", "query=Frge,passage=Antwort", "has no column 'Frge'; it has Frage, Antwort; did you"),
        (b"query,passage\na,A\nb,B\n", "", "has 2 different queries, too few to divide into train, dev and test"),
        (b"query,passage\n", "", "has no rows; give rows below the header"),
        (b"query,passage\na,\xe9\n", "", "is not a CSV file in UTF-8 (byte 0xe9 in line 2); save it again as UTF-8"),
        (b'query,passage\n"a,A\n', "", "faq.csv line 2: cannot be read as CSV (unexpected end of data)"),
        (b" \n", "", "the file is empty; give a header"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_line(tmp_path: Path, text: bytes, columns: str, message: str) -> None:
    (tmp_path / "faq.csv").write_bytes(text)
    with pytest.raises(DataError) as error:
        recognize(Source.open(tmp_path / "faq.csv"), columns=columns)
    assert message in str(error.value)


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
        (['a\t"', 'b\t""', 'c\t"a""'], [(2, ["a", '"']), (3, ["b", '""']), (4, ["c", '"a""'])]),
        (['a\t""""', 'b\t"it said ""no"" twice"'], [(2, ["a", '"']), (3, ["b", 'it said "no" twice'])]),
        # Neither: nothing of it is used.
        (['a\t"cut', "second line", "b\tB"], [(2, NEVER_CLOSED), (3, "1 fields, the header has 2"), (4, ["b", "B"])]),
        (["a", "b\tB"], [(2, "1 fields, the header has 2"), (3, ["b", "B"])]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quoted_fields_and_quotation_marks_of_a_tsv_file(
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
            "a.csv line 2: cannot be read as CSV (a carriage return in a field); enclose the field",
        ),
        (
            b'"query,passage\na,A\n',
            "a.csv line 1: cannot be read as CSV (its header has an open quotation mark); close the",
        ),
        (b"\n\n", "a.csv: the file is empty"),
        (
            "query,passage\na,A\n".encode("utf-16"),
            "is not a CSV file in UTF-8 (byte 0xff in line 1); save it again as UTF-8",
        ),
        (
            "query,passage\na,Ä\n".encode("latin-1"),
            "is not a CSV file in UTF-8 (byte 0xc4 in line 2); save it again as UTF",
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


def pairs(count: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        {"anchor": [f"q{n}" for n in range(count)], "positive": [f"d{n}" for n in range(count)]}
    )


def test_splits_of_pairs(tmp_path: Path) -> None:
    parts = {"train": pairs(8), "validation": pairs(3)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set", num_shards={"train": 2, "validation": 1})
    (tmp_path / "set" / "train" / "cache-0123.arrow").write_bytes(b"of map()")
    counts = open_all_splits(tmp_path / "set").counts()
    assert (counts["train_queries"], counts["dev_queries"], counts["documents"]) == (8, 3, 8)


@pytest.mark.parametrize("damage", ["cut", "words", "pickled", "empty"])
def test_a_broken_file_is_one_line(tmp_path: Path, damage: str) -> None:
    pairs(2500).save_to_disk(tmp_path / "set")
    [file] = (tmp_path / "set").glob("data-*.arrow")
    raw = file.read_bytes()
    if damage == "pickled":
        about = {b"ARROW:extension:name": b"ray.data.arrow_pickled_object", b"ARROW:extension:metadata": b""}
        schema = pa.schema([pa.field("anchor", pa.string()), pa.field("positive", pa.binary(), metadata=about)])
        with pa.ipc.new_stream(file, schema) as writer:
            writer.write_table(pa.table([["a"], [b"."]], schema=schema))
    else:
        file.write_bytes({"cut": raw[: len(raw) // 2], "words": b"no arrow at all", "empty": b""}[damage])
    with pytest.raises(DataError) as error:
        open_all_splits(tmp_path / "set")
    expected = {"cut": "Arrow file is broken", "words": "not an Arrow", "pickled": "extension type", "empty": "no row"}
    assert expected[damage] in str(error.value)
    assert str(file) in str(error.value)
