"""Declaration of settings. Each is a dataclass field with its help text, choices and range.

The command line, the configuration files and the validation read the same declaration, so they cannot differ."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from raytriever.core.errors import ConfigError, setting
from raytriever.core.masking import refuse_secrets
from raytriever.core.unknown_names import did_you_mean


class Need:
    """Another setting that a setting needs: without it, the setting has no effect.

    Args:
        name: Name of the setting that is needed.
        values: The setting must have one of these values; a list or a sum (`a+b`) must contain one of them. A value
            that ends in `:` is a prefix. Without values, any value that is not empty is enough.
        negated: True for the opposite: the setting must be empty, or must have or contain a value other than these.
    """

    def __init__(self, name: str, *values: str, negated: bool = False) -> None:
        self.name, self.values, self.negated = name, values, negated

    def unmet(self, settings: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return why the requirement is not met, and a remedy. Return None if it is met."""
        value = settings.get(self.name)
        flag = setting(self.name, True if isinstance(value, bool) else None)
        is_set = value not in (None, "", False, 0, [])
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        present = f"without {flag}" if not is_set else f"with {flag}" if value is True else f"with {flag} {text}"
        if not self.values:
            return None if is_set != self.negated else (present, "" if self.negated else flag)
        parts = {part.strip() for part in re.split("[,+]", text)}
        begun = any(value.endswith(":") and value in text for value in self.values)
        if (not parts <= {*self.values}) if self.negated else begun or not parts.isdisjoint(self.values):
            return None
        return present, f"another {flag}" if self.negated else f"{flag} {' or '.join(self.values)}"


def option(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] | None = None,
    pattern: str | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    reads: Callable[[Any], Any] | None = None,
    metavar: str | None = None,
    needs: str | Need | tuple[str | Need, ...] = (),
    flag: bool = True,
) -> Any:
    """Return a dataclass field that declares a setting.

    Args:
        default: default value.
        help: one sentence for `--help`, with the unit if there is one.
        choices: allowed strings.
        pattern: regular expression of strings that are allowed besides `choices`.
        minimum: smallest allowed number.
        above: the number must be larger than this.
        maximum: largest allowed number.
        reads: function that converts the text of a flag or a file to the value. Its ValueError says what to give.
        metavar: placeholder that `--help` shows for the value, such as `PATH`; for settings with `reads` or `pattern`.
        needs: settings without which this one has no effect, as `Need` or by name. One of them is enough.
        flag: False for a rarely used setting that `train` reads from its configuration file only, not from a flag.
    """
    allowed = tuple(choices) if choices is not None else None
    needed = [
        Need(need) if isinstance(need, str) else need for need in (needs if isinstance(needs, tuple) else (needs,))
    ]
    metadata: dict[str, Any] = {"help": help, "choices": allowed, "pattern": pattern, "minimum": minimum}
    metadata |= {"above": above, "maximum": maximum, "reads": reads, "metavar": metavar}
    metadata |= {"needs": tuple(needed), "flag": flag}
    return dataclasses.field(default=default, metadata=metadata)


def read_option(field: dataclasses.Field[Any], value: Any, where: str) -> Any:
    """Convert the value of a setting with `reads`; raises `ConfigError` if `reads` refuses it."""
    try:
        return field.metadata["reads"](value)
    except ValueError as error:
        raise ConfigError(f"{value!r} is invalid", where, str(error)) from error


def check_options(config: Any) -> None:
    """Check every field of a dataclass instance against its declaration. Then call its `check` method, if any. Raise
    `ConfigError` if a value is not allowed, or contradicts another value, and `DataError` if it holds a secret."""
    for field in dataclasses.fields(config):
        value, rule = getattr(config, field.name), field.metadata
        if value is None or not rule:
            continue
        where = setting(field.name)
        if isinstance(value, str):
            refuse_secrets(value, field.name)
            if not value.isascii() and (halves := re.search("[\ud800-\udfff]", value)):
                what = f"holds half of a surrogate pair ({halves[0]!a})"
                raise ConfigError(what, setting(field.name), "write the whole character, or leave it out")
        if rule.get("reads") is not None:
            read_option(field, value, where)
        pattern = rule.get("pattern")
        is_other = pattern is not None and re.fullmatch(pattern, str(value)) is not None
        if rule["choices"] is not None and value not in rule["choices"] and not is_other:
            other = f", or give {rule['metavar']}" if pattern else ""
            raise ConfigError(f"unknown value {value!r}", where, did_you_mean(str(value), rule["choices"]) + other)
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError("is out of range", where, "give a number of at most 18 digits")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{value!r} is out of range", where, "give a finite number")
        for name, fails in (
            ("minimum", lambda bound, v=value: not v >= bound),
            ("above", lambda bound, v=value: not v > bound),
            ("maximum", lambda bound, v=value: not v <= bound),
        ):
            bound = rule[name]
            if bound is not None and fails(bound):
                words = {"minimum": "of at least", "above": "above", "maximum": "of at most"}[name]
                raise ConfigError(f"{value!r} is out of range", where, f"give a value {words} {bound:.15g}")
    if hasattr(config, "check"):
        config.check()


def needs_of(*kinds: type) -> dict[str, tuple[Need, ...]]:
    """Return `needs` of each setting that has any in the dataclasses, by the name of the setting."""
    fields = [field for kind in kinds for field in dataclasses.fields(kind)]
    return {field.name: field.metadata["needs"] for field in fields if field.metadata.get("needs")}


def without_effect(
    settings: Mapping[str, Any], names: Iterable[str], needs: Mapping[str, Sequence[Need]]
) -> dict[str, ConfigError]:
    """Return an error for each explicit setting that has no effect, given the values of the other settings.

    Args:
        settings: value of every setting, by name.
        names: names of the explicit settings; those with an empty value are not checked.
        needs: requirements of each setting, by name.
    """
    errors = {}
    for name in names:
        unmet = [each for need in needs.get(name, ()) if (each := need.unmet(settings)) is not None]
        if not unmet or len(unmet) < len(needs[name]) or settings.get(name) in (None, "", False, []):
            continue
        reasons = dict.fromkeys(reason for reason, _ in unmet)
        remedies = [remedy for _, remedy in unmet if remedy]
        remedy = "leave it out" + (f", or give {' or '.join(remedies)}" if remedies else "")
        errors[name] = ConfigError(f"has no effect {' and '.join(reasons)}", setting(name), remedy)
    return errors


def check_changed(config: Any, *others: Any, only: Iterable[str] | None = None) -> None:
    """Raise `ConfigError` for a setting that differs from its default but has no effect, given the other settings.
    Settings of `config` may need settings of `others`. `only` names the settings to check; None for all."""
    settings = {name: value for instance in (*others, config) for name, value in vars(instance).items()}
    changed = [field.name for field in dataclasses.fields(config) if settings[field.name] != field.default]
    changed = [name for name in changed if only is None or name in only]
    for error in without_effect(settings, changed, needs_of(type(config))).values():
        raise error
