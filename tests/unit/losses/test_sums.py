"""Sums of losses: how they are written, what is refused in one line, and what a run stores of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.core.errors import ConfigError
from raytriever.experiments.run.start_run import default_run_name
from raytriever.experiments.tuning.space import parse_space
from raytriever.losses.loss_settings import LossConfig, terms_of
from raytriever.training.run_config import Config, check_config


@pytest.mark.parametrize(
    ("loss", "terms"),
    [
        ("mw", ("mw",)),
        ("mw+infonce", ("mw", "infonce")),
        ("c++/own.py:f", ("c++/own.py:f",)),
        ("mw+c++/own.py:f+joint", ("mw", "c++/own.py:f", "joint")),
        ("own.py:f@0123456789abcdef+mw", ("own.py:f@0123456789abcdef", "mw")),
        ("unknown+mw", ("unknown", "mw")),
    ],
)
def test_a_sum_is_split_into_its_losses(loss: str, terms: tuple[str, ...]) -> None:
    assert terms_of(loss) == terms


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "mw+infonse"}, "loss: unknown loss 'infonse' in 'mw+infonse'; did you mean 'infonce'?"),
        ({"loss": "mw+"}, "loss: unknown value 'mw+'"),
        ({"loss": "mw+mw"}, "loss: 'mw+mw' has 'mw' twice; give each loss once"),
        ({"loss": "mw+infonce", "loss_weights": "1"}, "loss_weights: has 1 weights, but mw+infonce has 2 losses"),
        ({"loss": "mw", "loss_weights": "2"}, "loss_weights: has no effect with loss mw; leave it out, or give a"),
        ({"loss": "mw+infonce", "loss_weights": "1,-1"}, "loss_weights: '1,-1' is invalid; give a number from 0"),
        ({"loss": "mw+infonce", "loss_weights": "0,0"}, "give a number from 0 for each loss, separated by commas and"),
        ({"loss": "mw+infonce", "loss_weights": "1,nan"}, "give a number from 0 for each loss"),
        ({"loss": "infonce+joint", "reduction": "sum"}, "reduction: has no effect with loss infonce+joint"),
        ({"loss": "mw+no.py:f"}, "no.py: no such file on "),
    ],
)
def test_a_wrong_sum_is_refused_in_one_line(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_config(Config(loss=LossConfig(**settings)))  # type: ignore[arg-type]
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_setting_of_one_loss_of_the_sum_is_used() -> None:
    check_config(Config(loss=LossConfig("triplet+mw", margin=0.2, reduction="sum", learn_temperature=True)))
    with pytest.raises(ConfigError, match=r"teacher: mw\+kl needs the scores|loss mw\+kl needs the scores"):
        check_config(Config(loss=LossConfig("mw+kl")))


def test_a_run_stores_the_digest_of_each_file_and_is_named_without_paths(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def half(scores, positives): return -scores[positives].mean() / 2\n")
    config = LossConfig(f"mw+{file}:half", loss_weights="1,0.5")
    stored = config.pinned()
    assert stored.terms == ("mw", config.files[0].pinned())
    assert stored.pinned() == stored
    assert default_run_name(Config(loss=stored)).endswith("mw-half-seed0")
    file.write_text("def half(scores, positives): return -scores[positives].mean() / 3\n")
    with pytest.raises(ConfigError, match="has changed on"):
        check_config(Config(loss=stored))


def test_weights_are_searched_as_a_list() -> None:
    space = parse_space({"loss": {"loss_weights": ["1,0.30", [1, 1]]}}, "space.yaml")
    assert space.dimensions[0].values == ("1,0.3", "1,1")
    with pytest.raises(ConfigError, match="cannot have a range"):
        parse_space({"loss": {"loss_weights": {"low": 0, "high": 1}}}, "space.yaml")
