"""Loss in a user's file, `FILE.py:NAME`, fixed to the present content of the file by a digest.

A run stores `FILE.py:NAME@DIGEST`. Its workers, and a call that resumes it, refuse a file with another digest. The
command line reads this module, so it imports quickly."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from raytriever.core.errors import ConfigError, UserError, setting
from raytriever.core.reading.regular_files import irregular
from raytriever.core.unknown_names import did_you_mean

PATTERN = r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)(@(?P<digest>[0-9a-f]{16}))?"
# Arguments that a user's function may have. Any other argument needs a default.
ARGUMENTS = ("scores", "positives", "negatives", "query_ids", "passage_ids", "teacher_scores", "temperature")
SETTINGS = ("config",)  # arguments of a function that returns a loss by row


@dataclass(frozen=True)
class LossFile:
    """Reference to a loss in a file."""

    file: Path  # path of the Python file
    name: str  # name of the function, or of the loss by row, in the file
    digest: str = ""  # first 16 hexadecimal digits of the SHA-256 of the file; empty if any content is accepted

    @classmethod
    def parse(cls, loss: str) -> LossFile | None:
        """Parse the setting `loss`. Return None for the name of a built-in loss."""
        match = re.fullmatch(PATTERN, loss)
        return match and cls(Path(os.path.expanduser(match["file"])), match["name"], match["digest"] or "")

    def pinned(self) -> str:
        """Return the setting `FILE.py:NAME@DIGEST` for the present content of the file."""
        return f"{self.file}:{self.name}@{_digest(self.read())}"

    def read(self) -> str:
        """Return the text of the file.

        Raises:
            ConfigError: the file cannot be read, is not UTF-8, or has another digest.
        """
        try:
            if not self.file.is_file() and self.file.exists():
                raise irregular(self.file)
            content = self.file.read_bytes()
            text = content.decode("utf-8-sig")
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            what = f"{reason} on {socket.gethostname()}"
            raise ConfigError(what, setting("loss", self.file), "give FILE.py:NAME of an existing file") from error
        except UnicodeDecodeError as error:
            raise ConfigError("is not UTF-8", setting("loss", self.file), "save it as UTF-8") from error
        if self.digest and _digest(text) != self.digest:
            raise ConfigError(
                f"has changed on {socket.gethostname()}: its SHA-256 begins with {_digest(text)}, but in the run "
                f"it began with {self.digest}",
                setting("loss", self.file),
                "restore the file from the run directory, or start another run",
            )
        return text

    def load(self) -> Any:
        """Execute the file once for its content, and return the object that it defines under the name.

        Raises:
            ConfigError: see `read`. Also if the code of the file fails (the error names the line), or if it does not
                define the name.
        """
        defined = vars(_run(self.file, self.read()))
        if self.name not in defined:
            known = [name for name in defined if not name.startswith("_")]
            raise ConfigError(f"defines no {self.name!r}", setting("loss", self.file), did_you_mean(self.name, known))
        return defined[self.name]

    def arguments(self) -> tuple[str, ...]:
        """Return the names of the function's arguments; `()` if the loss is not a function.

        Raises:
            ConfigError: see `load`; or the function has an argument that raytriever cannot supply.
        """
        value = self.load()
        if not inspect.isfunction(value):
            return ()
        parameters = inspect.signature(value).parameters
        required = tuple(name for name, parameter in parameters.items() if parameter.default is parameter.empty)
        where = setting("loss", f"{self.file}:{self.name}")
        if required == SETTINGS:
            return required
        if unknown := [name for name in required if name not in ARGUMENTS]:
            what = f"has the argument {', '.join(unknown)}, which raytriever does not pass to a loss"
            raise ConfigError(what, where, f"use only {', '.join(ARGUMENTS)}, or give the argument a default")
        if not {"scores", "positives"} <= {*parameters} or any(
            x.kind is x.POSITIONAL_ONLY for x in parameters.values()
        ):
            raise ConfigError(
                f"has the arguments ({', '.join(parameters)})", where, f"begin with 'def {self.name}(scores, positives'"
            )
        return tuple(parameters)


@lru_cache(maxsize=8)
def _run(file: Path, text: str) -> ModuleType:
    """Execute a file as a module. Like a script, it can import the files next to it."""
    module = ModuleType(f"raytriever_own_loss_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # `dataclass` looks up the module in `sys.modules`
    # With this, tracebacks show the executed lines, even if the file changes later.
    linecache.cache[str(file)] = len(text), None, text.splitlines(keepends=True), str(file)
    folder = str(file.absolute().parent)
    sys.path.insert(0, folder)
    try:
        with errors_of(file):
            exec(compile(text, str(file), "exec"), module.__dict__)  # noqa: S102 - a loss that the user wrote and named
    finally:
        sys.path.remove(folder)
    return module


@contextmanager
def errors_of(file: Path) -> Iterator[None]:
    """Convert an error of a user's file to a `ConfigError`. It names the line of the file that ran last."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # every error of the user's code is a user error
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(file)]
        lines += [error.lineno] if isinstance(error, SyntaxError) else []
        where = setting("loss", f"{file}:{lines[-1]}") if lines else setting("loss", file)
        text = " ".join(str(error).split()) or "no message"
        raise ConfigError(f"{type(error).__name__}: {text}", where, "correct the file") from error


def loss_setting(loss: str | Callable[..., Any]) -> str:
    """Return the setting for a loss. A text is returned unchanged; for a function, return `FILE.py:NAME`.

    Raises:
        ConfigError: the function is not at the top level of an imported file. A function of a notebook or of the main
            script has no file that workers can import and that a digest can identify.
    """
    if isinstance(loss, str):
        return loss
    if not inspect.isfunction(loss):
        raise ConfigError(f"is {type(loss).__name__}", setting("loss"), "give a name, 'FILE.py:NAME', or a function")
    name, module = loss.__name__, inspect.getmodule(loss)
    file = None if module is None or module.__name__ == "__main__" else getattr(module, "__file__", None)
    if file is None or not file.endswith(".py") or loss.__qualname__ != name or not name.isidentifier():
        raise ConfigError(
            f"{loss.__qualname__} is not a function of an imported file",
            setting("loss"),
            "write it into a file (in a notebook with `%%writefile my_losses.py`), and give 'my_losses.py:NAME'",
        )
    return f"{file}:{name}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
