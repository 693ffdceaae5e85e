"""JSON and YAML of other people: another type, a damaged file, one made to break the reader, or no regular file."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.core.errors import ConfigError, StorageError
from raytriever.core.paths import DATASET, FILE, FOLDER
from raytriever.core.reading.arrays import read_array, read_arrow
from raytriever.core.reading.json_and_yaml import conform, parse_json, read_json, read_yaml
from raytriever.core.reading.regular_files import check_regular, open_regular
from raytriever.core.store.commit import sha256_of
from raytriever.data.data_sources import Source, open_raw, open_stream


class Metrics(TypedDict):
    after: dict[str, float | None]
    best: NotRequired[float]
    state: Literal["new", "old"]


@dataclass(frozen=True)
class Entry:
    step: int
    names: tuple[str, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)


GOOD = {"after": {"ndcg_at_10": 0.5, "mrr": None}, "state": "old"}


def message(value: object, kind: Any) -> str:
    with pytest.raises(StorageError) as refused:
        conform(value, "a.json", kind, "make it again")
    text = str(refused.value)
    assert text.startswith("a.json: is damaged or changed: ")
    assert text.endswith("; make it again")
    assert "\n" not in text
    return text.removeprefix("a.json: is damaged or changed: ").removesuffix("; make it again")


def test_content_of_the_expected_type_is_returned() -> None:
    assert conform(GOOD | {"further": 1}, "a", Metrics, "") == GOOD | {"further": 1}
    assert conform([{"step": 1, "names": ["a"]}], "a", list[Entry], "") == [Entry(1, ("a",))]
    assert conform({"a": 1}, "a", dict[str, float], "") == {"a": 1}


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ([], Metrics, "the content is a list, expected an object"),
        (GOOD | {"after": []}, Metrics, "'after' is a list, expected an object"),
        (GOOD | {"after": {"mrr": "high"}}, Metrics, "'after.mrr' is a text, expected a number or null"),
        (GOOD | {"after": {"mrr": True}}, Metrics, "'after.mrr' is true, expected a number or null"),
        (GOOD | {"state": "sold"}, Metrics, "'state' is a text, expected 'new' or 'old'"),
        ([{"step": 1}, {"step": 1.5}], list[Entry], "'1.step' is 1.5, expected a whole number"),
        ([{"step": 1 << 80}], list[Entry], "'0.step' is a number of more than 64 bits"),
        ([{"stop": 1}], list[Entry], "'0.step' is missing"),
        ([{"step": 1, "stop": 1}], list[Entry], "'0.stop' is unknown"),
        ({"a": 10**400}, dict[str, float], "'a' is a number of more than 64 bits"),
    ],
)
def test_content_of_another_type_is_one_line(value: object, kind: Any, text: str) -> None:
    assert message(value, kind) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": ', "it is not JSON (Expecting value"),
        ("", "it is not JSON (Expecting value"),
        ('"\\ud800', "it is not JSON"),
        (b"\xff\xfe{", "it is not JSON"),
        ("1" * 5000, "it is not JSON"),
        ("[" * 100_000, "it is nested more than 100 deep"),
        ("[" * 101 + "]" * 101, "it is nested more than 100 deep"),
        ('{"a":' * 500 + "1" + "}" * 500, "it is nested more than 100 deep"),
    ],
)
def test_damaged_and_deep_json_is_one_line(text: str | bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.json: is damaged or changed") as refused:
        parse_json(text, "a.json", Any, "make it again", error=ConfigError)
    assert says in str(refused.value)


def test_brackets_in_texts_are_not_nesting() -> None:
    value = {"a": "[" * 500, 'b"[{': ["\\", '"' + "{" * 500]}
    assert parse_json(json.dumps(value), "a.json", dict[str, Any], "") == value
    assert parse_json("[" * 100 + "]" * 100, "a.json", list[Any], "")


SCALARS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text("a\n\r\0é\u2028", max_size=8)


@settings(max_examples=40)
@given(st.recursive(SCALARS, lambda item: st.lists(item, max_size=4), max_leaves=8))
def test_any_other_json_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(StorageError) as refused:
        conform(value, "a.json", Metrics, "")
    assert "\n" not in str(refused.value)


def test_a_file_longer_than_expected_is_not_parsed(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("[" * 5_000_000)
    with pytest.raises(StorageError, match=r"a\.json: is damaged or changed: it is longer than 1 MB; make it again"):
        read_json(file, list[Any], "make it again", most=1 << 20)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "b.json", list[Any], "")
    with pytest.raises(StorageError, match=r"b\.json: is missing; make it again"):
        read_json(tmp_path / "b.json", list[Any], "make it again", needed=True)


def yaml_message(tmp_path: Path, text: str) -> str:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    began = time.monotonic()
    with pytest.raises(ConfigError) as refused:
        read_yaml(file, "correct it", ConfigError)
    assert time.monotonic() - began < 10  # not minutes
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{file}: ").removesuffix("; correct it")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb:\n  c: 2\n  d: 3\n  c: 4\n", "'c' is given twice, in line 3 and in line 5"),
        ("a: 1\n'a': 2\n", "'a' is given twice, in line 1 and in line 2"),
        ("[" * 10_000, "line 1: lists and mappings are nested more than 100 deep"),
        ("a: " + "{a: " * 10_000, "line 1: lists and mappings are nested more than 100 deep"),
        ("a: &x [1, *x]\n", "line 1: a value holds an alias of itself"),
        ("a: [1,\n", "is not YAML (while parsing a flow node"),
        ("[" * 101 + "]" * 101, "line 1: lists and mappings are nested more than 100 deep"),
        ("a: 2026-99-99\n", "is not YAML (month must be in 1..12)"),
        ("a: !!int x\n", "is not YAML (invalid literal"),
        ("? [1]\n: 2\n", "is not YAML (while constructing a mapping"),
        ("a: !!python/name:os.system\n", "is not YAML (could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "is not YAML (expected a single document"),
        ("a: *nobody\n", "is not YAML (found undefined alias"),
        ("a" * 1_100_000, "is larger than 1 MB, too large for a file of settings"),
    ],
)
def test_hostile_yaml_is_one_line_at_once(tmp_path: Path, text: str, says: str) -> None:
    assert yaml_message(tmp_path, text).startswith(says)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_json(path, dict[str, int], "make it again"),
        lambda path: read_yaml(path, "correct it"),
        lambda path: read_array(path, ["int64"], (None,), "make it again"),
        lambda path: read_arrow(path, {"id": "int64"}, "make it again"),
    ],
)
def test_what_the_disk_refuses_names_the_file(tmp_path: Path, read: Callable[[Path], object]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(StorageError, match=f"^{tmp_path}/a: a folder is in the way; give the path of a file$"):
        read(tmp_path / "a")
    with pytest.raises(StorageError, match=f"^{tmp_path}/circle: symbolic links form a loop"):
        read(tmp_path / "circle")


def test_aliases_that_stand_for_billions_of_values_are_refused(tmp_path: Path) -> None:
    text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    text += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    assert "there are more than 100,000 values after aliases are expanded" in yaml_message(tmp_path, text)
    chain = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 500))
    assert "nested more than 100 deep" in yaml_message(tmp_path, chain)


def test_yaml_of_plain_values_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("base: &base {lr: 1e-4, ratio: 1:4}\nnext:\n  <<: *base\n  lr: 2\n")
    assert read_yaml(file, "")["next"] == {"lr": 2, "ratio": "1:4"}
    file.write_text("")
    assert read_yaml(file, "") is None


MESSAGE = "is a pipe, a socket or a device; give a regular file"
READERS = [
    check_regular,
    open_regular,
    sha256_of,
    lambda path: read_json(path, dict, "x"),
    lambda path: read_yaml(path, "x"),
    lambda path: open_stream(str(path)),
    lambda path: open_raw(str(path)),
    lambda path: Source.open(str(path)),
]
KINDS = [partial(lambda kind, path: kind.check(str(path), "flag"), kind) for kind in (FILE, FOLDER, DATASET)]


@pytest.fixture
def irregular(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A pipe, one with the name of a data set, a socket and a device."""
    monkeypatch.chdir(tmp_path)  # an address of a socket has at most 107 bytes
    os.mkfifo("pipe")
    os.mkfifo("pipe.jsonl.gz")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
    return [*(tmp_path / name for name in ("pipe", "pipe.jsonl.gz", "socket")), Path("/dev/zero")]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", [*READERS, *KINDS])
def test_what_is_no_file_is_refused_at_once(read, irregular: list[Path]) -> None:
    for file in irregular:
        with pytest.raises(StorageError, match=MESSAGE):
            read(file)


def test_a_file_is_read_and_a_folder_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    (tmp_path / "link").symlink_to("a")
    for name in ("a", "link"):
        with open_regular(tmp_path / name) as stream:
            assert stream.read() == b"text"
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
