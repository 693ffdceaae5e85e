"""The public names of the package with their signatures; run as a script, it writes them to `public_names.txt`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import raytriever

FILE = Path(__file__).with_name("public_names.txt")
MODULES: dict[str, ModuleType] = {
    "raytriever": raytriever,
    "raytriever.losses": raytriever.losses,
    "raytriever.metrics": raytriever.metrics,
}


def public_objects() -> dict[str, Any]:
    """Return every name of `__all__` of the public modules, with what it stands for."""
    return {f"{module}.{name}": getattr(value, name) for module, value in MODULES.items() for name in value.__all__}


def described() -> str:
    """Return one line for each public name, function and method, sorted."""
    return "".join(f"{line}\n" for name, value in public_objects().items() for line in _lines(name, value))


def _lines(name: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(value):
        yield f"{name}{inspect.signature(value)}"
    elif inspect.isclass(value):
        # What a function makes has no constructor for users.
        is_made = "made by" in (value.__doc__ or "") or "returned by" in (value.__doc__ or "")
        yield f"class {name}" if is_made else f"class {name}{inspect.signature(value)}"
        for member in sorted(vars(value)):
            if member.startswith("_") and member != "__len__":
                continue
            result = inspect.getattr_static(value, member)
            function = getattr(value, member)
            if callable(function):
                yield f"    {member}{inspect.signature(function)}"
            elif isinstance(result, property) or type(result).__name__ == "cached_property":
                yield f"    {member}: property"
    else:
        yield name


if __name__ == "__main__":
    FILE.write_text(described())
