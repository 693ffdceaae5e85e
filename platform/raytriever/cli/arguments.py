"""Command-line flags, generated with argparse from the declarations of the settings.

A flag that the command line omits is absent from the parsed arguments. So each layer overrides the one before: the
defaults of the settings, a recipe, a configuration file, the flags. We use argparse rather than a library that
generates command lines, because every user error must end in one line."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from raytriever.cli.suggestions import removed, suggest_for_flag
from raytriever.core.errors import ConfigError, flag_of, setting
from raytriever.core.masking import refuse_secrets
from raytriever.core.paths import PATH, PathKind
from raytriever.core.setting_declarations import read_option
from raytriever.core.store.lock import acquire
from raytriever.core.terminal import show, warn
from raytriever.tracking.mlflow_tracker import EXPERIMENT_NAME
from raytriever.tracking.tracker_names import DEFAULT_TRACKERS, NONE, TITLES, read_trackers

WIDTH = 100  # characters of a line in the help of common flags
_CHOICES = "; one of: "


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `ConfigError` where argparse prints its usage and exits.

    Args:
        prog: the command, without `raytriever`.
        common: the flags that `--help` shows; `--help-all` shows all flags. If empty, `--help` shows all flags.
        free_text: the name of an argument that holds a question. It may contain secrets, because nothing stores it.
    """

    def __init__(self, prog: str, description: str, common: Sequence[str] = (), free_text: str | None = None) -> None:
        self._common, self._free_text = common, free_text
        self.of_files: dict[str, str] = {}  # for each setting without a flag, its form in a configuration file
        super().__init__(
            prog=f"raytriever {prog}", description=description, allow_abbrev=False, formatter_class=_Formatter
        )
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if common:
            self.add_argument("--help-all", action=_HelpAll, help="show all flags and exit")

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigError` with the message of argparse, worded like our other messages."""
        message = message.removesuffix(", ...").replace("the following arguments are required", "missing")
        message = re.sub(r"^argument (\S+): expected .*argument$", r"\1: has no value", message)
        raise ConfigError(message, remedy=f"see `{self.prog} --help`")

    def print_help(self, file: Any = None) -> None:
        """Print the help on standard output; raises `StorageError` if the disk is full."""
        show(self.format_help().rstrip("\n"))

    def format_usage(self) -> str:
        """Return one line: the program, its required arguments and `[flags]`."""
        needed = [_invocation(action) for action in self._actions if action.required and action.option_strings]
        words = [
            _invocation(action) for action in self._actions if not action.option_strings and action.metavar != "..."
        ]
        return f"usage: {' '.join([self.prog, *words, *needed, '[flags]'])}\n"

    def format_help(self) -> str:
        """Return the help of the common flags, or of all flags if no common flags are declared."""
        return self._format(self._common) if self._common else self.format_all()

    def format_all(self) -> str:
        """Return the help of all flags."""
        return self._format(())

    def _format(self, common: Sequence[str]) -> str:
        formatter = _Formatter(self.prog, WIDTH) if common else _Formatter(self.prog)
        formatter.add_text(self.description)
        if common:
            formatter.start_section("common flags")
            formatter.add_arguments([_brief(self._option_string_actions[flag]) for flag in common])
            formatter.end_section()
            flags = sum(bool(action.option_strings) and action.help != argparse.SUPPRESS for action in self._actions)
            formatter.add_text(f"--help-all shows all {flags} flags")
        else:
            for group in self._action_groups:
                formatter.start_section(group.title)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        return f"{self.format_usage()}\n{formatter.format_help()}"

    def parse(self, words: Iterable[str]) -> argparse.Namespace:
        """Parse a command line.

        Returns:
            The values, and in `explicit_flags` the names of the settings that the command line contains.

        Raises:
            ConfigError: a flag is unknown (the message suggests the nearest known flag), a value is wrong or missing,
                is not UTF-8, or looks like a secret.
        """
        words = list(words)
        flags = {flag: action.dest for action in self._actions for flag in action.option_strings}
        for index, word in enumerate(words):
            if word == "--":
                break
            flag = word.split("=")[0]
            # Check for unknown flags first: argparse would report a misspelt required flag as missing.
            if flag not in flags and (instead := removed(flag)):
                raise ConfigError("was removed", flag, instead)
            if flag in self.of_files and "--config" in flags:
                remedy = f"write {self.of_files[flag]} into a file, and give --config FILE"
                raise ConfigError("is a setting without a flag", flag, remedy)
            if flag.startswith("--") and flag not in flags:
                raise ConfigError("unknown flag", flag, suggest_for_flag(flag, flags))
            _check_utf8(word, _setting_before(words, index, flags))
        arguments, unknown = self.parse_known_args(words)
        if unknown:  # arguments on both sides of a flag, as in `runs clean --finished FOLDER`
            arguments, unknown = self.parse_known_intermixed_args(words)
        for word in unknown:
            raise ConfigError(f"unexpected argument {word!r}", remedy=f"see `{self.prog} --help`")
        free = getattr(arguments, self._free_text) if self._free_text else None
        for index, word in enumerate(words):
            if free is None or free not in (word, word.partition("=")[2]):
                refuse_secrets(word, _setting_before(words, index, flags))
        end = words.index("--") if "--" in words else len(words)
        arguments.explicit_flags = {flags[flag] for word in words[:end] if (flag := word.partition("=")[0]) in flags}
        return arguments


def _setting_before(words: Sequence[str], index: int, flags: Collection[str]) -> str | None:
    return words[index - 1].lstrip("-").replace("-", "_") if index and words[index - 1] in flags else None


def _check_utf8(word: str, name: str | None) -> None:
    """Raise `ConfigError` if a word is not UTF-8. Python decodes such bytes as halves of surrogate pairs."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        byte = ord(word[error.start]) & 0xFF
        what = f"byte 0x{byte:02x} of {word!a} is not UTF-8"
        raise ConfigError(what, name and setting(name), "set the terminal to UTF-8, or rename the file") from error


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> None:
        assert isinstance(parser, Parser)
        show(parser.format_all().rstrip("\n"))
        parser.exit()


def _invocation(action: argparse.Action) -> str:
    value = str(action.metavar or action.dest)
    return f"{action.option_strings[0]} {value}" if action.option_strings else value + " ..." * (action.nargs == "+")


def _brief(action: argparse.Action) -> argparse.Action:
    """Return the flag without the list of its values, so that the flag's help fits on one line."""
    brief = copy(action)
    brief.help = (action.help or "").partition(_CHOICES)[0]
    return brief


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str, width: int = 0) -> None:
        super().__init__(prog, max_help_position=34, width=width or min(120, shutil.get_terminal_size().columns - 2))


def add_settings(parser: Parser, kind: type, title: str, names: Collection[str]) -> None:
    """Add flags for some fields of a settings dataclass under a title."""
    group = parser.add_argument_group(title)
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name not in names:
            if not field.metadata["flag"]:
                parser.of_files[flag_of(field.name)] = f"`{title}: {{{field.name}: VALUE}}`"
            continue
        help = field.metadata["help"]
        if field.default not in (None, ""):
            help += f" (default: {field.default})"
        help = help.replace("%", "%%")
        types = [t for t in getattr(hints[field.name], "__args__", (hints[field.name],)) if t is not type(None)]
        common: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": field.name, "help": help}
        if types[0] is bool:
            group.add_argument(flag_of(field.name), action=argparse.BooleanOptionalAction, **common)
            continue
        reads = field.metadata.get("reads")
        if reads is not None:
            read: Callable[[str], Any] = partial(read_option, field, where=field.name)
            if isinstance(reads, PathKind):
                read = partial(reads.read_flag, name=field.name)
            group.add_argument(flag_of(field.name), type=read, metavar=field.metadata["metavar"], **common)
            continue
        choices = field.metadata["choices"]
        metavar = "|".join(choices) if choices else types[0].__name__.upper()
        if choices and len(choices) > 4:
            metavar = "NAME"
            common["help"] += f"{_CHOICES}{', '.join(choices)}"
        common |= {"type": number_type(types[0], field.name), "metavar": metavar}
        group.add_argument(flag_of(field.name), **common)


class Argument:
    """Flag or positional argument of a command that is not a setting.

    Args:
        name: Flag, such as `--split`, or name of an argument without dashes.
        reads: Kind of path, or function that converts the text. A path must exist if its kind says so.
        settings: Other arguments of argparse's `add_argument`.
    """

    def __init__(
        self, name: str, help: str, reads: PathKind | Callable[[str], Any] | None = None, **settings: Any
    ) -> None:
        self._name, self._help, self._reads, self._settings = name, help, reads, settings
        self._setting = name.removeprefix("--").replace("-", "_") if name.startswith("-") else ""

    def add(self, parser: Parser) -> None:
        """Add this argument to a parser."""
        defaults: dict[str, Any] = {"default": []} if "nargs" in self._settings else {}
        if "action" not in self._settings:
            kind, metavar = self._reads, "NAME" if self._setting else None
            if isinstance(kind, PathKind):
                kind, metavar = partial(kind.read_flag, name=self._setting), "PATH"
            defaults |= {"metavar": metavar, "type": kind}
        parser.add_argument(self._name, help=self._help, **(defaults | self._settings))

    def fetch(self, arguments: argparse.Namespace) -> None:
        """Check that a path exists if its kind requires it; see `fetch_paths` for the errors."""
        if isinstance(self._reads, PathKind):
            values = getattr(arguments, self._settings.get("dest") or self._setting or self._name)
            for value in values if isinstance(values, list) else [values] if values else []:
                self._reads.check(value, self._setting, fetch=True)


def number(flag: str, kind: type, lowest: float, highest: float, remedy: str) -> Callable[[str], Any]:
    """Return a function that reads a number. It raises `ConfigError` with the remedy if the number is out of range."""
    convert = number_type(kind, flag)

    def read(text: str) -> Any:
        number = convert(text)
        if not lowest <= number <= highest:
            raise ConfigError(f"{text} is out of range", flag, remedy)
        return number

    return read


def quote_command(*words: object) -> str:
    """Return words as one shell command; words with white space, `;` or `$` are quoted."""
    return shlex.join(map(str, words))


def program_path(name: str) -> str:
    """Return the command of a program in this environment: its name if the shell finds the name, else its path."""
    own = Path(sys.executable).with_name(name)
    in_shell = shutil.which(name)
    if in_shell is not None and Path(in_shell).absolute() == own.absolute():
        return name
    return os.path.relpath(own) if own.absolute().is_relative_to(Path.cwd()) else str(own)


def show_views(folder: Path, trackers: Sequence[str]) -> Iterator[str]:
    """Yield the address or command that shows a run, for each tracker."""
    from raytriever.tracking.run_state import view_of

    for view in filter(None, (view_of(folder, tracker) for tracker in trackers)):
        program, _, words = view.partition(" ")
        yield f"  {program_path(program)} {words}" if words else f"  {view} (open it in a browser)"


def _choose_experiment(name: str) -> str:
    """Set MLflow's environment variable, so that workers and trackers of this command all log to the experiment."""
    if not name.strip():
        raise ConfigError("the name is empty", "--experiment", "give a name")
    os.environ[EXPERIMENT_NAME] = name
    return name


TRACKERS = (
    Argument(
        "--tracker",
        f"one or more trackers that log the run: {', '.join(TITLES)}; or {NONE} (default: mlflow)",
        read_trackers,
        dest="trackers",
        default=DEFAULT_TRACKERS,
        metavar="NAME,...",
    ),
    Argument(
        "--experiment",
        "MLflow experiment to which the run belongs (default: MLFLOW_EXPERIMENT_NAME, or raytriever)",
        _choose_experiment,
        default=argparse.SUPPRESS,
        metavar="NAME",
    ),
)


def add_output(parser: Parser, help: str, required: bool) -> None:
    """Add `--output` and `--wait`, for a command that locks its output."""
    Argument("--output", help, PATH, metavar="DIR", required=required).add(parser)
    parser.add_argument(
        "--wait", action="store_true", help="wait until another command that writes to --output has ended"
    )


def lock_output(output: Path, wait: bool) -> None:
    """Lock a directory, which need not exist, until this command ends. Called before heavy imports."""
    acquire(output, wait=wait, log=warn, remedy="wait for it with --wait, or give another --output")


def number_type(kind: type, where: str) -> Callable[[str], Any]:
    """Return a reader of numbers or texts for argparse. It raises `ConfigError` if the value cannot be converted."""
    words = {int: "a whole number", float: "a number", str: "text"}

    def convert(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            raise ConfigError(f"{text!r} is invalid", where, f"give {words[kind]}") from error

    return convert
