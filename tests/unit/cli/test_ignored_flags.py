"""Flags without effect are errors in each stage, before any data is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.cli import train
from raytriever.cli.commands import COMMANDS
from raytriever.core.errors import ConfigError, DataError
from raytriever.experiments.run.start_run import check_explicit_settings

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
