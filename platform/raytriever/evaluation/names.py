"""Short, distinct and file-safe names for what paths and hub names refer to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath


def distinct_names(places: Sequence[str]) -> list[str]:
    """The last part of each path or name, with as many parts before it as tell it from the others, joined by `_`.

    A last part `model` belongs to a run's directory and stands for that. Characters that file systems and MLflow's
    names of metrics do not share become `_`; equal places get equal names.
    """
    parts = [_parts(place) for place in places]
    found = []
    for own in parts:
        others = [other for other in parts if other != own]
        length = next(
            (n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), max(1, len(own))
        )
        found.append(safe_name("_".join(own[-length:])))
    return found


def unique_names(names: Sequence[str]) -> list[str]:
    """Return the names, all different: a repeated one has a number behind it, `a`, `a-2`, `a-3`."""
    found: list[str] = []
    for name in names:
        number, one = 1, name
        while one in found or (number > 1 and one in names):
            number += 1
            one = f"{name}-{number}"
        found.append(one)
    return found


def safe_name(name: str) -> str:
    """A name with everything but letters, digits, `-`, `.` and `_` replaced."""
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"


def _parts(place: str) -> list[str]:
    parts = [part for part in PurePath(place).parts if part not in ("/", "..")]
    return parts[:-1] if len(parts) > 1 and parts[-1] == "model" else parts or [place]
