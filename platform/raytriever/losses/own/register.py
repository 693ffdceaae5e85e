"""Losses that a program gives as Python functions, written to files that workers can read.

A function of an imported module is used in the file of its module. A function of a script or a notebook is copied,
with what it uses, into a file of its own: to run the whole script in a worker would begin its training again."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from raytriever.errors import ConfigError, setting
from raytriever.losses.config import LOSS_NAMES, terms_of
from raytriever.options import did_you_mean
from raytriever.store.cache import cache_folder
from raytriever.store.commit import write_atomically

_REMEDY = "write the loss into a file, and give 'FILE.py:NAME'"
_REGISTERED = dict[str, Callable[..., Any]]()


def register(name: str, function: Callable[..., Any]) -> None:
    """Give a loss of one's own a name for `rt.train(loss=name)` in this program.

    Args:
        name: a name that no loss has.
        function: of `scores` [B, C], `positives` [B, C] and what else it asks for by name, that returns a scalar.

    Raises:
        ConfigError: another loss has the name, it has a plus sign, or the function cannot be sent to workers.

    Examples:
        >>> def margin(scores, positives, negatives):
        ...     return (scores[negatives].mean() - scores[positives].mean()).relu()
        >>> rt.losses.register("margin", margin)  # doctest: +SKIP
        >>> run = rt.train(data, loss="margin")  # doctest: +SKIP
    """
    if name in LOSS_NAMES or _REGISTERED.get(name, function) is not function:
        raise ConfigError(f"a loss has the name {name!r} already", "name", "choose another name")
    if "+" in name:
        raise ConfigError(f"{name!r} would be a sum of losses", "name", "choose a name without a plus sign")
    reference_of(function)  # reports what cannot be sent to workers now, not when training starts
    _REGISTERED[name] = function


def loss_setting(loss: str | Callable[..., Any]) -> str:
    """Return the setting for a loss: a name, `FILE.py:NAME`, a registered name, a sum of these, or a function.

    Raises:
        ConfigError: see `reference_of`.
    """
    if isinstance(loss, str):
        terms = terms_of(loss)
        return "+".join(reference_of(_REGISTERED[term]) if term in _REGISTERED else term for term in terms)
    if not inspect.isfunction(loss):
        raise ConfigError(
            f"is {type(loss).__name__}",
            setting("loss"),
            f"give a function, 'FILE.py:NAME', or {did_you_mean('', LOSS_NAMES)[7:]}",
        )
    return reference_of(loss)


def reference_of(function: Callable[..., Any]) -> str:
    """Return `FILE.py:NAME` of a function; one of a script or a notebook is copied to a file of the cache.

    Raises:
        ConfigError: the function has no name or no source, or uses an object that is in no file.
    """
    name = function.__name__
    if not name.isidentifier() or function.__qualname__ != name or function.__code__.co_freevars:
        raise ConfigError(f"{function.__qualname__} is not defined at the top of a file", setting("loss"), _REMEDY)
    module = inspect.getmodule(function)
    if module is not None and module.__name__ != "__main__" and str(module.__file__).endswith(".py"):
        return f"{module.__file__}:{name}"
    text = _copied_source(function)
    file = cache_folder() / "losses" / f"{name}.py"
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text)
    return f"{file}:{name}"


def _copied_source(function: Callable[..., Any]) -> str:
    """Return the text of a file: a function, after the functions, modules and constants that it uses."""
    blocks: dict[str, str] = {}

    def add(name: str, value: Any) -> None:
        if name in blocks:
            return
        if isinstance(value, ModuleType):
            blocks[name] = f"import {value.__name__} as {name}\n"
        elif isinstance(value, bool | int | float | str | tuple | None):
            blocks[name] = f"{name} = {value!r}\n"
        elif getattr(value, "__module__", "__main__") != "__main__" and hasattr(value, "__name__"):
            blocks[name] = f"from {value.__module__} import {value.__name__} as {name}\n"
        elif inspect.isfunction(value):
            source = _source_of(value)
            blocks[name] = ""  # a function may call itself
            for used in _names_in(source):
                if used != name and used in value.__globals__:
                    add(used, value.__globals__[used])
            del blocks[name]
            blocks[name] = source
        else:
            raise ConfigError(f"uses {name}, which is {type(value).__name__}", setting("loss"), _REMEDY)

    add(function.__name__, function)
    return "from __future__ import annotations\n\n" + "\n".join(blocks.values())


def _source_of(function: Callable[..., Any]) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise ConfigError(f"{function.__name__} has no source that can be read", setting("loss"), _REMEDY) from error


def _names_in(source: str) -> list[str]:
    """Return the names that a function reads, without those of its annotations: they are not evaluated."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
    return [each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
