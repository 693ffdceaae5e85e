"""Short, distinct and file-safe names of models and data sets, from their paths and hub names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath


def distinct_names(sources: Sequence[str]) -> list[str]:
    """Return the last part of each path or hub name, with as many parts before it as make it distinct.

    Parts are joined by `_`. A last part `model` belongs to a run's directory, and the directory's name is used. Every
    character that file systems and metric names of MLflow do not share becomes `_`. Equal sources get equal names.
    """
    all_parts = [_parts(source) for source in sources]
    names = []
    for parts in all_parts:
        others = [other for other in all_parts if other != parts]
        length = next(
            (n for n in range(1, len(parts)) if all(other[-n:] != parts[-n:] for other in others)), max(1, len(parts))
        )
        names.append(safe_name("_".join(parts[-length:])))
    return names


def unique_names(names: Sequence[str]) -> list[str]:
    """Return the names, all different: a repeated name gets a number, `a`, `a-2`, `a-3`."""
    unique: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in unique or (number > 1 and candidate in names):
            number += 1
            candidate = f"{name}-{number}"
        unique.append(candidate)
    return unique


def safe_name(name: str) -> str:
    """Replace everything but letters, digits, `-`, `.` and `_`."""
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"


def _parts(source: str) -> list[str]:
    parts = [part for part in PurePath(source).parts if part not in ("/", "..")]
    return parts[:-1] if len(parts) > 1 and parts[-1] == "model" else parts or [source]
