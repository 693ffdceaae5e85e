"""Help and suggestions: usage lines, common flags, and flags of other programs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

import pytest

from raytriever.cli.commands import COMMANDS
from raytriever.cli.main import run
from raytriever.cli.suggestions import _ADVICE, _COMMANDS, _FLAGS, suggest_for_command, suggest_for_flag
from raytriever.cli.train import COMMON

ErrorLine = Callable[..., str]


def help_of(command: str, capsys: pytest.CaptureFixture[str], flag: str = "--help") -> str:
    with pytest.raises(SystemExit) as ended:
        run(command, [flag])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_usage_line_is_one_line_with_the_programs_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = help_of(command, capsys).splitlines()[0]
    assert first.startswith(f"usage: raytriever {command} ")
    assert first.endswith("[flags]")


def test_help_of_train_shows_the_twenty_common_flags_in_one_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = help_of("train", capsys)
    assert len(COMMON) == len(set(COMMON)) == 20
    shown = out.split("common flags:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in shown] == list(COMMON)
    assert max(map(len, shown)) <= 100
    parser = COMMANDS["train"].parser("train")
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]  # earlier names are hidden
    flags = sum(bool(action.option_strings) for action in actions)
    assert out.rstrip().endswith(f"--help-all shows all {flags} flags")
    whole = help_of("train", capsys, "--help-all")
    for action in actions:
        assert all(flag in whole for flag in action.option_strings)
    assert "lsepair-minp-maxn" in whole


def test_the_commands_are_grouped_by_task(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from raytriever.cli.main import run

    monkeypatch.setattr("sys.argv", ["raytriever", "--help"])
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line.removesuffix(":") for line in lines if re.fullmatch(r"\S.*:", line)]
    assert titles == list(dict.fromkeys(command.task for command in COMMANDS.values()))
    assert sorted(line.split()[0] for line in lines if line.startswith("  ")) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("train --lr 1", "did you mean '--learning-rate'?"),
        ("train --resume", "nothing is needed: the same command continues an interrupted run"),
        ("tune --resume_from_checkpoint x", "nothing is needed: the same command continues an interrupted run"),
        ("train --wandb", "give --tracker wandb"),
        ("train --epoch 3", "did you mean '--epochs'?"),
        ("train --per_device_train_batch_size 8", "give --batch-size, which counts the queries of a step"),
        ("train --gradient-accumulation-steps 4", "--grad-cache-chunk: accumulated small batches would lose"),
        ("train --output_dir x", "did you mean '--output'?"),
        ("train --tau 1", "did you mean '--temperature'?"),
        ("train --fp16", "give --precision bf16"),
        ("evaluate --dataset x", "did you mean '--datasets'?"),
        ("search --top_k 3 words", "did you mean '--top'?"),
        ("mine --top-k 3", "did you mean '--num-negatives'?"),
    ],
)
def test_flags_of_other_programs(error_line: ErrorLine, words: str, remedy: str) -> None:
    command, *rest = words.split()
    line = error_line(command, *rest)
    assert ": unknown flag; " in line
    assert remedy in line


def test_a_suggestion_names_only_flags_of_the_command() -> None:
    known = {"--output", "--dataset", "-h", "--help"}
    assert suggest_for_flag("--gradient-accumulation-steps", known) == "choose from --dataset, --output"
    assert suggest_for_flag("--output_dir", known) == "did you mean '--output'?"
    assert suggest_for_flag("--wandb", {*known, "--tracker"}) == "give --tracker wandb"


def test_every_suggestion_exists() -> None:
    known = {
        flag
        for name, command in COMMANDS.items()
        for action in command.parser(name)._actions
        for flag in action.option_strings
    }
    named = {flag for words in (*_FLAGS, *_ADVICE) for flag in re.findall(r"--[a-z0-9-]+", words)}
    assert named <= known
    assert all(ours.split()[0] in COMMANDS for ours in _COMMANDS)
    assert not set(" ".join(_COMMANDS.values()).split()) & set(COMMANDS)


def test_a_command_that_was_removed_says_what_to_do_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(None, ["plan", "--gpus", "8"]) == 2
    assert capsys.readouterr().err.startswith("error: 'plan' was removed; see docs/explanation/scale.md; ")


@pytest.mark.parametrize(("word", "remedy"), [("trian", "train"), ("eval", "evaluate"), ("ls", "runs list")])
def test_commands_of_other_programs(word: str, remedy: str) -> None:
    assert suggest_for_command(word, COMMANDS) == f"did you mean {remedy!r}?"
