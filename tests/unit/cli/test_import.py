"""`import` from the command line: a folder becomes a data set, which a further import replaces or leaves whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import pytest
from office import slide_file, word_file
from pdf import write_endless_pdf, write_pdf

from raytriever.cli.main import run
from raytriever.core.store.commit import MANIFEST
from raytriever.data.documents import reader_process
from raytriever.data.prepare.open_dataset import open_all_splits

ErrorLine = Callable[..., str]


def words(docs: Path, model: Path, output: str, *more: str) -> list[str]:
    return [str(docs), "--model", str(model), "--output", output, "--passage-length", "32", *more]


def contents(folder: str) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}


def test_columns_of_questions_that_are_not_read_are_named(
    docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (docs / "qa.csv").read_text().splitlines()
    (docs / "more.csv").write_text("\n".join([f"{text[0]},Antwort", *(f"{line},x" for line in text[1:])]) + "\n")
    assert run("import", words(docs, tiny_encoder, "out", "--questions", str(docs / "more.csv"))) == 0
    assert "columns separated by commas; not read: 'Antwort'." in capsys.readouterr().out


def test_a_folder_becomes_a_data_set(docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "empty.html").touch()
    (docs / "picture.PNG").touch()
    questions = ["--questions", str(docs / "qa.csv")]
    assert run("import", words(docs, tiny_encoder, "out", *questions)) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert lines[1].split()[:2] == ["Markdown", "30"]
    assert "  empty.html: is empty; remove it" in lines
    assert "Files that are not documents: .png (1)" in lines
    assert "1 row left out, listed in out/quarantine.jsonl; the first in line 32: no file 'partt1.md' was read" in out
    assert "read with question = 'question', file = 'file', anchor = 'anchor', columns separated by commas." in out
    assert lines[-1] == f"Continue with: raytriever train --dataset out --model {tiny_encoder}"
    opened = open_all_splits("out")
    documents = {row["file"]: row for row in map(json.loads, Path("out/documents.jsonl").read_text().splitlines())}
    assert len(opened.documents) == sum(row["passages"] for row in documents.values())
    for split, judgements in opened.judgements.items():
        for position in judgements.documents:
            name = opened.documents.ids[int(position)]
            assert documents[name.partition("#")[0]]["split"] == split
            assert "#repair" in name
    assert sum(len(set(rows.queries.tolist())) for rows in opened.judgements.values()) == 30
    quarantine = [json.loads(line) for line in Path("out/quarantine.jsonl").read_text().splitlines()]
    assert [(entry["file"], entry["row"]) for entry in quarantine] == [("empty.html", 0), (str(docs / "qa.csv"), 32)]
    # The same folder and seed give the same bytes.
    assert run("import", words(docs, tiny_encoder, "again", *questions)) == 0
    assert contents("again") == contents("out")


def test_no_passage_is_longer_than_the_encoder_reads(docs: Path, tiny_encoder: Path) -> None:
    from raytriever.models.description import describe
    from raytriever.models.directory.modules import ModelFiles
    from raytriever.models.model_settings import ModelConfig
    from raytriever.models.tokenization import load_tokenizer

    (docs / "letters.txt").write_text("x " * 500)
    assert run("import", words(docs, tiny_encoder, "out")) == 0
    files = ModelFiles.read(tiny_encoder)
    assert describe(files, ModelConfig(model=str(tiny_encoder), passage_length=32)).passage_length == 32
    tokenizer = load_tokenizer(files.sides["passage"].transformer)
    rows = [json.loads(line) for line in Path("out/corpus.jsonl").read_text().splitlines()]
    lengths = [len(tokenizer.encode(f"{row['title']} {row['text']}")) for row in rows]
    assert 30 <= max(lengths) <= 32


def test_without_questions_the_last_line_says_what_can_be_done(
    docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("import", words(docs, tiny_encoder, "out")) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "There are no questions, so there is nothing to train on. Search now with: raytriever search --data" in last
    assert "`raytriever annotate` finds the answers" in last
    opened = open_all_splits("out", [])
    assert opened.counts()["queries"] == 0
    assert len(opened.documents) > 30


def test_questions_without_files_are_for_annotate(
    docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("q.csv").write_text("question\nwhat is steel\nwhat is wood\n")
    assert run("import", words(docs, tiny_encoder, "out", "--questions", "q.csv")) == 0
    out = capsys.readouterr().out
    assert "Questions without a file: 2; they are in no split." in out
    assert "raytriever annotate --dataset out" in out.splitlines()[-1]
    assert open_all_splits("out", []).counts()["queries"] == 2


def test_user_errors(docs: Path, tiny_encoder: Path, error_line: ErrorLine) -> None:
    def line(*more: str, folder: Path = docs, output: str = "out") -> str:
        return error_line("import", *words(folder, tiny_encoder, output, *more))

    Path("pictures").mkdir()
    Path("pictures/a.png").touch()
    assert "has no documents; its files end in .png (1); give a folder with files that end in .md" in line(
        folder=Path("pictures")
    )
    Path("blank").mkdir()
    Path("blank/a.md").touch()
    assert "none of the 1 files has text that can be read; a.md is empty; remove it" in line(folder=Path("blank"))
    assert "doc: no such folder; did you mean" in line(folder=Path("doc"))
    assert "docs: already exists; give another path, or remove this one" in line(output="docs")
    assert "qa.cvs: no such file; did you mean" in line("--questions", str(docs / "qa.cvs"))
    assert "columns: has no effect" in line("--columns", "question=a")
    assert "overlap_tokens: 20 is too many" in line("--overlap-tokens", "20")
    Path("q.csv").write_text("question,file\na,nowhere.md\n")
    assert "q.csv line 2: no question can be used: no file 'nowhere.md' was read" in line("--questions", "q.csv")


def test_pdf_files_are_read_within_a_limit(
    docs: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pdf(docs / "a.pdf", ["A page about pumps."])
    write_pdf(docs / "b.pdf", ["A secret page."], password="hidden")
    assert run("import", words(docs, tiny_encoder, "out")) == 0
    out = capsys.readouterr().out
    assert "  b.pdf: is encrypted; save a copy without a password (`qpdf --decrypt`)" in out
    assert "\nPDF           1         1" in out
    write_endless_pdf(docs / "c.pdf")
    monkeypatch.setattr(reader_process, "_SECONDS", {"PDF": (1.0, 0.0)})
    assert run("import", words(docs, tiny_encoder, "again")) == 0
    assert "c.pdf: takes longer than 1 s to read; print it to a new PDF file, or leave" in capsys.readouterr().out
    assert not active_children()


def test_files_of_office(docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "manual.docx").write_bytes(word_file())
    (docs / "talk.pptx").write_bytes(slide_file(["Pumps"]))
    (docs / "secret.docx").write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
    questions = "question,file,anchor\nwhat about pumps,talk.pptx,slide=1\nwhat is the price,manual.docx,Prices\n"
    (docs / "office.csv").write_text(questions)
    assert run("import", words(docs, tiny_encoder, "out", "--questions", str(docs / "office.csv"))) == 0
    assert "  secret.docx: is encrypted, or a file of Office 2003 or earlier; save a copy" in capsys.readouterr().out
    ids = open_all_splits("out").documents.ids
    assert {"manual.docx#installation", "manual.docx#prices", "talk.pptx#slide=1"} <= {
        name.split(":")[0] for name in ids
    }


def test_files_that_cannot_be_read_are_skipped(
    docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(docs / "pipe.md")
    with (docs / "huge.txt").open("wb") as stream:
        stream.truncate(2_000_000_000)
    (docs / "latin.txt").write_bytes(b"Gr\xfc\xdfe")
    (docs / "part7.md").write_bytes(b"")
    os.close(os.open(os.fsencode(docs) + b"/\xff.md", os.O_CREAT))
    (docs / "copy.md").write_bytes((docs / "part1.md").read_bytes())
    (docs / "long.txt").write_text("Valves leak. " * 200)
    (docs / "a copy of it.txt").write_bytes((docs / "long.txt").read_bytes())
    (docs / "key.md").symlink_to("/etc/hostname")
    (docs / "b.rst").write_text("text")
    assert run("import", words(docs, tiny_encoder, "out", "--questions", str(docs / "qa.csv"))) == 0
    out = capsys.readouterr().out
    for reason in (
        "\\xff.md: its name is not UTF-8; rename it",
        "huge.txt: has 2.0 GB, more than 64.0 MB; divide it",
        "latin.txt: byte 0xfc in line 1 is not UTF-8; save it as UTF-8",
        "pipe.md: is a pipe, a socket or a device; give a regular file",
        "2 files with the text of another file (remove one of them):",
        "part1.md repeats copy.md",
        "long.txt repeats a copy of it.txt",
        "key.md: is a link to a path outside the folder; copy the file into the folder",
        "b.rst: is reStructuredText, which cannot be read; convert it to Markdown",
    ):
        assert reason in out
    quarantine = [json.loads(line) for line in Path("out/quarantine.jsonl").read_text().splitlines()]
    assert "part7.md was skipped: is empty; remove it" in {entry["reason"] for entry in quarantine}


def test_questions_without_an_answer_and_fractions(
    docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (docs / "qa.csv").read_text().splitlines()[1:31]
    rows += [f"who painted {number},none," for number in range(4)]
    Path("q.csv").write_text("\n".join(["question,file,anchor", *rows, "unknown,,"]) + "\n")
    questions = ["--questions", "q.csv"]
    assert run("import", words(docs, tiny_encoder, "out", *questions)) == 0
    out = capsys.readouterr().out
    assert "Questions with an answer: train 12, dev 9, test 9." in out
    assert "Questions without an answer: train 2, dev 1, test 1." in out
    assert (
        "Questions without a file: 1; they are in no split. If the folder does not answer a question, write `none` as"
        in out
    )
    assert (
        "Of 34 questions test has 10 and dev has 10, fewer than the 50 that metrics and thresholds should have: add "
        "questions, or raise --test-fraction (now 0.3) and --dev-fraction (now 0.3)." in out
    )
    counts = open_all_splits("out").counts()
    assert [counts[f"{split}_unanswerable"] for split in ("train", "dev", "test")] == [2, 1, 1]
    fractions = ["--test-fraction", "0.5", "--dev-fraction", "0"]
    assert run("import", words(docs, tiny_encoder, "half", *questions, *fractions)) == 0
    assert "Questions with an answer: train 15, dev 0, test 15." in capsys.readouterr().out


def test_evaluation_alone_needs_no_train(docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = ["--questions", str(docs / "qa.csv"), "--test-fraction", "1"]
    assert run("import", words(docs, tiny_encoder, "out", *questions)) == 0
    out = capsys.readouterr().out
    assert "Questions with an answer: train 0, dev 0, test 30." in out
    last = f"Continue with: raytriever evaluate --model {tiny_encoder} --datasets out --output DIR"
    assert out.splitlines()[-1] == last
    assert run("evaluate", last.split()[4:]) == 0


def test_splits_that_cannot_be_made(docs: Path, tiny_encoder: Path, error_line: ErrorLine) -> None:
    def line(*more: str) -> str:
        return error_line("import", *words(docs, tiny_encoder, "out", *more))

    questions = ["--questions", str(docs / "qa.csv")]
    assert "have a sum above 1; give fractions with a sum of at most 1" in line(
        "--test-fraction", "0.6", "--dev-fraction", "0.5"
    )
    assert "test_fraction" in line("--test-fraction", "1.5")
    assert "test_questions: has no effect; give questions too" in line("--test-questions", str(docs / "qa.csv"))
    Path("test.csv").write_text("question,file\nwhat replaces part 3,part3.md\n")
    assert "test_fraction 0.2: has no effect with test_questions; leave out one" in line(
        *questions, "--test-questions", "test.csv", "--test-fraction", "0.2"
    )
    Path("both.csv").write_text("question,file\nhow do I repair 3,part3.md\n")
    assert "both.csv line 2: the question is also in" in line(*questions, "--test-questions", "both.csv")


OUT = Path("out")


@pytest.fixture
def imported(docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    def imported(*more: str, output: str = "out") -> list[str]:
        """Import, and return the lines that were printed."""
        words = [str(docs), "--model", str(tiny_encoder), "--output", output, "--passage-length", "32"]
        assert run("import", [*words, "--questions", str(docs / "qa.csv"), *more]) == 0
        return capsys.readouterr().out.splitlines()

    imported()
    return imported


def corpus(folder: Path = OUT) -> dict[str, tuple[str, str]]:
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    passages = {row["_id"]: (row["title"], row["text"]) for row in rows}
    assert len(passages) == len(rows)
    return passages


def splits() -> dict[str, str]:
    return {row["file"]: row["split"] for row in map(json.loads, (OUT / "documents.jsonl").read_text().splitlines())}


def judged() -> dict[str, str]:
    """Split of each question that has an answer."""
    rows = map(json.loads, (OUT / "queries.jsonl").read_text().splitlines())
    names = {row["_id"]: row["text"] for row in rows}
    return {
        names[line.split("\t")[0]]: file.stem
        for file in (OUT / "qrels").iterdir()
        for line in file.read_text().splitlines()[1:]
    }


def test_the_data_set_is_replaced(
    docs: Path, imported: Callable[..., list[str]], write_part: Callable[..., None]
) -> None:
    questions = judged()
    (docs / "new.md").write_text("# New\n\nA new part of brass.")
    write_part(docs, 3, "brass")
    (docs / "part29.md").unlink()
    lines = imported()
    imported(output="again")
    assert corpus() == corpus(Path("again"))
    assert "new.md#new" in corpus()
    assert not [name for name in corpus() if name.startswith("part29.md")]
    assert "out was replaced. Files and questions of the earlier import keep their splits." in lines
    assert lines[-1].endswith(" --output DIR (a new folder: a finished run does not train again)")
    assert "--test-fraction" not in "".join(lines)  # other fractions change no known split
    assert judged() == {text: split for text, split in questions.items() if text != "how do I repair 29"}
    reasons = [json.loads(line)["reason"] for line in (OUT / "quarantine.jsonl").read_text().splitlines()]
    assert reasons[0].startswith("no file 'part29.md' was read")
    assert len(open_all_splits("out").documents) == len(corpus())


def test_without_a_change_every_byte_stays(imported: Callable[..., list[str]]) -> None:
    before = {str(file): file.read_bytes() for file in OUT.rglob("*") if file.is_file()}
    imported()
    assert {str(file): file.read_bytes() for file in OUT.rglob("*") if file.is_file()} == before


def test_files_and_questions_stay_in_their_splits(docs: Path, imported: Callable[..., list[str]]) -> None:
    files, questions = splits(), judged()
    tested = next(name for name, split in questions.items() if split == "test")
    number = tested.rsplit(" ", 1)[1]
    trained = next(file for file, split in files.items() if split == "train")
    # a-*.md sort before all others, so a new import would move the files with which they share a question.
    rows = (docs / "qa.csv").read_text().replace(f"part{number}.md", "moved.md").splitlines()
    rows += [f"how do I repair {at},a-{at}.md," for at in range(30) if str(at) != number]
    rows.append(f"of both,{trained},\nof both,part{number}.md,")
    (docs / "qa.csv").write_text("\n".join(rows) + "\n")
    for at in range(30):
        (docs / f"a-{at}.md").write_text(f"# Another\n\nMore of {at}.")
    (docs / "moved.md").write_text("# Moved\n\n## Repair\n\nMoved text.")
    imported()
    assert files.items() <= splits().items()
    assert questions.items() <= judged().items()
    assert splits()["moved.md"] == "test"
    assert all(splits()[f"a-{at}.md"] == files[f"part{at}.md"] for at in range(30) if str(at) != number)
    reasons = [json.loads(line)["reason"] for line in (OUT / "quarantine.jsonl").read_text().splitlines()]
    assert reasons.count("the files that answer it are in test and train; remove one of the files") == 2
    assert "of both" not in judged()
    # A question of test is left out if its answer moves into a file of train.
    (docs / "qa.csv").write_text((docs / "qa.csv").read_text().replace("moved.md", trained))
    imported()
    assert tested not in judged()
    reason = "was a question of test, and the files that answer it are in train; remove one of the files"
    assert reason in (OUT / "quarantine.jsonl").read_text()


def test_splits_that_rows_name_stay(docs: Path, imported: Callable[..., list[str]]) -> None:
    """A file answers a question of train and one of test, as their rows say, and does so again."""
    rows = [f"of {split} {number},part{number}.md,{split}" for number in range(3) for split in ("train", "test")]
    Path("named.csv").write_text("\n".join(["question,file,split", *rows]) + "\n")
    for _ in range(2):
        imported("--questions", "named.csv", output="named")
        lines = Path("named/qrels/test.tsv").read_text().splitlines()
        assert len({line.split("\t")[0] for line in lines[1:]}) == 3
        assert not Path("named/quarantine.jsonl").exists()


def test_user_errors_of_another_import(
    docs: Path, imported: Callable[..., list[str]], tiny_encoder: Path, error_line: ErrorLine
) -> None:
    def line(*more: str, folder: Path = docs, output: str = "out", questions: Path | None = docs / "qa.csv") -> str:
        words = [str(folder), "--model", str(tiny_encoder), "--output", output, "--passage-length", "32"]
        return error_line("import", *words, *(["--questions", str(questions)] if questions else []), *more)

    before = (OUT / MANIFEST).read_bytes()
    assert "seed: is 3, but out was divided into splits with 0; give seed 0, or another output" in line("--seed", "3")
    assert "out: has questions, but this import names no file of questions; give" in line(questions=None)
    Path("other").mkdir()
    Path("other/x.md").write_text("# X\n\nother")
    assert run("import", [str(docs), "--model", str(tiny_encoder), "--output", "corpus"]) == 0
    assert "corpus: none of its 30 files is in " in line(folder=Path("other"), questions=None, output="corpus")
    assert (OUT / MANIFEST).read_bytes() == before
    (OUT / "answers.jsonl").touch()
    assert "out: has answers.jsonl, which the import would remove; move it, or give another output" in line()
    (OUT / "answers.jsonl").unlink()
    (OUT / "corpus.jsonl").write_text("")
    assert "corpus.jsonl: is incomplete: 0 bytes instead of" in line()
    Path("made").mkdir()
    Path("made", MANIFEST).write_text('{"format": 1, "files": {}, "meta": {"kind": "index"}}')
    assert "made: was not written by `raytriever import`; give another output" in line(output="made")
