"""Update of an imported data set: ids, splits and bad rows stay, counts are right, and a kill leaves one data set."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.data.prepare.open import open_all_splits
from raytriever.store.commit import MANIFEST, read_manifest

ErrorLine = Callable[..., str]
OUT = Path("out")


@pytest.fixture
def imported(docs: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    def imported(*more: str, output: str = "out") -> list[str]:
        """Import, and return the lines that were printed."""
        words = [str(docs), "--model", str(tiny_encoder), "--output", output, "--passage-length", "32", *more]
        assert run("import", words) == 0
        return capsys.readouterr().out.splitlines()

    imported("--questions", str(docs / "qa.csv"))
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


def test_passages_are_added_changed_and_removed(
    docs: Path, imported: Callable[..., list[str]], write_part: Callable[..., None]
) -> None:
    before, questions, quarantine = corpus(), judged(), (OUT / "quarantine.jsonl").read_bytes()
    (docs / "new.md").write_text("# New\n\nA new part of brass.")
    write_part(docs, 3, "brass")
    (docs / "part29.md").unlink()
    lines = imported()  # the questions are read again from their file
    after = corpus()
    of_29 = {name for name in before if name.startswith("part29.md")}
    assert after.keys() - before.keys() == {"new.md#new"}
    assert before.keys() - after.keys() == of_29
    changed = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    assert changed == {"part3.md#part-3"}
    kept = len(before) - len(of_29) - 1
    counts = f"1 passages added, 1 changed, {len(of_29)} removed, {kept} unchanged"
    assert f"out was updated: {counts}. Ids of unchanged passages and all splits stay." in lines
    assert lines[-1].endswith(" --output DIR (a new folder: a finished run does not train again)")
    assert "--test-share" not in "".join(lines)  # shares of splits change nothing in an update
    assert judged() == {text: split for text, split in questions.items() if text != "how do I repair 29"}
    rows = [json.loads(line)["reason"] for line in (OUT / "quarantine.jsonl").read_text().splitlines()]
    assert rows[0].startswith("no file 'part29.md' was read")
    assert rows[1:] == [json.loads(quarantine)["reason"]]
    assert len(open_all_splits("out").documents) == len(after)


def test_without_a_change_every_byte_stays(imported: Callable[..., list[str]]) -> None:
    before = {str(file): file.read_bytes() for file in OUT.rglob("*") if file.is_file()}
    lines = imported()
    assert f"out was updated: 0 passages added, 0 changed, 0 removed, {len(corpus())} unchanged" in "\n".join(lines)
    assert {str(file): file.read_bytes() for file in OUT.rglob("*") if file.is_file()} == before


def test_an_unchanged_passage_keeps_its_id_behind_a_new_one(docs: Path, imported: Callable[..., list[str]]) -> None:
    text = (docs / "part5.md").read_text()
    (docs / "part5.md").write_text(text + "\n\n## Use\n\nTurn it.\n\n## Use\n\nPush it.")
    imported()
    before = corpus()
    first, second = (name for name, (_, text) in before.items() if text in ("Turn it.", "Push it."))
    # A new section of the same heading before them: a new import would give its passage the id of the first.
    (docs / "part5.md").write_text(text + "\n\n## Use\n\nPull it.\n\n## Use\n\nTurn it.\n\n## Use\n\nPush it.")
    imported()
    after = corpus()
    assert (after[first][1], after[second][1]) == ("Turn it.", "Push it.")
    [new] = after.keys() - before.keys()
    assert after[new][1] == "Pull it."
    imported(output="again")
    assert corpus(Path("again"))[first][1] == "Pull it."
    (docs / "part5.md").write_text(text + "\n\n## Use\n\nPush it.")
    imported()
    assert corpus()[second][1] == "Push it."
    assert first not in corpus()


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


def test_files_of_the_user_in_the_data_set_stay(imported: Callable[..., list[str]]) -> None:
    (OUT / "answers.jsonl").write_text("")
    imported()
    assert (OUT / "answers.jsonl").is_file()
    assert "answers.jsonl" in read_manifest(OUT)["files"]


def test_user_errors(docs: Path, imported: Callable[..., list[str]], tiny_encoder: Path, error_line: ErrorLine) -> None:
    def line(*more: str, folder: Path = docs, output: str = "out", length: str = "32") -> str:
        words = [str(folder), "--model", str(tiny_encoder), "--output", output, "--passage-length", length]
        return error_line("import", *words, *more)

    before = (OUT / MANIFEST).read_bytes()
    assert "--seed: is 3, and out was imported with 0; give --seed 0, or another --output" in line("--seed", "3")
    assert "--chunk-tokens: is 24, and out was imported with 30; give --chunk-tokens 30, or another" in line(
        length="26"
    )
    Path("other").mkdir()
    Path("other/x.md").write_text("# X\n\nother")
    assert "out: none of its 30 files is in " in line(folder=Path("other"))
    (docs / "qa.csv").rename("qa.csv")
    assert f"out: its questions were read from {docs}/qa.csv, which is gone; give --questions, or another" in line()
    assert (OUT / MANIFEST).read_bytes() == before
    (OUT / "corpus.jsonl").write_text("")
    assert "corpus.jsonl: incomplete: 0 bytes of" in line()
    Path("made").mkdir()
    Path("made", MANIFEST).write_text('{"files": {}, "meta": {"kind": "index"}}')
    assert "made: was not written by `raytriever import`; give another --output" in line(output="made")


def _killed(words: list[str], where: str) -> None:
    """Import, and die by SIGKILL at a step of the commit."""
    from raytriever.documents import job
    from raytriever.store import commit

    module = {"exchange": commit, "_seal": commit, "summary_lines": job}[where]
    real = getattr(module, where)

    def die(*arguments: object) -> None:
        if where == "exchange":
            real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, where, die)
    run("import", words)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "is_new"), [("_seal", False), ("exchange", True)])
def test_a_kill_leaves_the_earlier_or_the_new_data_set(
    docs: Path, imported: Callable[..., list[str]], tiny_encoder: Path, where: str, is_new: bool
) -> None:
    (docs / "new.md").write_text("# New\n\nA new part of brass.")
    words = [str(docs), "--model", str(tiny_encoder), "--output", "out", "--passage-length", "32"]
    process = multiprocessing.get_context("spawn").Process(target=_killed, args=(words, where))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    read_manifest(OUT)
    assert ("new.md#new" in corpus()) == is_new
    imported()
    assert "new.md#new" in corpus()
