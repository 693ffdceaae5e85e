"""Loss in a user's file, `FILE.py:NAME`: found and checked without running the file, and pinned to its content.

A run stores `FILE.py:NAME@DIGEST`. A worker, and a call that resumes the run, refuse a file whose content has another
digest. The command line reads this module, so it imports nothing heavy."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytriever.errors import ConfigError, setting
from raytriever.options import did_you_mean
from raytriever.reading.regular import irregular

PATTERN = r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)(@(?P<digest>[0-9a-f]{16}))?"
# Arguments that a function may ask for by name, besides its own arguments with defaults.
ARGUMENTS = ("scores", "positives", "negatives", "query_ids", "passage_ids", "teacher_scores", "temperature")
_SETTINGS = ("config",)  # arguments of a function that makes a loss by row


@dataclass(frozen=True)
class LossFile:
    """Reference to a loss in a file.

    Args:
        file: path of the Python file.
        name: name of the function, or of the loss by row, in the file.
        digest: first 16 hexadecimal digits of the SHA-256 of the file; empty if any content is accepted.
    """

    file: Path
    name: str
    digest: str = ""

    @classmethod
    def parse(cls, loss: str) -> LossFile | None:
        """Return the reference in a setting; None for the name of a loss of raytriever."""
        match = re.fullmatch(PATTERN, loss)
        return match and cls(Path(os.path.expanduser(match["file"])), match["name"], match["digest"] or "")

    def pinned(self) -> str:
        """Return the setting with the digest of the file."""
        return f"{self.file}:{self.name}@{_digest(self.read())}"

    def read(self) -> str:
        """Return the text of the file.

        Raises:
            ConfigError: it cannot be read, is not UTF-8, or has another digest.
        """
        try:
            if not self.file.is_file() and self.file.exists():
                raise irregular(self.file)
            content = self.file.read_bytes()
            text = content.decode("utf-8-sig")
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            raise ConfigError(
                f"{reason} on {socket.gethostname()}",
                setting("loss", self.file),
                "give FILE.py:NAME of an existing file",
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError("is not UTF-8", setting("loss", self.file), "save it as UTF-8") from error
        if self.digest and _digest(text) != self.digest:
            raise ConfigError(
                f"has changed on {socket.gethostname()}: its SHA-256 begins with {_digest(text)}, that of the run's "
                f"file with {self.digest}",
                setting("loss", self.file),
                "restore the file, which the run directory holds too, or begin another run",
            )
        return text

    def arguments(self) -> tuple[str, ...]:
        """Return the names of the function's arguments; empty for a loss that is no function of the file.

        Raises:
            ConfigError: see `read`; or the file is no Python, lacks the name, or the function asks for something that
                no loss has.
        """
        text = self.read()
        try:
            tree = ast.parse(text, str(self.file))
        except (SyntaxError, ValueError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ConfigError(
                f"is not valid Python ({reason})", setting("loss", f"{self.file}{line}"), "correct it"
            ) from error
        defined = dict[str, ast.stmt]()
        for statement in tree.body:
            defined |= dict.fromkeys(_names(statement), statement)
        if self.name not in defined:
            raise ConfigError(
                f"defines no {self.name!r}",
                setting("loss", self.file),
                did_you_mean(self.name, [name for name in defined if not name.startswith("_")]),
            )
        statement = defined[self.name]
        if not isinstance(statement, ast.FunctionDef):
            return ()
        listed = statement.args
        positional = [*listed.posonlyargs, *listed.args]
        required = [each.arg for each in positional[: len(positional) - len(listed.defaults)]]
        required += [
            each.arg for each, default in zip(listed.kwonlyargs, listed.kw_defaults, strict=True) if default is None
        ]
        names = tuple(each.arg for each in (*positional, *listed.kwonlyargs))
        self._check(names, required, listed.posonlyargs != [])
        return names

    def _check(self, names: tuple[str, ...], required: list[str], positional_only: bool) -> None:
        """Raise `ConfigError` if a function cannot be called with what a loss has."""
        where = setting("loss", f"{self.file}:{self.name}")
        if required == list(_SETTINGS):
            return
        unknown = [name for name in required if name not in ARGUMENTS]
        if unknown:
            raise ConfigError(
                f"asks for {', '.join(unknown)}, which raytriever does not give to a loss",
                where,
                f"ask for {', '.join(ARGUMENTS)}, or give the argument a default",
            )
        if "scores" not in names or "positives" not in names or positional_only:
            raise ConfigError(
                f"has the arguments ({', '.join(names)})", where, f"begin with 'def {self.name}(scores, positives'"
            )


def loss_setting(loss: str | Callable[..., Any]) -> str:
    """Return the setting for a loss: a name or a sum of names as it is, a function of a module as `FILE.py:NAME`.

    Raises:
        ConfigError: the function is not at the top of an imported file. One of a notebook or of the script itself has
            no file that a worker can import and that a digest can pin.
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
            "write it into a file (in a notebook by `%%writefile my_losses.py`), and give 'my_losses.py:NAME'",
        )
    return f"{file}:{name}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a file defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.ImportFrom):  # a loss may be imported from another file, and a module is none
        return [each.asname or each.name for each in statement.names]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
