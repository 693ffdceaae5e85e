"""Flags out of the settings' own declarations, on argparse.

A flag that is not given leaves no trace in the parsed arguments, so that layers can be laid over each other in
order: the settings' defaults, a recipe, a configuration file, the flags. argparse rather than a generator of
command lines, because every mistake is to end in one line.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from raytriever.cli.suggestions import instead_of_flag
from raytriever.errors import ConfigError
from raytriever.locking import acquire
from raytriever.masking import refuse_secrets
from raytriever.options import flag_of, needs_of, read_option, without_effect
from raytriever.paths import PathKind
from raytriever.storage import lock_errors
from raytriever.terminal import show, warn

WIDTH = 100  # of the help of common flags: one line each
_CHOICES = "; one of: "


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `ConfigError` where argparse prints its usage and exits.

    Args:
        prog: the stage, as it follows `raytriever`.
        description: what it does, in one sentence.
        common: the flags that `--help` shows; `--help-all` shows all of them. Empty: `--help` shows all.
        free_text: the name of an argument that is a question; it may look like a secret, and is stored nowhere.
    """

    def __init__(self, prog: str, description: str, common: Sequence[str] = (), free_text: str | None = None) -> None:
        self._common, self._free_text = common, free_text
        super().__init__(
            prog=f"raytriever {prog}", description=description, allow_abbrev=False, formatter_class=_Formatter
        )
        if common:
            self.add_argument("--help-all", action=_HelpAll, help="show all flags and exit")

    def error(self, message: str) -> NoReturn:
        """Tell a mistake in one line."""
        raise ConfigError(message, remedy=f"see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        """Print the help on standard output; a disk that is full is an error here too."""
        show(self.format_help().rstrip("\n"))

    def format_usage(self) -> str:
        """Return one line: the program, what it needs, and that there are flags."""
        needed = [_invocation(action) for action in self._actions if action.required and action.option_strings]
        words = [
            _invocation(action) for action in self._actions if not action.option_strings and action.metavar != "..."
        ]
        return f"usage: {' '.join([self.prog, *words, *needed, '[flags]'])}\n"

    def format_help(self) -> str:
        """Return the help: of the common flags where some are named, else of all."""
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
            flags = sum(bool(action.option_strings) for action in self._actions)
            formatter.add_text(f"--help-all shows all {flags} flags")
        else:
            for group in self._action_groups:
                formatter.start_section(group.title)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        return f"{self.format_usage()}\n{formatter.format_help()}"

    def parse(self, words: Iterable[str]) -> argparse.Namespace:
        """Parse a command line; an unknown flag is answered with the nearest known one."""
        words = list(words)
        known = {flag for action in self._actions for flag in action.option_strings}
        for place, word in enumerate(words):
            if word == "--":
                break
            flag = word.split("=")[0]
            # Looked for first: to argparse a misspelt flag is a missing one.
            if flag.startswith("--") and flag not in known:
                raise ConfigError("unknown flag", flag, instead_of_flag(flag, known))
            _check_utf8(word, _flag_before(words, place, known))
        found, unknown = self.parse_known_args(words)
        for word in unknown:
            raise ConfigError(f"unexpected word {word!r}", remedy=f"see {self.prog} --help")
        free = getattr(found, self._free_text) if self._free_text else None
        for place, word in enumerate(words):
            if free is None or free not in (word, word.partition("=")[2]):
                refuse_secrets(word, _flag_before(words, place, known))
        actions = {flag: action.dest for action in self._actions for flag in action.option_strings}
        end = words.index("--") if "--" in words else len(words)
        found.flags_given = {actions[flag] for word in words[:end] if (flag := word.partition("=")[0]) in actions}
        return found


def check_given(arguments: argparse.Namespace, *configs: Any, needs: Mapping[str, Sequence[str]] | None = None) -> None:
    """Refuse a flag that was given and has no effect next to the other settings; raises `ConfigError`.

    Only flags count: a recipe or a file lists settings for other losses and stages too, as a run's own `config.yaml`
    does.

    Args:
        arguments: as parsed.
        configs: dataclass instances with the value of every setting.
        needs: what flags need besides what their declarations say; see `options.NEEDS`.
    """
    settings = vars(arguments) | {name: value for config in configs for name, value in vars(config).items()}
    declared = needs_of(*map(type, configs)) | dict(needs or {})
    for error in without_effect(settings, sorted(arguments.flags_given), declared).values():
        raise error


def _flag_before(words: Sequence[str], place: int, known: Collection[str]) -> str | None:
    """Return the flag that a word of the command line is the value of, where there is one."""
    return words[place - 1] if place and words[place - 1] in known else None


def _check_utf8(word: str, flag: str | None) -> None:
    """The bytes of a word of the command line that are not UTF-8 reach Python as halves of surrogate pairs."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        byte = ord(word[error.start]) & 0xFF
        raise ConfigError(
            f"byte 0x{byte:02x} of {word!a} is not UTF-8", flag, "set the terminal to UTF-8, or rename the file"
        ) from error


class _HelpAll(argparse.Action):
    """The flag that prints the help of all flags."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        assert isinstance(parser, Parser)
        show(parser.format_all().rstrip("\n"))
        parser.exit()


def _invocation(action: argparse.Action) -> str:
    """An argument as a usage line has it."""
    value = str(action.metavar or action.dest)
    return f"{action.option_strings[0]} {value}" if action.option_strings else value + " ..." * (action.nargs == "+")


def _brief(action: argparse.Action) -> argparse.Action:
    """The same flag without the list of its values, for help of one line a flag."""
    brief = copy(action)
    brief.help = (action.help or "").partition(_CHOICES)[0]
    return brief


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str, width: int = 0) -> None:
        super().__init__(prog, max_help_position=34, width=width or min(120, _terminal_width()))


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size().columns - 2


def add_settings(parser: argparse.ArgumentParser, kind: type, title: str, only: Iterable[str] | None = None) -> None:
    """Add a flag for every field of a settings dataclass (or for the named ones) that was declared by `option`."""
    group = parser.add_argument_group(title)
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if only is not None and field.name not in only:
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
        if isinstance(field.metadata.get("reads"), PathKind):
            read = partial(field.metadata["reads"].read_flag, flag=flag_of(field.name))
            group.add_argument(flag_of(field.name), type=read, metavar=field.metadata["form"], **common)
            continue
        if field.metadata.get("reads") is not None:
            read = partial(read_option, field, where=flag_of(field.name))
            group.add_argument(flag_of(field.name), type=read, metavar=field.metadata["form"], **common)
            continue
        choices = field.metadata["choices"]
        metavar = (
            "NAME" if choices and len(choices) > 4 else "|".join(choices) if choices else types[0].__name__.upper()
        )
        if choices and len(choices) > 4:
            common["help"] += f"{_CHOICES}{', '.join(choices)}"
        group.add_argument(flag_of(field.name), type=_typed(types[0], flag_of(field.name)), metavar=metavar, **common)


def path_of(kind: PathKind, flag: str) -> Callable[[str], str]:
    """Return the `type` of an argument that takes a path: it is expanded, never empty, and exists where it is read."""

    def read(text: str) -> str:
        path = kind.read_flag(text, flag)
        kind.check(path, flag)
        return path

    return read


def command_line(*words: object) -> str:
    """Return words as a command that a shell takes as they are: white space, `;` and `$` in them are quoted."""
    return shlex.join(map(str, words))


def given(arguments: argparse.Namespace, kind: type) -> dict[str, Any]:
    """The fields of a settings dataclass that were given as flags."""
    return {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(kind)
        if hasattr(arguments, field.name)
    }


def add_wait(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add `--wait`, for a stage that calls `lock_output`."""
    parser.add_argument("--wait", action="store_true", help="wait for another command that is writing to --output")


def lock_output(arguments: argparse.Namespace, output: Path, flag: str = "--output") -> None:
    """Be the only command that writes a directory until this one ends; called before anything heavy is imported.

    Args:
        arguments: of a parser with `add_wait`.
        output: the directory, which need not exist.
        flag: names it.

    Raises:
        InUseError: another command is writing it, and `--wait` is not given.
    """
    with lock_errors(output):
        acquire(output, wait=arguments.wait, report=warn, remedy=f"wait for it with --wait, or give another {flag}")


def _typed(kind: type, flag: str) -> Any:
    words = {int: "a whole number", float: "a number", str: "text"}

    def convert(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            raise ConfigError(f"{text!r}", flag, f"give {words[kind]}") from error

    return convert
