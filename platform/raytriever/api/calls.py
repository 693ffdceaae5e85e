"""One call of the public API: locks, and errors that name arguments instead of flags."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from raytriever.activity import activity
from raytriever.errors import UserError, render
from raytriever.options import check_options
from raytriever.paths import fetch_paths
from raytriever.store.commit import lock_errors
from raytriever.store.disk import disk_errors
from raytriever.store.lock import acquire
from raytriever.terminal import warn

P = ParamSpec("P")
T = TypeVar("T")
# Parameters that functions of the API have in place of a flag of another name.
_PARAMETERS = {
    "dataset": ("data", "path"),
    "datasets": ("data",),
    "model": ("models", "name"),
    "candidates": ("models",),
    "negatives_table": ("hard_negatives",),
}


def public(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function end in a `UserError` that names arguments (`num_negatives`) where a command names flags."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with disk_errors("raytriever"):
                return function(*args, **kwargs)
        except UserError as error:
            _name_arguments(error, function)
            raise

    return called


def checked(settings: T) -> T:
    """Return settings whose values are allowed and whose paths exist; raises `UserError` for others."""
    check_options(settings)
    fetch_paths(settings)
    return settings


@contextmanager
def working(name: str, output: Path | None = None) -> Iterator[None]:
    """Do long work. No other process writes `output`. The handlers of signals stay those of the caller's program.

    Args:
        name: Name of the function, for the line that is shown while nothing else is.
        output: a directory that the work writes, if any; it need not exist.

    Raises:
        InUseError: another process is writing the directory.
    """
    with activity(f"raytriever.{name} is working"):
        if output is None:
            yield
            return
        with lock_errors(output):
            lock = acquire(output, report=warn, remedy="wait until it has ended, or give another output")
        try:
            yield
        finally:
            lock.release()


def _name_arguments(error: UserError, function: Callable[..., Any]) -> None:
    """Spell the settings in an error as arguments of a function.

    `num_negatives` where a command shows `--num-negatives`, `fresh=True` for `--fresh`, `duplicates=False` for
    `--no-duplicates`, and `data='a/b'` for `--dataset a/b`.
    """
    parameters = inspect.signature(function).parameters

    def argument(name: str, value: str | bool | None) -> str:
        name = next((other for other in (name, *_PARAMETERS.get(name, ())) if other in parameters), name)
        return name if value is None else f"{name}={value!r}"

    error.args = tuple(text and render(text, argument) for text in error.args)
