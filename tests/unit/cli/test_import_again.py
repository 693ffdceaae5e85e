"""Import to the output of an earlier import: it is replaced, splits stay, and a kill leaves one data set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.core.store.commit import MANIFEST
from raytriever.data.prepare.open_dataset import open_all_splits

ErrorLine = Callable[..., str]
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


def test_user_errors(docs: Path, imported: Callable[..., list[str]], tiny_encoder: Path, error_line: ErrorLine) -> None:
    def line(*more: str, folder: Path = docs, output: str = "out", questions: Path | None = docs / "qa.csv") -> str:
        words = [str(folder), "--model", str(tiny_encoder), "--output", output, "--passage-length", "32"]
        return error_line("import", *words, *(["--questions", str(questions)] if questions else []), *more)

    before = (OUT / MANIFEST).read_bytes()
    assert "seed: is 3, but out was divided with 0; give seed 0, or another output" in line("--seed", "3")
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
    assert "corpus.jsonl: is incomplete: 0 bytes of" in line()
    Path("made").mkdir()
    Path("made", MANIFEST).write_text('{"format": 1, "files": {}, "meta": {"kind": "index"}}')
    assert "made: was not written by `raytriever import`; give another output" in line(output="made")
