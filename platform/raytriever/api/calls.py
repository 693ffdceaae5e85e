"""One call of the public API: locks, interruption, and errors that name arguments instead of flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from raytriever.activity import activity
from raytriever.errors import UserError
from raytriever.interruption import interruptible
from raytriever.locking import acquire
from raytriever.storage import disk_errors, lock_errors
from raytriever.terminal import warn

P = ParamSpec("P")
T = TypeVar("T")
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")


def public(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function end in a `UserError` that names arguments (`num_negatives`) where a command names flags."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with disk_errors("raytriever"):
                return function(*args, **kwargs)
        except UserError as error:
            _name_arguments(error)
            raise

    return called


@contextmanager
def working(name: str, output: Path | None = None) -> Iterator[None]:
    """Do long work: SIGTERM and a closed terminal end it as Ctrl-C does, and no other process writes `output`.

    Args:
        name: of the function, for the line that is shown while nothing else is.
        output: a directory that the work writes, if any; it need not exist.

    Raises:
        InUseError: another process is writing the directory.
    """
    with interruptible(), activity(f"raytriever.{name} is working"):
        if output is None:
            yield
            return
        with lock_errors(output):
            lock = acquire(output, report=warn, remedy="wait until it has ended, or give another output")
        try:
            yield
        finally:
            lock.release()


def _name_arguments(error: UserError) -> None:
    """Rewrite the flags in an error as arguments: `--num-negatives` becomes `num_negatives`."""

    def argument(match: re.Match[str]) -> str:
        return match[1].replace("-", "_")

    parts = [text and _FLAG.sub(argument, text) for text in (error.what, error.where, error.remedy)]
    error.what, error.where, error.remedy = parts[0] or "", parts[1], parts[2]
    error.args = tuple(parts)
