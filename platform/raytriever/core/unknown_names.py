"""Unknown names in files, flags and calls: a misspelled key, setting or value is refused with a suggestion."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from raytriever.core.errors import ConfigError


def check_known(kind: str, name: Any, known: Collection[str], where: str | None = None, *others: str) -> None:
    """Raise `ConfigError` if a name of this kind, such as a setting, is not known. The remedy may suggest `others`."""
    if name not in known:
        raise ConfigError(f"unknown {kind} {name!r}", where, did_you_mean(str(name), (*known, *others)))


def did_you_mean(wrong: str, choices: Iterable[str]) -> str:
    """Return a hint: `did you mean 'mw'?` if a known name is similar, otherwise the list of known names."""
    names = sorted(choices)
    close = nearest(wrong, names)
    return f"did you mean {close!r}?" if close is not None else f"choose from {', '.join(names)}"


def nearest(wrong: str, names: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a wrong one; None if none is similar."""
    return next(iter(get_close_matches(wrong, list(names), n=1, cutoff=0.5)), None)
