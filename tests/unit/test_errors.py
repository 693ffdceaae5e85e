"""An error names a setting as Python and a configuration file do, and keeps its parts on the way."""

from __future__ import annotations

import pickle

import pytest

from raytriever.cluster.ingest import deserialize_error, serialize_error
from raytriever.errors import ConfigError, StorageError, UserError, flag_of, setting


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
    assert ConfigError("is wrong").within("arm mw").where == "arm mw"
