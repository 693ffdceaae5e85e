"""Declaration of a command, and the steps that all commands share.

A command reads its flags, builds its settings, checks them before anything heavy is imported, locks its output, works,
and prints. `cli/commands.py` is the table of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from raytriever.cli.arguments import Argument, Parser, add_output, add_settings, lock_output
from raytriever.core.paths import fetch_paths
from raytriever.core.setting_declarations import Need, check_options, needs_of, without_effect
from raytriever.core.terminal import show

# Values of a command line: arguments by name, and checked settings by the name of their group.
Given: TypeAlias = argparse.Namespace


class SettingsGroup:
    """Group of settings of a command.

    Args:
        name: Attribute of `Given` that holds the settings.
        title: Title of their flags in `--help`.
        only: Names of the settings that the command has; by default all that have a flag. The others keep their
            defaults.
    """

    def __init__(self, name: str, kind: type, title: str, *only: str) -> None:
        self.name, self.kind, self.title = name, kind, title
        self.only = only or tuple(field.name for field in fields(kind) if field.metadata["flag"])

    def read(self, arguments: argparse.Namespace) -> Any:
        """Return the settings: defaults, overridden by flags. Raises `ConfigError` if a value is not allowed."""
        config = self.kind(**{name: getattr(arguments, name) for name in self.only if hasattr(arguments, name)})
        check_options(config)
        return config


@dataclass(frozen=True)
class Command:
    """Command of raytriever: its function, its flags and its settings."""

    # Function that does the work and yields the lines to print. Heavy imports belong inside it.
    run: Callable[[Given], Iterable[str]]
    _: KW_ONLY
    arguments: Sequence[Argument] = ()  # Flags and positional arguments other than settings
    settings: Sequence[SettingsGroup] = ()  # Settings that the command line may contain
    # Function that reads a command line and returns checked settings, by attribute of `Given`. By default the flags of
    # each group override the defaults of its settings.
    read: Callable[[argparse.Namespace], Mapping[str, Any]] | None = None
    # Conditions under which arguments or settings have an effect, by name of the argument or setting; see `Need`.
    needs: Mapping[str, Sequence[Need]] = field(default_factory=dict)
    # Function that raises `ConfigError` for settings that contradict each other.
    check: Callable[[Given], None] | None = None
    # Help of `--output`, the directory that the command writes and locks; empty for a command without output.
    output: str = ""
    # Function that returns the default of `--output`; None if the flag is required.
    default_output: Callable[[Given], Path] | None = None
    # Function that returns False if the command only reads its output. Then the output is not locked.
    writes: Callable[[Given], bool] = lambda given: True
    free_text: str | None = None  # Name of an argument that holds a question; see `Parser`
    common: Sequence[str] = ()  # Flags that `--help` shows; see `Parser`

    def parser(self, name: str, purpose: str) -> Parser:
        """Return the parser of the command. `--help` shows the name and the purpose of the command."""
        parser = Parser(name, f"{purpose[0].upper()}{purpose[1:]}.", self.common, self.free_text)
        if self.output:
            add_output(parser, self.output, required=self.default_output is None)
        for argument in self.arguments:
            argument.add(parser)
        for group in self.settings:
            add_settings(parser, group.kind, group.title, group.only)
        return parser

    def main(self, name: str, purpose: str, words: list[str]) -> None:
        """Parse the words of a command line and run the command."""
        arguments = self.parser(name, purpose).parse(words)
        groups = {group.name: group.read(arguments) for group in self.settings} if self.read is None else {}
        given = Given(**{**vars(arguments), **(self.read(arguments) if self.read else groups)})
        if self.check is not None:
            self.check(given)
        if self.read is None:
            self._check_effects(arguments, groups)
            fetch_paths(*groups.values())
        for argument in self.arguments:
            argument.fetch(arguments)
        if self.output:
            default = self.default_output
            given.output = Path(arguments.output) if arguments.output or default is None else default(given)
            if self.writes(given):
                lock_output(given.output, arguments.wait)
        for line in self.run(given):
            show(line)

    def _check_effects(self, arguments: argparse.Namespace, configs: Mapping[str, Any]) -> None:
        settings = vars(arguments) | {
            name: getattr(configs[group.name], name) for group in self.settings for name in group.only
        }
        needs = {**needs_of(*(group.kind for group in self.settings)), **self.needs}
        for error in without_effect(settings, sorted(arguments.explicit_flags), needs).values():
            raise error
