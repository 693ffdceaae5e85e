"""CSV and TSV files as data sets: separators, columns, splits, lines of bad rows."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source
from raytriever.data.formats.csv_and_tsv import TableFile
from raytriever.data.formats.file_blocks import parse_block, read_blocks
from raytriever.data.formats.known_formats import recognize
from raytriever.data.prepare.open_dataset import open_all_splits, open_dataset

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
    assert dataset.quarantine.entries[0]["reason"].startswith("split '../x' is no name")
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
        (b"query,passage\na,\xe9\n", "", "is no CSV file in UTF-8 (byte 0xe9 in line 2); save it again as UTF-8"),
        (b'query,passage\n"a,A\n', "", "faq.csv line 2: is no CSV (unexpected end of data)"),
        (b" \n", "", "the file is empty; give a header"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_line(tmp_path: Path, text: bytes, columns: str, message: str) -> None:
    (tmp_path / "faq.csv").write_bytes(text)
    with pytest.raises(DataError) as error:
        recognize(Source.open(tmp_path / "faq.csv"), columns=columns)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ('"Slow" or "fast"', '"Slow" or "fast"'),
        ('The word "go"', 'The word "go"'),
        ('a 5" pipe', 'a 5" pipe'),
        ('"it said ""no"" twice"', 'it said "no" twice'),
        ('"A whole text"', "A whole text"),
        ('""""', '"'),
        ('""', '""'),
        ('"', '"'),
        ('"a""', '"a""'),
    ],
)
def test_quotation_marks_of_a_tsv_file_are_kept_unless_they_enclose_a_field(
    tmp_path: Path, field: str, text: str
) -> None:
    (tmp_path / "pairs.tsv").write_text(f"query\tpassage\nq\t{field}\n")
    [(_, fields)] = TableFile.open(str(tmp_path / "pairs.tsv")).rows()
    assert fields == ["q", text]
