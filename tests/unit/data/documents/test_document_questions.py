"""Questions are matched to passages; a row that cannot be matched is listed with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.core.errors import DataError
from raytriever.data.documents.document_questions import Questions
from raytriever.data.documents.document_splits import assign_splits
from raytriever.data.documents.passage_chunking import Passage, passage_id

PATHS = ["guide/setup.md", "guide/faq.md", "old/faq.md", "manual.pdf", "Cafe\u0301 menu #1.md"]
TEXTS = {
    "install": ("Install", "Open the box. Attach the “red” hose, then tighten\nboth screws by hand and close the lid."),
    "install:2": ("Install", "and close the lid. Then switch it on and wait until the green lamp is lit for a minute."),
    "page=3": ("", "Valve 1420 leaks."),
}
PASSAGES = [
    Passage(f"f#{name}", name.partition(":")[0], heading, "", text, 0) for name, (heading, text) in TEXTS.items()
]


def read(tmp_path: Path, text: str, name: str = "qa.csv", columns: str = "") -> Questions:
    (tmp_path / name).write_text(text)
    return Questions(str(tmp_path / name), columns, PATHS, "/data/docs")


def matched(tmp_path: Path, row: str) -> list[str] | str:
    questions = read(tmp_path, f"question,file,answer,anchor\nq,setup.md,{row}\n")
    pairs = questions.match("guide/setup.md", PASSAGES)
    return pairs[0][1] if pairs else str(questions.bad[0]["reason"])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (",", ["f#install", "f#install:2", "f#page=3"]),
        (",#install", ["f#install", "f#install:2"]),
        (",Install", ["f#install", "f#install:2"]),
        (",3", ["f#page=3"]),
        (",instal", "no section 'instal' with text in guide/setup.md; did you mean 'install'?"),
        ('"attach the ""red"" hose then tighten both screws",', ["f#install"]),
        ("and close the lid,", ["f#install", "f#install:2"]),
        ("and close the lid,page=3", "the text of the answer is not in guide/setup.md"),
        (
            "tighten both screws by hand and close the lid then switch it on and wait until,",
            ["f#install", "f#install:2"],
        ),
        ("Attach the red hose to the moon and back again today,", "the text of the answer is not in guide/setup.md ("),
        ("142,", "the text of the answer is not in guide/setup.md"),
        ("1420,", ["f#page=3"]),
        ("...,", "the answer has no letter and no digit"),
        ("Attach the red ho\u00adse then tight\u200ben both screws,", ["f#install"]),
    ],
)
def test_an_answer_is_matched_to_passages(tmp_path: Path, row: str, expected: list[str] | str) -> None:
    result = matched(tmp_path, row)
    assert result.startswith(expected) if isinstance(expected, str) and isinstance(result, str) else result == expected


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("guide/setup.md", "guide/setup.md"),
        ("./guide/setup.md", "guide/setup.md"),
        ("guide\\setup.md", "guide/setup.md"),
        ("/data/docs/guide/setup.md", "guide/setup.md"),
        ("docs/guide/setup.md", "guide/setup.md"),
        ("SETUP.md", "guide/setup.md"),
        ("manual.pdf#page=3", "manual.pdf"),
        ("old/faq.md", "old/faq.md"),
        ("CAF\u00c9 menu #1.md", PATHS[-1]),
        ("Cafe\u0301%20menu%20%231.md", PATHS[-1]),
        ("Caf\u00e9%20menu%20%231.md#a%20b:2", PATHS[-1]),
        ("guide/setup.md:2", "guide/setup.md"),
    ],
)
def test_a_file_is_named_in_several_ways(tmp_path: Path, name: str, path: str) -> None:
    assert list(read(tmp_path, f"question,file\nq,{name}\n").by_file) == [path]


@pytest.mark.parametrize("number", range(5))
def test_the_id_of_a_passage_names_it(tmp_path: Path, number: int) -> None:
    path, parts = PATHS[-1], [("", 1), ("", 2), ("a b", 1), ("a b", 2), ("c%d", 1)]
    passages = [Passage(passage_id(path, *part), part[0], "", "", "text", 0) for part in parts]
    questions = read(tmp_path, f"question,file\nq,{passages[number].id}\n")
    [(_, ids)] = questions.match(path, passages)
    # The id of the first passage of a section, or of a file, is the name of the whole.
    expected = [passages, passages[1:2], passages[2:4], passages[3:4], passages[4:]][number]
    assert ids == [passage.id for passage in expected]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("q,faq.md", "2 files are called 'faq.md': guide/faq.md, old/faq.md; write the path"),
        ("q,gide/setup.md", "no file 'gide/setup.md' was read; did you mean 'guide/setup.md'?"),
        ("q,old/fax/setup.md", "no file 'old/fax/setup.md' was read; did you mean 'guide/setup.md'?"),
        ("q,zzz", "no file 'zzz' was read"),
        (",setup.md", 'empty "question"'),
        ("q,setup.md,x", "3 fields, the header has 2"),
    ],
)
def test_a_row_that_names_no_file_is_listed_with_its_line(tmp_path: Path, row: str, reason: str) -> None:
    questions = read(tmp_path, f'question,file\n"fine\nreally",manual.pdf\n\n{row}\n')
    assert [(entry["row"], entry["reason"]) for entry in questions.bad] == [(5, reason)]
    assert questions.rows == 2


def test_ids_that_are_used_twice(tmp_path: Path) -> None:
    questions = read(
        tmp_path, "qid\tquestion\tfile\n1\ta\tmanual.pdf\n1\tb\tmanual.pdf\n2 3\tc\tmanual.pdf\n", "qa.tsv"
    )
    assert [(entry["row"], entry["reason"]) for entry in questions.bad] == [
        (3, "line 2 has a different question with the id '1'"),
        (4, "id '2 3' has white space"),
    ]


def test_json_lines_and_named_columns(tmp_path: Path) -> None:
    rows = '{"Frage": "a", "Datei": "manual.pdf"}\n\n{"Frage": "b"}\nno\n'
    questions = read(tmp_path, rows, "qa.jsonl", "question=Frage,file=Datei")
    assert [question.text for question in questions.by_file["manual.pdf"]] == ["a"]
    assert [question.text for question in questions.unjudged] == ["b"]
    assert questions.bad[0]["row"] == 4
    assert questions.description == "question = 'Frage', file = 'Datei'"


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("Frage,Datei\na,b\n", "", "no column of the question is recognized; it has Frage, Datei; name the columns"),
        ("Frage,Datei\na,b\n", "question=Frge", "has no column 'Frge'; it has Frage, Datei; did you mean 'Frage'?"),
        ("question,file\n", "", "has no questions; give a row for each question"),
        ("question,file,file\n", "", "the header names the column 'file' twice; rename one of them"),
        ("question,file\na,b\n", "question", "columns: 'question' is no ROLE=COLUMN"),
        ("question,file\na,b\n", "qestion=file", "columns: unknown name 'qestion'; did you mean 'question'?"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, columns: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, text, columns=columns)
    assert message in str(error.value)
    with pytest.raises(DataError, match=r"qa\.xlsx: is neither CSV, TSV nor JSONL; save it as .csv, .tsv or .jsonl"):
        read(tmp_path, text, "qa.xlsx")


def test_further_documents_move_no_other_document() -> None:
    paths = [f"d{number}.md" for number in range(300)]
    before = assign_splits(paths, 0)
    after = assign_splits(sorted([*paths, *(f"a{number}.md" for number in range(300))]), 0)
    assert {path: after[path] for path in paths} == before
    counts = [list(before.values()).count(split) for split in ("train", "dev", "test")]
    assert 200 < counts[0] < 280
    assert min(counts) > 10
    assert assign_splits(paths, 1) != before


def test_documents_that_answer_one_question_share_a_split() -> None:
    paths = [f"d{number}.md" for number in range(100)]
    groups = [[paths[number], paths[number + 1]] for number in range(50)]
    splits = assign_splits(paths, 0, groups)
    alone = assign_splits(paths, 0)
    assert {splits[path] for path in paths[:51]} == {"train"}  # one group of all questions
    assert [splits[path] for path in paths[51:]] == [alone[path] for path in paths[51:]]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("q,manual.pdf,,no", "conflicting: a question without an answer has a file, an answer or an anchor"),
        ("q,,text,no", "conflicting: a question without an answer has a file, an answer or an anchor"),
        ("q,none,text,", "conflicting: a question without an answer has a file, an answer or an anchor"),
        ("q,none,,yes", 'conflicting: "answerable" is yes, but "file" is none'),
        ("q,,,perhaps", "\"answerable\" is 'perhaps', neither yes nor no"),
        ("q,none,,\nq,manual.pdf,,", "conflicting: line 2 says that there is no answer"),
        ("q,manual.pdf,,\nq,none,,", "conflicting: another line has an answer to this question"),
    ],
)
def test_columns_that_contradict_each_other(tmp_path: Path, rows: str, reason: str) -> None:
    questions = read(tmp_path, f"question,file,answer,answerable\n{rows}\n")
    assert [(entry["row"], entry["reason"]) for entry in questions.bad] == [(1 + len(rows.split("\n")), reason)]


def test_a_column_names_splits(tmp_path: Path) -> None:
    rows = ["a,manual.pdf,test", "b,setup.md,validation", "c,none,dev", "d,setup.md,", "e,setup.md,x", "a,setup.md,dev"]
    questions = read(tmp_path, "\n".join(["question,file,split", *rows]) + "\n")
    assert questions.named_splits() == {"manual.pdf": "test", "guide/setup.md": "dev"}
    assert [question.split for question in questions.unanswerable.values()] == ["dev"]
    assert list(questions.groups()) == [["guide/setup.md"]]
    assert [(entry["row"], entry["reason"]) for entry in questions.bad] == [
        (6, "split 'x' is not one of train, dev, test"),
        (7, "conflicting: the split is 'dev', but in line 2 it is 'test'"),
    ]


def test_a_file_of_test_questions(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("question,file,split\nc,manual.pdf,\nd,none,\ne,manual.pdf,dev\n")
    (tmp_path / "qa.csv").write_text("question,file\na,manual.pdf\nb,setup.md\n")
    questions = Questions(str(tmp_path / "qa.csv"), "", PATHS, "/data/docs", str(tmp_path / "test.csv"))
    assert [question.split for question in questions.by_file["manual.pdf"]] == ["", "test"]
    assert [question.split for question in questions.unanswerable.values()] == ["test"]
    assert questions.named_splits() == {}
    assert [(entry["file"], entry["row"], entry["reason"]) for entry in questions.bad] == [
        (str(tmp_path / "test.csv"), 4, "conflicting: the split is 'dev', but all questions of this file are test")
    ]
