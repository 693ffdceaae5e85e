"""One way to declare a setting: a dataclass field that carries its help text, its choices and its range.

The command line, the configuration files and the validation all read the same declaration, so they cannot drift.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from raytriever.errors import ConfigError
from raytriever.masking import refuse_secrets


def option(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    reads: Callable[[Any], Any] | None = None,
    form: str | None = None,
) -> Any:
    """A dataclass field with what a user is told about it.

    Args:
        default: its value when nothing is said.
        help: one sentence, with the unit where there is one.
        choices: the only strings allowed.
        minimum: the smallest number allowed.
        above: a number that must be exceeded.
        maximum: the largest number allowed.
        reads: makes the value of what a flag or a file gives; raises ValueError saying what would be right.
        form: how the value is written, for a setting that is read so.
    """
    allowed = tuple(choices) if choices is not None else None
    metadata: dict[str, Any] = {"help": help, "choices": allowed, "minimum": minimum, "above": above}
    metadata |= {"maximum": maximum, "reads": reads, "form": form}
    return dataclasses.field(default=default, metadata=metadata)


def flag_of(field_name: str) -> str:
    """The command-line spelling of a field: `batch_size` is `--batch-size`."""
    return "--" + field_name.replace("_", "-")


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`did you mean 'mw'?` when something known is close, else the known names."""
    names = sorted(known)
    close = get_close_matches(wrong, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}"


def read_option(field: dataclasses.Field[Any], given: Any, where: str) -> Any:
    """The value of a setting that has a form of its own; raises `ConfigError` where it is not written so."""
    try:
        return field.metadata["reads"](given)
    except ValueError as error:
        raise ConfigError(f"{given!r}", where, str(error)) from error


def check_options(config: Any) -> None:
    """Hold every field of a dataclass instance to its declaration; raises `ConfigError` naming the flag."""
    for field in dataclasses.fields(config):
        value, rule = getattr(config, field.name), field.metadata
        if value is None or not rule:
            continue
        where = flag_of(field.name)
        if isinstance(value, str):
            refuse_secrets(value, where)
        if rule.get("reads") is not None:
            read_option(field, value, where)
        if rule["choices"] is not None and value not in rule["choices"]:
            raise ConfigError(f"unknown value {value!r}", where, did_you_mean(str(value), rule["choices"]))
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{value!r} is out of range", where, "give a finite number")
        for name, fails in (
            ("minimum", lambda bound, v=value: not v >= bound),
            ("above", lambda bound, v=value: not v > bound),
            ("maximum", lambda bound, v=value: not v <= bound),
        ):
            bound = rule[name]
            if bound is not None and fails(bound):
                words = {"minimum": "at least", "above": "above", "maximum": "at most"}[name]
                raise ConfigError(f"{value!r} is out of range", where, f"give a value {words} {bound:.17g}")
