"""Errors name settings as Python and files do, and keep their parts; a setting is declared once and always checked."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from raytriever.cluster.ingest import deserialize_error, serialize_error
from raytriever.core.errors import ConfigError, StorageError, UserError, flag_of, setting
from raytriever.core.options import check_options, did_you_mean, option


def error() -> ConfigError:
    remedy = f"give {setting('fresh', True)}, {setting('duplicates', False)} or {setting('num_negatives')} 5"
    return ConfigError(f"is as {setting('max_steps')}", setting("dataset", "a b/c"), remedy)


def test_settings_in_errors_and_flags_in_advice() -> None:
    assert str(error()) == "dataset a b/c: is as max_steps; give fresh=True, duplicates=False or num_negatives 5"
    assert (flag_of("max_bad_rows"), flag_of("duplicates", False)) == ("--max-bad-rows", "--no-duplicates")


@pytest.mark.parametrize("kind", [UserError, ConfigError, StorageError])
def test_an_error_keeps_its_settings_on_the_way(kind: type[UserError]) -> None:
    failure = kind(*error().args)
    sent = pickle.loads(pickle.dumps(failure))  # noqa: S301
    for same in (sent, failure.at(failure.args[1])):
        assert type(same) is kind
        assert same.args == failure.args
    assert deserialize_error(serialize_error(failure)).args == failure.args


def test_an_error_within_another_place() -> None:
    assert error().within("stage 'warm'").where == "stage 'warm': dataset a b/c"
    assert ConfigError("is wrong").within("variant mw").where == "variant mw"


@dataclass(frozen=True)
class Settings:
    batch_size: int = option(8, "size", minimum=1, maximum=2**32 - 1)
    fraction: float = option(0.5, "fraction", above=0, maximum=1)
    name: str | None = option(None, "name", choices=("mean", "cls"))
    free: float = option(1.0, "anything")


@pytest.mark.parametrize(
    "settings", [{}, {"batch_size": 1}, {"batch_size": 2**32 - 1}, {"fraction": 1.0}, {"name": "cls"}, {"free": -1e300}]
)
def test_what_is_allowed_passes(settings: dict[str, Any]) -> None:
    check_options(Settings(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0 is out of range; give a value at least 1"),
        ({"batch_size": 2**32}, "batch_size: 4294967296 is out of range; give a value at most 4294967295"),
        ({"fraction": 0.0}, "fraction: 0.0 is out of range; give a value above 0"),
        ({"fraction": float("nan")}, "fraction: nan is out of range; give a finite number"),
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
