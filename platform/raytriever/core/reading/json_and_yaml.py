"""Checked readers of JSON and YAML. They check the types, and refuse more than 100 levels of lists and objects."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from raytriever.core.errors import StorageError, UserError, disk_errors
from raytriever.core.reading.regular_files import open_regular

T = TypeVar("T")

MOST_JSON_BYTES = 256 << 20
MOST_YAML_BYTES = 1 << 20
_MOST_DEPTH = 100
_MOST_YAML_VALUES = 100_000
CHANGED = "is damaged or changed"
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_WORDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_WORDS |= {list: "a list", dict: "an object", type(None): "null"}


class Mismatch(ValueError):
    """Contents differ from what is expected. The text names the place in the file, the value and what is expected."""


@contextmanager
def checked(where: Path | str, remedy: str, error: type[UserError] = StorageError, wrong: str = "") -> Iterator[None]:
    """Convert a `Mismatch` that the block raises to an `error` about `where`, a file or a line. `wrong` is put before
    its text. Disk errors are converted as in `disk_errors`."""
    with disk_errors(where):
        try:
            yield
        except Mismatch as mismatch:
            raise error(f"{wrong}: {mismatch}" if wrong else str(mismatch), str(where), remedy) from mismatch.__cause__


def read_json(
    file: Path,
    kind: type[T],
    remedy: str,
    error: type[UserError] = StorageError,
    most: int = MOST_JSON_BYTES,
    needed: bool = False,
    format: int | None = None,
) -> T:
    """Read a JSON file of at most `most` bytes; see `parse_json`. With `needed`, a missing file raises `error`
    instead of `FileNotFoundError`."""
    with checked(file, remedy, error):
        try:
            with open_regular(file) as stream:
                text = stream.read(most + 1)
        except FileNotFoundError:
            if needed:
                raise Mismatch("is missing") from None
            raise
        if len(text) > most:
            raise Mismatch(f"{CHANGED}: it is longer than {most >> 20} MB")
    return parse_json(text, str(file), kind, remedy, error, format)


def parse_json(
    text: bytes | str,
    where: str,
    kind: type[T],
    remedy: str,
    error: type[UserError] = StorageError,
    format: int | None = None,
) -> T:
    """Parse the JSON text of a file or a line; see `conform`. A passed `format` must be the value of the key `format`.

    Raises:
        UserError: of the class `error`: it is not JSON, is nested too deeply, or has another format or type.
    """
    with checked(where, remedy, error):
        value = _parsed(text)
        there = value.get("format") if isinstance(value, dict) else format
        if format is not None and (type(there) is not int or there != format):
            what = "has no format number" if there is None else f"is of format {_shown(there)}"
            raise Mismatch(f"{what}; this version reads format {format}")
    return conform(value, where, kind, remedy, error)


def _parsed(text: bytes | str) -> Any:
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        value = json.loads(text)
        if _depth(raw) > _MOST_DEPTH:
            raise RecursionError
    except RecursionError:
        raise Mismatch(f"{CHANGED}: it is nested more than {_MOST_DEPTH} deep") from None
    except ValueError as reason:
        raise Mismatch(f"{CHANGED}: it is not JSON ({' '.join(str(reason).split())[:200]})") from reason
    return value


def conform(value: object, where: str, kind: type[T], remedy: str, error: type[UserError] = StorageError) -> T:
    """Check that a value of JSON or YAML has the type `kind`, and return it.

    A type is `str`, `int` (64 bits), `float`, `bool`, `Any`, a `Literal`, a union, `list[...]`,
    `tuple[..., ...]`, `dict[str, ...]`, a `TypedDict` (keeps unknown keys) or a dataclass (refuses them;
    an instance is returned).

    Args:
        remedy: what the user can do if the value has another type.

    Raises:
        UserError: of the class `error`. It names the first key whose value has another type.
    """
    with checked(where, remedy, error, CHANGED):
        return _conformed(value, kind, ())  # type: ignore[return-value]


def read_yaml(file: Path, remedy: str, error: type[UserError] = StorageError) -> Any:
    """Read a YAML file of plain values.

    YAML 1.1 reads `1:4` as the number 64, in base 60. This function returns the text `1:4`.

    Raises:
        UserError: of the class `error`: the file is not YAML, is larger than 1 MB, is nested more than 100 deep, has a
            key twice, or has more than 100,000 values after its aliases are expanded.
    """
    import yaml

    with checked(file, remedy, error):
        with open_regular(file) as stream:
            raw = stream.read(MOST_YAML_BYTES + 1)
        if len(raw) > MOST_YAML_BYTES:
            raise Mismatch(f"is larger than {MOST_YAML_BYTES >> 20} MB, too large for a file of settings")
        loader = None
        try:
            loader = _plain_loader()(raw.decode())
            if (node := loader.get_single_node()) is None:
                return None
            _measure(node, {})
            return loader.construct_document(node)
        except RecursionError:
            place = f"line {loader.line + 1}: " if loader else ""
            raise Mismatch(f"{place}lists and mappings are nested more than {_MOST_DEPTH} deep") from None
        except Mismatch:
            raise
        except (yaml.YAMLError, ValueError, OverflowError) as reason:
            raise Mismatch(f"is not YAML ({' '.join(str(reason).split())[:300]})") from reason


def _depth(text: bytes) -> int:
    """Return how deep brackets are nested, or 0 if there are too few brackets to exceed `_MOST_DEPTH`."""
    if text.count(b"[") + text.count(b"{") <= _MOST_DEPTH:
        return 0
    depth = deepest = 0
    for sign in _STRINGS.sub(b"", text).translate(None, _NO_BRACKETS):
        depth += 1 if sign in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _conformed(value: object, kind: Any, path: tuple[str, ...]) -> object:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _first_of(value, inner, path)
    if origin is Literal:
        if not any(type(choice) is type(value) and choice == value for choice in inner):
            raise Mismatch(f"{_place(path)} is {_shown(value)}, expected {' or '.join(map(repr, inner))}")
        return value
    if is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return _record(_plain(value, dict, path), kind, path)
    if origin in (list, Sequence, tuple):
        items = [_conformed(item, inner[0], (*path, str(i))) for i, item in enumerate(_plain(value, list, path))]
        return tuple(items) if origin is tuple else items
    if origin in (dict, Mapping):
        return {name: _conformed(item, inner[1], (*path, name)) for name, item in _plain(value, dict, path).items()}
    return _plain(value, kind, path)


def _plain(value: Any, kind: Any, path: tuple[str, ...]) -> Any:
    """Return a value if its JSON type is `kind`. Integers are valid as `float`; `true` and `false` are not numbers."""
    kind = type(None) if kind is None else kind
    fits = type(value) is kind or (kind is float and type(value) is int)
    if kind is dict and fits and (other := [key for key in value if type(key) is not str]):
        raise Mismatch(f"{_place(path)} has the key {other[0]!r}, expected a text")
    if not fits:
        raise Mismatch(f"{_place(path)} is {_shown(value)}, expected {_WORDS[kind]}")
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise Mismatch(f"{_place(path)} is a number of more than 64 bits")
    return value


def _first_of(value: object, kinds: Sequence[Any], path: tuple[str, ...]) -> object:
    """Convert a value to the first type of a union that it fits. Otherwise raise the most specific `Mismatch`."""
    reasons = []
    for kind in kinds:
        try:
            return _conformed(value, kind, path)
        except Mismatch as reason:
            reasons.append(str(reason))
    deeper = [reason for reason in reasons if not reason.startswith(f"{_place(path)} is")]
    words = " or ".join(_WORDS.get(type(None) if kind is None else kind, "another value") for kind in kinds)
    raise Mismatch(deeper[0] if deeper else f"{_place(path)} is {_shown(value)}, expected {words}")


def _record(value: dict[str, Any], kind: Any, path: tuple[str, ...]) -> object:
    needed, hints = _fields(kind)
    if missing := [name for name in hints if name in needed and name not in value]:
        raise Mismatch(f"{_place((*path, missing[0]))} is missing")
    fields = {name: _conformed(item, hints.get(name, Any), (*path, name)) for name, item in value.items()}
    if is_typeddict(kind):
        return fields
    if unknown := [name for name in value if name not in hints]:
        raise Mismatch(f"{_place((*path, unknown[0]))} is unknown")
    return kind(**fields)


@lru_cache
def _fields(kind: Any) -> tuple[frozenset[str], dict[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
        plain = {name: get_args(hint)[0] if name in optional else hint for name, hint in hints.items()}
        return frozenset(kind.__required_keys__ - optional), plain
    fields = [field for field in dataclasses.fields(kind) if field.init]
    missing = dataclasses.MISSING
    needed = [field.name for field in fields if field.default is missing and field.default_factory is missing]
    return frozenset(needed), {field.name: hints[field.name] for field in fields}


def _place(path: Sequence[str]) -> str:
    return repr(".".join(path)) if path else "the content"


def _shown(value: object) -> str:
    if type(value) in (bool, int, float):
        return json.dumps(value)
    return _WORDS.get(type(value), type(value).__name__)


@lru_cache
def _plain_loader() -> Any:
    """Return a loader of plain values in which `1:4` is a text."""
    import yaml

    class Plain(yaml.SafeLoader):
        """Loader of plain values only."""

    def integer(loader: Any, node: Any) -> Any:
        return node.value if ":" in node.value else loader.construct_yaml_int(node)

    Plain.add_constructor("tag:yaml.org,2002:int", integer)
    return Plain


def _measure(node: Any, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the number of values and the depth of a YAML node after its aliases are expanded.

    Both are computed before any value is built, because eight lines of aliases may expand to billions of values. Raise
    `Mismatch` if a node has too many values, holds itself or has a key twice, and `RecursionError` if it is too deep.

    Args:
        known: results of lists and mappings, by the id of their node; (0, 0) while a node is being measured.
    """
    if isinstance(node.value, str):
        return 1, 0
    line = node.start_mark.line + 1
    if id(node) in known:
        if known[id(node)] == (0, 0):
            raise Mismatch(f"line {line}: a value holds an alias of itself")
        return known[id(node)]
    known[id(node)] = (0, 0)
    pairs = [item for item in node.value if isinstance(item, tuple)]  # a mapping holds pairs, a list holds nodes
    lines: dict[str, int] = {}
    for key in (key for key, _ in pairs if isinstance(key.value, str)):
        if key.value in lines:
            twice = f"in line {lines[key.value]} and in line {key.start_mark.line + 1}"
            raise Mismatch(f"{key.value!r} is given twice, {twice}")
        lines[key.value] = key.start_mark.line + 1
    sizes = [_measure(child, known) for child in (chain.from_iterable(pairs) if pairs else node.value)]
    values, depth = 1 + sum(size[0] for size in sizes), 1 + max((size[1] for size in sizes), default=0)
    if values > _MOST_YAML_VALUES:
        raise Mismatch(f"line {line}: there are more than {_MOST_YAML_VALUES:,} values after aliases are expanded")
    if depth > _MOST_DEPTH:
        raise RecursionError
    known[id(node)] = values, depth
    return values, depth
