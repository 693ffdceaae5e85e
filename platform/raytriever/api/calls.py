"""One call of the public API: locks, and errors of the disk in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from raytriever.core.activity import activity
from raytriever.core.errors import disk_errors
from raytriever.core.options import check_options
from raytriever.core.paths import fetch_paths
from raytriever.core.store.commit import one_writer
from raytriever.core.terminal import warn

P = ParamSpec("P")
T = TypeVar("T")


def public(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function of the API raise errors of the disk as a `StorageError`."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        with disk_errors("raytriever"):
            return function(*args, **kwargs)

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
    remedy = "wait until it has ended, or give another output"
    with (
        activity(f"raytriever.{name} is working"),
        one_writer(output, report=warn, remedy=remedy) if output else nullcontext(),
    ):
        yield
