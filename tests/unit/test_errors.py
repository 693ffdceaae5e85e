"""A setting in an error is spelled as a flag wherever it is read, and its marks reach nothing that a person reads."""

from __future__ import annotations

import io
import json
import pickle
import re

import pytest

from raytriever.cluster.ingest import deserialize_error, serialize_error
from raytriever.errors import ConfigError, StorageError, UserError, as_flags, flag_of, setting
from raytriever.progress import Progress, say
from raytriever.terminal import show, warn

MARKED = re.compile("[\x0e\x0f]|x0e|x0f")


def error() -> ConfigError:
    remedy = f"give {setting('fresh', True)}, {setting('duplicates', False)} or {setting('num_negatives')} 5"
    return ConfigError(f"is as {setting('max_steps')}", setting("dataset", "a b/c"), remedy)


def test_settings_are_spelled_as_flags() -> None:
    assert str(error()) == "--dataset a b/c: is as --max-steps; give --fresh, --no-duplicates or --num-negatives 5"
    assert (flag_of("max_bad_rows"), as_flags("plain --text")) == ("--max-bad-rows", "plain --text")


def test_no_mark_reaches_a_reader(capsys: pytest.CaptureFixture[str]) -> None:
    failure, stream = error(), io.StringIO()
    text = " ".join(failure.args)
    show(text)
    warn(text)
    say(text)
    Progress(text, 1, "step", stream=stream).say(text)
    shown = [*capsys.readouterr(), stream.getvalue()]
    assert all("--dataset a b/c" in each for each in shown)
    read = [str(failure), repr(failure), failure.what, failure.where, failure.remedy, f"{failure!s:>200}"]
    assert not MARKED.search(json.dumps([*shown, *read, repr([failure])]))


def test_a_value_with_the_marks_of_a_setting_stays_within_it() -> None:
    failure = StorageError("exists", setting("output", "a\x0fb\x0ec\x0f"))
    assert str(failure) == r"--output a\x0fb\x0ec\x0f: exists"


@pytest.mark.parametrize("kind", [UserError, ConfigError, StorageError])
def test_an_error_keeps_its_settings_on_the_way(kind: type[UserError]) -> None:
    failure = kind(*error().args)
    sent = pickle.loads(pickle.dumps(failure))  # noqa: S301
    for same in (sent, failure.at(failure.args[1])):
        assert type(same) is kind
        assert same.args == failure.args
    assert deserialize_error(serialize_error(failure)).args == failure.args


def test_an_error_within_another_place() -> None:
    assert error().within("stage 'warm'").where == "stage 'warm': --dataset a b/c"
    assert ConfigError("is wrong").within("arm mw").where == "arm mw"
