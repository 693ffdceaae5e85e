"""User errors end in one line and exit code 2, and leave no files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.config import Config, dump_config
from raytriever.data.config import DataConfig

ErrorLine = Callable[..., str]


def damage(file: Path, row: int, content: bytes) -> None:
    lines = file.read_bytes().splitlines()
    lines[row - 1] = content
    file.write_bytes(b"".join(line + b"\n" for line in lines))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--loss mv", "--loss: unknown value 'mv'; did you mean 'mw'?"),
        (
            "--batch-size 10 --num-workers 3",
            "--batch-size: 10 is not divisible by 3 workers; give a multiple of 3, such",
        ),
        ("--batch-size 0", "--batch-size: 0 is out of range; give a value at least 1"),
        ("--batch-size many", "--batch-size: 'many' is invalid; give a whole number"),
        ("--batchsize 8", "--batchsize: unknown flag; did you mean '--batch-size'?"),
        ("--temperature 0", "--temperature: 0.0 is out of range; give a value above 0"),
        ("--temperature inf", "--temperature: inf is out of range; give a finite number"),
        ("--learning-rate nan", "--learning-rate: nan is out of range"),
        ("--epochs inf", "--epochs: inf is out of range; give a finite number"),
        ("--seed 4294967296", "--seed: 4294967296 is out of range; give a value at most 4294967295"),
        ("--seed", "--seed: has no value; see `raytriever train --help`"),
        ("--max-bad-rows 2", "--max-bad-rows: 2.0 is out of range; give a value at most 1"),
        ("--recipe pydoc", "--recipe: unknown recipe 'pydoc'; did you mean 'pydocs'?"),
        (f"--batch-size {'9' * 100}", "--batch-size: is out of range; give a number of at most 18 digits"),
        ("--run-name=", "--run-name: '' is not a valid run name; use letters, digits"),
        ("--run-name ../x", "--run-name: '../x' is not a valid run name; use letters, digits"),
        ("--run-name $(x)", "--run-name: '$(x)' is not a valid run name; use letters, digits"),
        ("stray", "unexpected argument 'stray'; see `raytriever train --help`"),
        ("--config missing.yaml", "missing.yaml: cannot be read (No such file or directory); give a YAML file"),
        ("--dataset nowhere", "--dataset nowhere: no data set of this name and no such folder; give 'pydocs', or"),
        (
            "--loss triplet --learn-temperature --dataset LETTERS",
            "--learn-temperature: has no effect with --loss triplet",
        ),
        ("--model no/such/model --dataset LETTERS", "no/such/model: no such directory; give a model directory"),
        ("--refresh-every 5", "--refresh-every: there are no hard negatives to refresh; give --negatives-per-query"),
        (
            "--refresh-every 5 --negatives-per-query 1 --max-steps 5",
            "--refresh-every: no steps are left after the first refresh, at step 5 of 5; give less than 5, or train",
        ),
        (
            "--refresh-every 12 --negatives-per-query 1 --batch-size 8 --epochs 1 --dataset LETTERS",
            "--refresh-every: no steps are left after the first refresh, at step 12 of 12; give less than 12",
        ),
        ("--refresh-every 0", "--refresh-every: 0 is out of range; give a value at least 1"),
        ("--refresh-share 0", "--refresh-share: 0.0 is out of range; give a value above 0"),
        ("--refresh-share 1.5", "--refresh-share: 1.5 is out of range; give a value at most 1"),
        (
            "--refresh-share 0.5 --refresh-every 5 --negatives-per-query 1",
            "--refresh-share: has no effect with --refresh-mode async; leave it out, or give --refresh-mode rolling",
        ),
        (
            "--refresh-mode sync",
            "--refresh-mode: has no effect without --refresh-every; leave it out, or give --refresh-every",
        ),
        ("--refresh-mode asink", "--refresh-mode: unknown value 'asink'; did you mean 'async'?"),
        (
            "--refresh-pool 2:1",
            "--refresh-pool: '2:1' is invalid; give a number of processes such as 4, or the fewest and",
        ),
        (
            "--refresh-ranks 9:3",
            "--refresh-ranks: '9:3' is invalid; give two whole numbers, the lower first, as in 30:200",
        ),
        (
            "--refresh-ranks 5:10 --refresh-every 5 --negatives-per-query 1",
            "--refresh-negatives: 30 negatives cannot be taken from 5 ranks; give at most 5, or",
        ),
        (
            "--refresh-every 5 --negatives-per-query 1 --negatives-mix bm25=1",
            "--negatives-mix: gives refreshed negatives no share: bm25=1; add dense, as in dense=0.5",
        ),
        ("--dev-split de --dataset LETTERS", "letters: no split 'de'; there are: dev, test, train; choose from dev"),
    ],
)
def test_train_refuses(error_line: ErrorLine, letters: Path, words: str, expected: str) -> None:
    line = error_line("train", *(word.replace("LETTERS", str(letters)) for word in words.split()))
    assert expected in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("search", "missing: query; see `raytriever search --help`"),
        ("search ''", "the query is empty; give a few words"),
        ("search x --top 0", "--top: 0 is out of range; give at least 1"),
        ("search x --dataset pydoc", "--dataset pydoc: no data set of this name and no such folder; did you mean"),
        ("search --modle x", "--modle: unknown flag; did you mean '--model'?"),
        ("search caf\udce9 --dataset LETTERS", "byte 0xe9 of 'caf\\udce9' is not UTF-8; set the terminal to UTF-8"),
        ("evaluate --datset x", "--datset: unknown flag; did you mean '--datasets'?"),
        ("evaluate --datasets LETTERS --split tets", "letters: no split 'tets'; there are: dev, test, train; choose"),
        ("evaluate --datasets LETTERS --max-bad-rows 2", "--max-bad-rows: 2.0 is out of range; give a value at most 1"),
        ("evaluate --datasets LETTERS --max-bad-rows nan", "--max-bad-rows: nan is out of range"),
        ("evaluate --datasets LETTERS --precision fp23", "--precision: unknown value 'fp23'; did you mean 'fp32'?"),
        (
            "evaluate --datasets LETTERS LETTERS",
            "--datasets: two data sets are called 'letters'; give each data set once",
        ),
        ("evaluate --datasets LETTERS --pooling man", "--pooling: 'man' is invalid; did you mean 'mean'?"),
    ],
)
def test_evaluate_and_search_refuse(error_line: ErrorLine, letters: Path, words: str, expected: str) -> None:
    stage, *rest = words.split()
    line = error_line(stage, *(word.replace("LETTERS", str(letters)).replace("''", " ") for word in rest))
    assert expected in line


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("losses: {loss: mw}", "unknown section 'losses'; did you mean 'loss'?"),
        ("training: {batchsize: 8}", "unknown setting 'batchsize'; did you mean 'batch_size'?"),
        ("training: {batch_size: many}", "batch_size is 'many'; give a whole number"),
        ("training: {batch_size: 8.5}", "batch_size is 8.5; give a whole number"),
        ("training: {batch_size: true}", "batch_size is True; give a whole number"),
        ("training: {batch_size: null}", "batch_size is None; give a whole number"),
        ("training: {learning_rate: fast}", "learning_rate is 'fast'; give a number"),
        ("training: {learning_rate: .inf}", "--learning-rate: inf is out of range"),
        ("loss: {learn_temperature: 1}", "learn_temperature is 1; give true or false"),
        ("loss: {loss: mv}", "--loss: unknown value 'mv'; did you mean 'mw'?"),
        ("loss: mw", "section 'loss' holds 'mw'; give `setting: value` lines"),
        ("- loss", "holds no sections; give `data:`, `model:`, `loss:` or `training:`"),
        ("", "holds no sections"),
        ("1: {2: 3}", "unknown section 1; choose from"),
        ("loss: {1: 2}", "unknown setting 1; choose from"),
    ],
)
def test_a_configuration_file(error_line: ErrorLine, tmp_path: Path, content: str, expected: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    line = error_line("train", "--config", file)
    assert expected in line
    assert line.startswith((f"{file}: ", "--"))


def test_an_interrupted_run_of_other_settings(error_line: ErrorLine, work: Path, letters: Path) -> None:
    (work / "run").mkdir()
    there = Config(data=DataConfig(dataset=str(letters)))
    (work / "run" / "config.yaml").write_text(dump_config(there))
    line = error_line("train", "--dataset", letters, "--output", "run", "--seed", "7")
    assert line.startswith("--output run: holds a run with other settings (training.seed is 0 there and 7 here); give")
    assert line.endswith("--fresh to remove that run")
    (work / "run" / "config.yaml").write_text("loss: {")
    assert "run/config.yaml: is not YAML" in error_line("train", "--dataset", letters, "--output", "run")


def test_a_full_disk(error_line: ErrorLine, letters: Path, tiny_encoder: Path, full_disk: Path) -> None:
    before = sorted(full_disk.iterdir())
    model = ["--model", tiny_encoder, "--output", full_disk / "deep" / "out"]
    expected = f"{full_disk}/deep/out: no space left on the disk; free some space or write to another disk"
    assert error_line("train", "--dataset", letters, *model) == expected
    assert error_line("evaluate", "--datasets", letters, *model) == expected
    assert sorted(full_disk.iterdir()) == before


def test_a_disk_that_fills_up_while_the_corpus_is_encoded(
    letters: Path,
    tiny_encoder: Path,
    small_disk: Path,
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(small_disk / "cache"))
    monkeypatch.setattr("raytriever.store.capacity.free_space", lambda folder: 10**12)  # another process fills it later
    assert run("search", ["x", "--dataset", str(letters), "--model", str(tiny_encoder)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"error: {small_disk}/cache/")
    assert err.endswith(": no space left on the disk; free some space or write to another disk\n")
    assert err.count("\n") == 1
    left = [file for file in small_disk.rglob("*") if file.is_file() and file.parent.name != "digests"]
    assert not left


def test_debug_shows_the_traceback_of_a_user_error(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", ["--dataset", "nowhere", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: --dataset nowhere")


def test_a_defect_keeps_its_traceback(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*words: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("raytriever.cli.train.check_curriculum", broken)
    with pytest.raises(ZeroDivisionError):
        run("train", [])


@pytest.mark.slow
def test_few_bad_rows_are_named_at_the_end_of_an_evaluation(
    letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(letters / "corpus.jsonl", 3, b"{")
    words = ["--datasets", str(letters), "--model", str(tiny_encoder), "--precision", "fp32"]
    assert run("evaluate", words) == 0
    out = capsys.readouterr().out
    named = Path("results") / "letters" / "quarantine.jsonl"
    assert f"1 bad row was left out (1 in {letters}/corpus.jsonl): see {named}\n" in out
    assert (work / named).read_text().count("\n") == 1
    # Corrected and evaluated again: no bad rows are reported.
    damage(letters / "corpus.jsonl", 3, b'{"_id": "d2", "text": "corrected"}')
    assert run("evaluate", words) == 0
    assert "bad row" not in capsys.readouterr().out
    assert not (work / named).exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # A question may look like a secret: it goes on to the next error.
        (["search", "--dataset", "nowhere", "Authorization: what is this header"], "no data set of this name"),
        (
            ["index", "--dataset", "nowhere", "--output", "x", "--query=what is /?key=abcdef"],
            "no data set of this name",
        ),
        (["search", "--dataset", "https://host/data?key=abcdef", "a question"], "there is a value of key in"),
    ],
)
def test_a_secret_is_refused_except_in_a_question(error_line: ErrorLine, words: list[str], expected: str) -> None:
    line = error_line(*words)
    assert expected in line
    assert "abcdef" not in line
