"""A command of raytriever as a value, and what all commands do in the same way.

A command reads its flags, builds its settings, checks them before anything heavy is imported, locks its output, works,
and prints. `cli/commands.py` is the table of all commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from raytriever.cli.arguments import (
    Argument,
    Parser,
    add_output,
    add_settings,
    build_config,
    lock_output,
)
from raytriever.options import Need, needs_of, without_effect
from raytriever.paths import fetch_paths
from raytriever.terminal import show

# Values of a command line: its arguments by name, and its settings by the names of their groups.
Given: TypeAlias = argparse.Namespace


class SettingsGroup:
    """Settings of a command.

    Args:
        name: Attribute of `Given` that holds them.
        kind: Their dataclass.
        title: Title of their flags in `--help`.
        only: Names of the settings that the command has; all without any. The others keep their defaults.
    """

    def __init__(self, name: str, kind: type, title: str, *only: str) -> None:
        self.name, self.kind, self.title = name, kind, title
        self.only = only or [field.name for field in fields(kind)]


@dataclass(frozen=True)
class Command:
    """Command of raytriever. To add one, add it to `COMMANDS`.

    Args:
        task: Title of the command's group in the overview.
        help: What the command does, in a line.
        run: Does the work and yields the lines to print; it imports what is heavy.
        arguments: Flags and arguments that are no settings.
        settings: Settings that the command line may contain.
        needs: Needs of arguments, and further needs of settings, by name; see `Need`.
        check: Raises `ConfigError` for settings that contradict each other.
        output: Help of `--output`, the directory that the command writes and locks; empty for a command without one.
        default_output: Default of `--output`; None if it is required.
        writes: Returns false if the command only reads its output, which is then not locked.
        free_text: Name of an argument that holds a question; see `Parser`.
        own: `main(words)` and the function that returns the parser, for a command that does all by itself.
    """

    task: str
    help: str
    run: Callable[[Given], Iterable[str]] | None = None
    _: KW_ONLY
    arguments: Sequence[Argument] = ()
    settings: Sequence[SettingsGroup] = ()
    needs: Mapping[str, Sequence[Need]] = field(default_factory=dict)
    check: Callable[[Given], None] | None = None
    output: str = ""
    default_output: str | None = None
    writes: Callable[[Given], bool] = lambda given: True
    free_text: str | None = None
    own: tuple[Callable[[list[str]], None], Callable[[], Parser]] | None = None

    def parser(self, name: str) -> Parser:
        """Return the parser of the command, which has this name."""
        if self.own is not None:
            return self.own[1]()
        parser = Parser(name, f"{self.help[0].upper()}{self.help[1:]}.", free_text=self.free_text)
        if self.output:
            add_output(parser, self.output, **({"default": self.default_output} if self.default_output else {}))
        for argument in self.arguments:
            argument.add(parser)
        for group in self.settings:
            add_settings(parser, group.kind, group.title, group.only)
        return parser

    def main(self, name: str, words: list[str]) -> None:
        """Do what a command line of the command says."""
        if self.own is not None:
            self.own[0](words)
            return
        assert self.run is not None
        arguments = self.parser(name).parse(words)
        configs: dict[str, Any] = {
            group.name: build_config(arguments, group.kind, group.only) for group in self.settings
        }
        given = Given(**{**vars(arguments), **configs})
        if self.check is not None:
            self.check(given)
        self._check_effects(arguments, configs)
        fetch_paths(*configs.values())
        for argument in self.arguments:
            argument.fetch(arguments)
        if self.output:
            given.output = Path(arguments.output)
            if self.writes(given):
                lock_output(arguments)
        for line in self.run(given):
            show(line)

    def _check_effects(self, arguments: argparse.Namespace, configs: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for an explicit flag that has no effect next to the other settings."""
        settings = vars(arguments) | {
            name: value
            for group in self.settings
            for name, value in vars(configs[group.name]).items()
            if name in group.only
        }
        needs = {**needs_of(*(group.kind for group in self.settings)), **self.needs}
        for error in without_effect(settings, sorted(arguments.explicit_flags), needs).values():
            raise error
