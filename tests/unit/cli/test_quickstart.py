"""The command `quickstart` is `train` with the MW loss and a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raytriever.core.errors import ConfigError
from raytriever.experiments.recipes import RECIPES
from raytriever.losses.loss_settings import LossConfig
from raytriever.training.run_config import Config, dump_config


def test_a_run_of_another_loss_in_the_output_is_refused(tmp_path: Path, error_line: Callable[..., str]) -> None:
    other = replace(RECIPES["pydocs"](), loss=LossConfig(loss="triplet"))
    (tmp_path / "config.yaml").write_text(dump_config(other))
    line = error_line("quickstart", "--output", tmp_path)
    assert "loss.loss is 'triplet' there and 'mw' here" in line


def test_settings_of_training_are_those_of_train(error_line: Callable[..., str]) -> None:
    assert error_line("quickstart", "--max-steps", "3").startswith("--max-steps: unknown flag")


def test_it_is_the_training_of_the_recipe_with_a_name(
    error_line: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []

    def start(config: Config, base: Config, output: Path, run_name: str, fresh: bool, *others: object) -> None:
        calls.append((config, base, output, run_name, fresh))
        raise ConfigError("stopped here")

    monkeypatch.setattr("raytriever.cli.train.start_run", start)
    assert error_line("quickstart", "--fresh") == error_line("train") == "stopped here"
    pydocs = RECIPES["pydocs"]()
    assert calls[0] == (pydocs, pydocs, Path("runs/quickstart"), "quickstart", True)
    assert calls[1] == (pydocs, pydocs, Path("runs/pydocs-minilm-mw-seed0"), None, False)
