"""Wrappers of public API functions: they lock the output directory and turn disk errors into `StorageError`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from raytriever.core.errors import disk_errors
from raytriever.core.paths import fetch_paths
from raytriever.core.progress import activity
from raytriever.core.setting_declarations import check_options
from raytriever.core.store.commit import one_writer
from raytriever.core.terminal import warn

P = ParamSpec("P")
T = TypeVar("T")


def public(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of the API, so that a disk error becomes a `StorageError`."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        with disk_errors("raytriever"):
            return function(*args, **kwargs)

    return called


def checked(settings: T) -> T:
    """Check and return `settings`. Raises `UserError` if a value is not allowed or a path does not exist."""
    check_options(settings)
    fetch_paths(settings)
    return settings


@contextmanager
def working(name: str, output: Path | None = None) -> Iterator[None]:
    """Lock the directory `output`, even if it does not exist yet, during long work. While nothing else is printed, a
    line shows the name of the function. The signal handlers of the program are kept. Raise `InUseError` if another
    process is writing the directory."""
    remedy = "wait until that process has ended, or use another output directory"
    with (
        activity(f"raytriever.{name} is working"),
        one_writer(output, log=warn, remedy=remedy) if output else nullcontext(),
    ):
        yield
