"""Errors that a user can correct. Each is one line that says where it is, what is wrong and what to do.

Examples are a wrong flag, file, row or model name, and a full disk. Each such error is raised as a subclass of
`UserError` by the code that first detects it. The command line prints it as one line and exits with code 2. Any other
exception is a defect of raytriever and keeps its traceback.

The text of an error names a setting as Python and configuration files write it, `max_steps` (its flag: `--max-steps`).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

# CUDA's messages about a GPU that failed. Other CUDA errors, such as an illegal address, are bugs in a program.
_LOST_GPU = re.compile(
    "CUDA error: (?:unspecified launch failure|uncorrectable (?:ECC|NVLink) error|hardware stack error|unknown error|"
    "the launch timed out|no CUDA-capable device|.*busy or unavailable).*"
)

_translations: list[Callable[[str], str]] = []


def translate_by(function: Callable[[str], str]) -> None:
    """Register a function that rewrites every text before it is shown, such as one that replaces internal paths."""
    _translations.append(function)


def translated(text: str) -> str:
    """Return a text after all registered rewrites."""
    for function in _translations:
        text = function(text)
    return text


def setting(name: str, value: object = None) -> str:
    """Return a setting as errors name it: `max_steps`, `fresh=True`, or, with a value, `dataset a/b`."""
    if value is None:
        return name
    return f"{name}={value}" if isinstance(value, bool) else f"{name} {value}"


def flag_of(name: str, value: bool | None = None) -> str:
    """Return a setting as a flag, for help texts and remedies: `--batch-size` for `batch_size`."""
    return f"--{'no-' if value is False else ''}{name.replace('_', '-')}"


def lost_gpu(error: BaseException) -> str:
    """Return CUDA's message about a GPU that failed, such as `CUDA error: unknown error`; empty for other errors."""
    found = _LOST_GPU.search(str(error)) if isinstance(error, RuntimeError) else None
    return found[0] if found else ""


class UserError(Exception):
    """Error that a user can correct. Its text is one line: where, what, remedy.

    Args:
        what: what is wrong, with a quotation of the value.
        where: the file, row, flag, argument or field that is wrong.
        remedy: what is right, or what to do.

    Examples:
        >>> try:
        ...     rt.load_dataset("no/such/folder")
        ... except rt.UserError as error:
        ...     print(error.what)
        no data set of this name and no such folder
    """

    def __init__(self, what: str, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what, where, remedy)

    @property
    def what(self) -> str:
        """Description of the error, with a quotation of the value."""
        return translated(self.args[0])

    @property
    def where(self) -> str | None:
        """File, row, flag, argument or field that is wrong."""
        return self.args[1] and translated(self.args[1])

    @property
    def remedy(self) -> str | None:
        """Instruction that corrects the error."""
        return self.args[2] and translated(self.args[2])

    def at(self, where: str | None) -> Self:
        """Return the same error with another `where`.

        Args:
            where: The file, row, flag, argument or field.
        """
        what, _, remedy = self.args
        return type(self)(what, where, remedy)

    def within(self, place: str) -> Self:
        """Return the same error with `place` in front of its `where`, as in `stage 'warm': max_steps`.

        Args:
            place: Outer place, such as a stage.
        """
        where = self.args[1]
        return self.at(f"{place}: {where}" if where else place)

    def on_host(self, host: str) -> Self:
        """Return the same error with the host in front of `where`, unless `where` already begins with a host.

        Args:
            host: Name of the host on which the error occurred.
        """
        return self if str(self.args[1]).startswith("host ") else self.within(f"host {host}")

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.remedy}" if self.remedy else line

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.what!r}, {self.where!r}, {self.remedy!r})"


class ConfigError(UserError):
    """A setting is unknown, out of range, without effect, or contradicts another.

    Examples:
        >>> try:
        ...     rt.mine_hard_negatives(data, num_negatives=0)
        ... except rt.ConfigError as error:
        ...     print(error)
        num_negatives: 0 is out of range; give a value of at least 1
    """


