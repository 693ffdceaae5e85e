"""Entry point of `raytriever COMMAND` and of `python jobs/COMMAND.py`.

A user error, or a GPU that fails, ends in one line and exit code 2. An interruption (Ctrl-C, the SIGTERM of `ray job
stop`, or the SIGHUP of a closed terminal) ends in one line and exit code 130. Any other exception keeps its traceback,
because it is a defect of raytriever. `--debug` shows all tracebacks."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from raytriever import __version__
from raytriever.cli.commands import COMMANDS
from raytriever.cli.suggestions import removed, suggest_for_command
from raytriever.cluster.working_directory import enter_lasting_folder
from raytriever.core.errors import ConfigError, StorageError, UserError, disk_errors, lost_gpu
from raytriever.core.interruption import interruptible
from raytriever.core.machine import safe_imports
from raytriever.core.progress import activity
from raytriever.core.store.lock import released_at_end
from raytriever.core.terminal import STREAM, one_line, open_missing_streams, show, warn

LONGEST_ERROR = 1500  # maximum number of characters of an error line


def run(name: str | None = None, words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. By default the command and its flags are read from `sys.argv`, as for
    the console script `raytriever`."""
    arguments = list(sys.argv[1:] if words is None else words)
    # Skip Python's last garbage collections: with the objects of torch and Ray they take a second or two.
    atexit.register(gc.freeze)
    open_missing_streams()
    try:
        with interruptible(), disk_errors("raytriever"):
            _check_working_directory()
            if name is None and arguments and arguments[0] in COMMANDS:
                name = arguments.pop(0)
            if name is None:
                _show_overview(arguments)
                return 0
            flags = [word for word in enter_lasting_folder(arguments, warn) if word != "--debug"]
            with safe_imports(), activity(_Work(name).line), released_at_end(), disk_errors(f"raytriever {name}"):
                COMMANDS[name].main(name, flags)
    except (UserError, RuntimeError, FileNotFoundError, KeyboardInterrupt, BrokenPipeError) as error:
        return _exit_code(error, "--debug" in arguments)
    return 0


class _Work:
    """Progress line while a command prints nothing. It says whether the command is loading packages or working."""

    def __init__(self, name: str) -> None:
        self._name, self._loaded = name, 0

    def line(self, seconds: float) -> str:
        """Return the line that `activity` prints."""
        before, self._loaded = self._loaded, len(sys.modules)
        doing = f"loading {next(reversed(sys.modules)).partition('.')[0]}" if self._loaded > before else "working"
        return f"raytriever {self._name} is {doing}: {seconds:.0f} s"


def _show_overview(words: list[str]) -> None:
    if words[:1] == ["--version"]:
        show(__version__)
        return
    if words and (instead := removed(words[0])):
        raise ConfigError(f"{words[0]!r} was removed", remedy=instead)
    if words and words[0] not in ("-h", "--help"):
        raise ConfigError(f"unknown command {words[0]!r}", remedy=suggest_for_command(words[0], COMMANDS))
    lines = [f"raytriever {__version__}", "", "usage: raytriever COMMAND [flags]"]
    for task in dict.fromkeys(command.task for command in COMMANDS.values()):
        named = {name: command.help for name, command in COMMANDS.items() if command.task == task}
        lines += ["", f"{task}:", *(f"  {name:<12}{help}" for name, help in named.items())]
    show("\n".join([*lines, "", "`raytriever COMMAND --help` shows the flags of a command"]))


def _exit_code(error: BaseException, debug: bool) -> int:
    """Print an error as one line and return its exit code. Raise it again if it is a defect of raytriever.

    System errors (a full disk, too many open files) were converted to user errors earlier. If such an error has no
    path, its line begins with the name of the command."""
    if isinstance(error, KeyboardInterrupt):
        warn("interrupted; run the same command again to continue")
        return 130
    if isinstance(error, BrokenPipeError) and error.filename == STREAM:  # other broken pipes belong to subprocesses
        return 141  # standard output is closed, so nothing more can be printed
    if isinstance(error, UserError):
        line = str(error)
        if debug:
            _report(traceback.format_exc().rstrip("\n"))
    elif isinstance(error, FileNotFoundError) and error.filename is not None:
        line = f"{error.filename}: no such file or folder; give a path that exists, and keep it until the command ends"
    elif isinstance(error, RuntimeError) and not debug and (reason := lost_gpu(error)):
        remedy = "check nvidia-smi and the log of the kernel, then run the same command again: it continues"
        line = f"the GPU failed ({reason}); {remedy}"
    else:
        raise error
    _report(_error_line(line))
    return 2


def _report(text: str) -> None:
    """Print a line on standard error. If standard error is closed, only the exit code reports the error."""
    with suppress(BrokenPipeError):
        warn(text)


def _error_line(text: str) -> str:
    """Return an error as one line. Very long errors quote a path or a row, so their middle is cut out."""
    line = one_line(text)
    half = LONGEST_ERROR // 2
    return f"error: {line}" if len(line) <= LONGEST_ERROR else f"error: {line[:half]} ... {line[-half:]}"


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise StorageError("the working directory was removed", remedy="change to a folder that exists") from error
