"""One call of the public API: locks, and errors that name arguments instead of flags."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints

from raytriever.activity import activity
from raytriever.errors import UserError
from raytriever.locking import acquire
from raytriever.storage import disk_errors, lock_errors
from raytriever.terminal import warn

P = ParamSpec("P")
T = TypeVar("T")
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
_FLAG_AND_VALUE = re.compile(r"--([a-z][a-z0-9-]*) (?!.* --)(.+)")
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


@contextmanager
def working(name: str, output: Path | None = None) -> Iterator[None]:
    """Do long work. No other process writes `output`. The handlers of signals stay those of the caller's program.

    Args:
        name: of the function, for the line that is shown while nothing else is.
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
    """Rewrite the flags in an error as arguments of a function.

    `--num-negatives` becomes `num_negatives`, `--fresh` becomes `fresh=True`, `--no-duplicates` becomes
    `duplicates=False`, and the location `--dataset a/b` becomes `data='a/b'`.
    """
    parameters = inspect.signature(function).parameters
    switches = {name for name, one in parameters.items() if one.annotation in (bool, "bool")}
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        switches |= _switches_of_training()

    def argument(flag: str) -> str:
        name = flag.replace("-", "_")
        if name in switches:
            return f"{name}=True"
        if (positive := name.removeprefix("no_")) in switches:
            return f"{positive}=False"
        return next((other for other in (name, *_PARAMETERS.get(name, ())) if other in parameters), name)

    def rewrite(text: str | None) -> str | None:
        return text and _FLAG.sub(lambda match: argument(match[1]), text)

    given = _FLAG_AND_VALUE.fullmatch(error.where or "")
    where = f"{argument(given[1])}={given[2]!r}" if given else rewrite(error.where)
    error.what, error.where, error.remedy = rewrite(error.what) or "", where, rewrite(error.remedy)
    error.args = (error.what, error.where, error.remedy)


def _switches_of_training() -> set[str]:
    """Return the names of the settings of a run that are true or false."""
    from raytriever.config import Config

    sections = [get_type_hints(hint) for hint in get_type_hints(Config).values() if dataclasses.is_dataclass(hint)]
    return {name for section in sections for name, hint in section.items() if hint is bool}
