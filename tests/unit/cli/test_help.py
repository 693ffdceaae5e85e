"""Help and suggestions: usage lines, common flags, flags of other programs, and flags without effect."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli import train
from raytriever.cli.commands import COMMANDS
from raytriever.cli.main import run
from raytriever.cli.suggestions import _ADVICE, _COMMANDS, _FLAGS, suggest_for_command, suggest_for_flag
from raytriever.cli.train import COMMON
from raytriever.core.errors import ConfigError, DataError
from raytriever.experiments.run.start_run import check_explicit_settings

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
        ("train --per_device_train_batch_size 8", "give --batch-size, the number of queries of a step"),
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


CASES = [
    ("train --margin 0.1", "margin: has no effect with loss mw; leave it out, or give loss triplet"),
    ("train --loss triplet --temperature 0.01", "temperature: has no effect with loss triplet; leave it out, or"),
    ("train --epochs 1 --max-steps 9", "epochs: has no effect with max_steps 9; leave it out"),
    ("train --negatives-table HERE", "negatives_table: has no effect without negatives_per_query; leave it out, o"),
    ("train --refresh-negatives 9", "refresh_negatives: has no effect without refresh_every"),
    ("train --eval-corpus 9", "eval_corpus: has no effect with best_metric dev_loss and without eval_datasets"),
    ("tune --asha-factor 3", "asha_factor: has no effect without asha"),
    ("tune --search-space temperature --margin 0.1", "margin: has no effect with loss mw"),
    ("mine --output o --model minilm", "model: has no effect with method bm25; leave it out, or give method den"),
    ("mine --output o --precision fp32", "precision: has no effect with method bm25 and without judge"),
    ("mine --output o --judge HERE", "judge: has no effect without relative_margin and without absolute_margin"),
    ("index --output o --top 5", "top: has no effect without query"),
    ("index --output o --index ivf --m 9", "m: has no effect with index ivf; leave it out, or give"),
    ("evaluate --datasets HERE --calibration-split dev", "calibration_split: has no effect without calibrate"),
    ("evaluate --datasets HERE --data-root HERE", "data_root: has no effect without suite"),
    ("score --output o --model HERE --negatives HERE --depth 100", "depth: has no effect without run"),
    ("annotate --output o --llm x --base-url http://localhost --model minilm", "model: has no effect with candida"),
]


@pytest.mark.parametrize(("words", "line"), CASES, ids=[case[0].replace("--output o ", "") for case in CASES])
def test_a_flag_without_effect_is_refused(
    words: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stage, *rest = words.replace("HERE", str(tmp_path)).split()
    with pytest.raises(ConfigError) as error:
        COMMANDS[stage].main(stage, rest)
    assert str(error.value).startswith(line)
    assert not list(tmp_path.iterdir())


def parsed(stage: str, words: str) -> None:
    parser = COMMANDS[stage].parser(stage)
    arguments = parser.parse(words.split())
    check_explicit_settings(train.resolve_settings(arguments), arguments.explicit_flags)


@pytest.mark.parametrize(
    "words",
    [
        "--loss triplet --margin 0.2",
        "--recipe pydocs --loss triplet",  # the recipe's temperature is not a flag
        "--recipe pydocs --epochs 1",  # the recipe's steps give way
        "--no-learn-temperature --loss triplet",  # asks for nothing
        "--best-metric ndcg_at_10 --eval-corpus 9",
    ],
)
def test_a_flag_with_effect_is_accepted(words: str) -> None:
    parsed("train", words)


def test_a_flag_with_effect_in_one_stage_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "stages.yaml"
    file.write_text("stages:\n- name: a\n  loss: {loss: triplet}\n- name: b\n  loss: {loss: mw}\n")
    parsed("train", f"--config {file} --margin 0.2")
    with pytest.raises(ConfigError, match="refresh_negatives: has no effect"):
        parsed("train", f"--config {file} --refresh-negatives 2")


def test_a_file_may_list_settings_of_other_losses(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("loss: {loss: mw, margin: 0.3, teacher_temperature: 2}\n")
    parsed("train", f"--config {file}")


def test_a_flag_that_the_search_space_varies_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text("training: {learning_rate: [1.0e-5, 3.0e-5]}\n")
    for words, line in (
        (
            "--learning-rate 1e-4 --search-space learning-rate",
            "--learning-rate 0.0001: has no effect, because --search-space learning-rate varies it; leave it out",
        ),
        (
            "--learning-rate=1e-4 --loss mw --search-space space.yaml",
            "--learning-rate 0.0001: has no effect, because --search-space space.yaml varies it; leave it out",
        ),
        ("--loss mw --search-space learning-rate", ""),
    ):
        with pytest.raises(DataError):
            COMMANDS["tune"].main("tune", [*words.split(), "--dataset", "nowhere/at/all"])
        assert capsys.readouterr().err.strip() == line


def test_a_varied_setting_may_give_a_flag_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = COMMANDS["tune"].parser("tune").parse(["--margin", "0.2", "--search-space", "loss"])
    check_explicit_settings(train.resolve_settings(arguments), arguments.explicit_flags, varied=["loss"])
