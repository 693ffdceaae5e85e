"""Build the site of the documentation: `python docs/build.py`.

The pages are copied to build/docs. There each line `<!-- generate: NAME -->` is replaced by what the code itself says:

    commands    the flags of every command, from the argparse parsers
    settings    the settings of a configuration file, from their declarations
    layers      the packages, from the layers of import-linter and the packages' docstrings
    api         the public names of `raytriever.__all__` and of `raytriever.sentence_transformers`, for mkdocstrings

MkDocs then builds build/site, and fails for a broken link, a missing reference and an unknown name in the navigation.
The generated text is never committed, so it cannot be out of date.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"
MARK = re.compile(r"^<!-- generate: (\w+) -->$", re.MULTILINE)
# Pages that live at the top of the repository, because readers look for them there.
TOP = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
TO_TOP = re.compile(r"\]\(((?:\.\./)*)\.\./(CONTRIBUTING\.md|CHANGELOG\.md)")


class _ParserFound(BaseException):
    """Carries the parser of a command out of its `main`."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the argparse parser of a command such as `train` or `study ood`."""
    from raytriever.cli.main import run

    def stop(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise _ParserFound(parser)

    with patch.object(argparse.ArgumentParser, "parse_known_args", stop):
        try:
            run(command.split()[0], command.split()[1:])
        except _ParserFound as found:
            return found.parser
    raise SystemExit(f"docs/build.py: raytriever {command} parses no flags")


def commands() -> Iterator[str]:
    """Yield the reference of every command in Markdown."""
    from raytriever.cli.main import TASKS

    for task, names in TASKS.items():
        yield f"## {task}\n"
        for name in names:
            yield from _command(name)
            if name == "study":
                yield from _command("study ood")


def _command(name: str) -> Iterator[str]:
    parser = parser_of(name)
    yield f"### raytriever {name} {{ #{name.replace(' ', '-')} }}\n"
    yield f"{parser.description}\n\n```\n{parser.format_usage().removeprefix('usage: ').strip()}\n```\n"
    for group in parser._action_groups:
        rows = [_row(parser, action) for action in group._group_actions if action.help != argparse.SUPPRESS]
        if rows:
            yield f"| {group.title} | |\n| --- | --- |\n" + "\n".join(rows) + "\n"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=1000)
    spelling = formatter._format_action_invocation(action)
    text = formatter._expand_help(action) if action.help else ""
    return f"| `{_cell(spelling)}` | {_cell(text)} |"


def settings() -> Iterator[str]:
    """Yield a table for each section of a configuration file."""
    from raytriever.config import Config

    for section in dataclasses.fields(Config):
        yield f"### `{section.name}:` {{ #{section.name} }}\n\n| setting | default | |\n| --- | --- | --- |"
        for field in dataclasses.fields(section.default_factory):  # type: ignore[arg-type]
            yield f"| `{field.name}` | {_default(field)} | {_cell(_meaning(field))} |"
        yield ""


def _default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default in (None, dataclasses.MISSING, "") else f"`{_cell(str(field.default))}`"


def _meaning(field: dataclasses.Field[Any]) -> str:
    rule = field.metadata
    choices = f"; one of: {', '.join(rule['choices'])}" if rule.get("choices") else ""
    bounds = [
        f"{word} {rule[name]:.6g}"
        for name, word in (("minimum", "at least"), ("above", "above"), ("maximum", "at most"))
        if rule.get(name) is not None
    ]
    return f"{rule.get('help', '')}{choices}{'; ' if bounds else ''}{', '.join(bounds)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def api() -> Iterator[str]:
    """Yield a mkdocstrings directive for each public name, those of the public modules after their own text."""
    import raytriever
    import raytriever.sentence_transformers

    for name in (*raytriever.__all__, "sentence_transformers"):
        value = getattr(raytriever, name)
        if not isinstance(value, ModuleType):
            yield f"::: raytriever.{name}\n"
            continue
        yield f"## raytriever.{name}\n\n{value.__doc__.partition(chr(10))[0]}\n"
        for member in value.__all__:
            yield f"::: raytriever.{name}.{member}\n"


def layers() -> Iterator[str]:
    """Yield the packages as a table: the number of the layer, the package or module, and its first line."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = contracts[0]["layers"]
    yield "| layer | package | |\n| --- | --- | --- |"
    for number, row in zip(range(len(rows), 0, -1), rows, strict=True):
        for name in row.split(" | "):
            package = ROOT / "platform" / "raytriever" / name
            yield f"| {number} | `{name}` | {_cell(_idea(package))} |"
            for file in sorted(package.glob("*/**/__init__.py")):
                yield f"| | `{file.parent.relative_to(package.parent)}` | {_cell(_idea(file.parent))} |"


def _idea(module: Path) -> str:
    """Return the first line of the docstring of a package or a module."""
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n")[0]


GENERATORS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "settings": settings,
    "layers": layers,
    "api": api,
}


def expand(text: str) -> str:
    """Replace the marks of a page by generated text; an unknown mark is a KeyError."""
    return MARK.sub(lambda match: "\n".join(GENERATORS[match[1]]()), text)


def write_pages(target: Path) -> None:
    """Copy the pages and pictures to a folder, with the generated text in them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in target.rglob("*.md"):
        text = TO_TOP.sub(lambda match: f"]({match[1]}{TOP[match[2]]}", page.read_text(encoding="utf-8"))
        page.write_text(expand(text), encoding="utf-8")
    for source, name in TOP.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (target / name).write_text(text.replace("](docs/", "]("), encoding="utf-8")


def main() -> None:
    """Write the pages and build the site strictly; end with MkDocs's exit code."""
    write_pages(PAGES)
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
