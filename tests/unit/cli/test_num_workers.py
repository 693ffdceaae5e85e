"""`--num-workers`: a number, or the smallest and the largest number."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.cli.commands import COMMANDS
from raytriever.cli.train import resolve_settings
from raytriever.config import check_config, dump_config, load_config
from raytriever.errors import ConfigError
from raytriever.training.config import TrainingConfig


def training(*words: object) -> TrainingConfig:
    config = resolve_settings(COMMANDS["train"].parser("train").parse([str(word) for word in words]))
    check_config(config)
    return config.training


@pytest.mark.parametrize(
    ("given", "stored", "ends"),
    [("4", 4, (4, 4)), ("2:2", 2, (2, 2)), ("02:16", "2:16", (2, 16))],
)
def test_a_number_or_a_range(given: str, stored: int | str, ends: tuple[int, int]) -> None:
    result = training("--num-workers", given)
    assert (result.num_workers, result.workers) == (stored, ends)


@pytest.mark.parametrize("given", ["0", "4:1", "1.5", ":4", "1:2:3", ""])
def test_other_values_are_user_errors(given: str) -> None:
    with pytest.raises(ConfigError, match=r"num_workers: .*1:4") as caught:
        training(f"--num-workers={given}")
    assert repr(given) in str(caught.value)


@pytest.mark.parametrize("given", [True, None, [1, 4], "4:1"])
def test_settings_in_python_and_in_files_have_the_same_checks(given: object, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"training: {{num_workers: {'null' if given is None else given}}}\n")
    with pytest.raises(ConfigError, match=r"num_workers: .*1:4"):
        load_config(file)


def test_a_file_uses_and_keeps_the_form_of_the_flag(tmp_path: Path) -> None:
    # To YAML 1.1 an unquoted 1:4 is sixty-four.
    file = tmp_path / "run.yaml"
    file.write_text("training: {num_workers: 1:4}\n")
    config = load_config(file)
    assert config.training.workers == (1, 4)
    file.write_text(dump_config(config))
    assert load_config(file) == config


def test_the_smallest_number_divides_the_batch_and_the_largest_divisor_shares_it() -> None:
    result = training("--num-workers", "2:5", "--batch-size", 8)
    assert [result.sharing(there) for there in range(2, 6)] == [2, 2, 4, 4]
    assert training("--num-workers", "1:3", "--batch-size", 7).sharing(3) == 1
    with pytest.raises(ConfigError, match=r"batch_size: 64 is not divisible by 3 workers.*num_workers"):
        training("--num-workers", "3:4", "--batch-size", 64)