class DataError(UserError):
    """A data set is missing or broken, or its contents are not what its name says.

    Examples:
        >>> try:
        ...     rt.evaluate(["bm25"], data, split="tset")
        ... except rt.DataError as error:
        ...     print(error.what)
        no split 'tset'; there are: dev, test, train
    """


class ModelError(UserError):
    """An encoder cannot be found, loaded or trusted.

    Examples:
        >>> try:
        ...     rt.load_model("./no/such/model")
        ... except rt.ModelError as error:
        ...     print(error.what)
        no such directory
    """


class StorageError(UserError):
    """A file or directory is damaged or incomplete, cannot be written, or already exists.

    Examples:
        >>> report = rt.evaluate(["bm25"], data)
        >>> _ = report.save("lexical")
        >>> try:
        ...     report.save("lexical")
        ... except rt.StorageError as error:
        ...     print(error.what)
        already exists
    """


class LossInputError(UserError, ValueError):
    """A loss is undefined for its scores, ids or temperature. The error is a `ValueError` too.

    Examples:
        >>> try:
        ...     rt.losses.mann_whitney(torch.zeros(2, 3), torch.tensor([[0], [1]]), temperature=0.0)
        ... except rt.losses.LossInputError as error:
        ...     print(error.remedy)
        give a finite number above 0
    """


ASIDE = ".aside-"  # part of the names of uncommitted files and directories, see `store.commit`
_FINAL = re.compile(rf"(?<=/)\.([^/]+){ASIDE}[0-9a-f]+")  # the final name of an uncommitted, hidden file
_SPACE, _ACCESS = "free some space or write to another disk", "grant permission (chmod, chown), or give another path"
# Message and remedy of system errors.
_OF_SYSTEM = {
    errno.ENOSPC: ("no space left on the disk", _SPACE),
    errno.EDQUOT: ("the disk quota is used up", _SPACE),
    errno.EACCES: ("permission denied", _ACCESS),
    errno.EPERM: ("not permitted", _ACCESS),
    errno.EROFS: ("the file system is read-only", "give a path you may write to"),
    errno.EEXIST: ("a file is in the way", "give a path whose parents are directories"),
    errno.ENOTDIR: ("a part of the path is a file", "give a path whose parents are directories"),
    errno.ENAMETOOLONG: ("the name is too long", "give a shorter name"),
    errno.ELOOP: ("symbolic links form a loop", "remove one of the links or give another path"),
    errno.EISDIR: ("a folder is in the way", "give the path of a file"),
    errno.EFBIG: ("the file would be larger than allowed", "raise the limit (`ulimit -f`) or write to another disk"),
    errno.EMFILE: ("too many open files", "raise the limit (`ulimit -n`)"),
    errno.ENFILE: ("too many open files on this machine", "raise the limit (`sysctl fs.file-max`)"),
    errno.EIO: ("the disk fails to read or write", "check the disk, and use another one"),
}


@contextmanager
def disk_errors(where: Path | str) -> Iterator[None]:
    """Raise a `StorageError` for a system error such as a full disk or a missing permission. Other errors are kept.

    Checked readers, the writers of `store`, every command and every public call use it. Other code needs it only to
    catch the error, or to name `where` in an error that names no file."""
    try:
        yield
    except Exception as error:
        reason = _OF_SYSTEM.get(_errno(error))
        if reason is None:
            raise
        named = str(getattr(error, "filename", None) or where)
        raise StorageError(reason[0], _FINAL.sub(r"\1", str(where) if ASIDE in named else named), reason[1]) from error


def _errno(error: Exception) -> int:
    """Return the `errno` of a system error, also if a library reports it only as text. Return 0 for any other error."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if isinstance(error, OSError) and re.search(r"\d+ requested and \d+ written", str(error)):
        return errno.ENOSPC  # numpy reports a partial write only as text
    rust = re.search(r"\(os error (\d+)\)", str(error))  # in errors of safetensors and tokenizers
    return int(rust[1]) if rust and not isinstance(error, UserError) else 0
