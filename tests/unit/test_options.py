"""A setting is declared once, and every reader checks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from raytriever.errors import ConfigError
from raytriever.options import check_options, did_you_mean, option


@dataclass(frozen=True)
class Settings:
    batch_size: int = option(8, "size", minimum=1, maximum=2**32 - 1)
    share: float = option(0.5, "share", above=0, maximum=1)
    name: str | None = option(None, "name", choices=("mean", "cls"))
    free: float = option(1.0, "anything")


@pytest.mark.parametrize(
    "settings", [{}, {"batch_size": 1}, {"batch_size": 2**32 - 1}, {"share": 1.0}, {"name": "cls"}, {"free": -1e300}]
)
def test_what_is_allowed_passes(settings: dict[str, Any]) -> None:
    check_options(Settings(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0 is out of range; give a value at least 1"),
        ({"batch_size": 2**32}, "batch_size: 4294967296 is out of range; give a value at most 4294967295"),
        ({"share": 0.0}, "share: 0.0 is out of range; give a value above 0"),
        ({"share": float("nan")}, "share: nan is out of range; give a finite number"),
        ({"free": float("-inf")}, "free: -inf is out of range; give a finite number"),
        ({"name": "men"}, "name: unknown value 'men'; did you mean 'mean'?"),
    ],
)
def test_an_invalid_value_is_reported_by_its_flag(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_options(Settings(**settings))
    assert str(caught.value) == message


def test_names() -> None:
    assert did_you_mean("xx", []) == "choose from "
