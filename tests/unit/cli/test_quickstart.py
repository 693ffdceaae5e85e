"""The command `quickstart` is `train` with the MW loss and a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from raytriever.config import dump_config
from raytriever.losses.config import LossConfig
from raytriever.recipes import RECIPES


def test_a_run_of_another_loss_in_the_output_is_refused(tmp_path: Path, error_line: Callable[..., str]) -> None:
    other = replace(RECIPES["pydocs"](), loss=LossConfig(loss="triplet"))
    (tmp_path / "config.yaml").write_text(dump_config(other))
    line = error_line("quickstart", "--output", tmp_path)
    assert "loss.loss is 'triplet' there and 'mw' here" in line


def test_settings_of_training_are_those_of_train(error_line: Callable[..., str]) -> None:
    assert error_line("quickstart", "--max-steps", "3").startswith("--max-steps: unknown flag")
