"""Refresh the generated text of the pages, and build their site.

`python docs/build.py --write` puts what the code says between `<!-- generated: NAME -->` and `<!-- end -->`:

    commands    the flags of every command, from the argparse parsers
    settings    the settings of a configuration file, from their declarations
    layers      the rooms of the package, from the layers of import-linter and their docstrings
    api         the public names, from their signatures and docstrings
    front       the README above its list of pages

It also writes `docs/llms.txt`, the list of all pages for language models (https://llmstxt.org).

`python docs/build.py` copies the pages to build/docs, and MkDocs builds build/site. It fails for a broken link
and an unknown name in the navigation. A test fails while the text in a page is not what the code says.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
LLMS = ROOT / "docs" / "llms.txt"
GENERATED = re.compile(r"^(<!-- generated: (\w+) -->)$.*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
# A section of a docstring, such as `Args:`, with the indented lines below it.
SECTION = re.compile(r"^(\w+):\n((?:(?:    .*)?\n)+)", re.MULTILINE)
CONTINUED = re.compile(r"^ {4,}", re.MULTILINE)
ENTRY = re.compile(r"^    (\*{0,2}\w+): ", re.MULTILINE)
FENCE = re.compile(r"^( *)```.*?^ *```", re.MULTILINE | re.DOTALL)
PARAGRAPH = re.compile(r"^(?:- )?(?![#|!<>\s-])(.+(?:\n.+)*)", re.MULTILINE)
MARKUP = re.compile(r"\[([^\]]*)\]\([^)]*\)|\*\*(?:Answer|Question)\.\*\* |\*+")
SENTENCE = re.compile(r".+?[.:?](?= |$)")
# Pages that live at the top of the repository, because readers look for them there.
TOP = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
TO_TOP = re.compile(r"\]\(((?:\.\./)*)\.\./(CONTRIBUTING\.md|CHANGELOG\.md)")


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the argparse parser of a command such as `train` or `runs list`."""
    from raytriever.cli.commands import COMMANDS

    name = command.split()[0]
    return COMMANDS[name].parser(name)


def commands() -> Iterator[str]:
    """Yield the reference of every command in Markdown."""
    from raytriever.cli.commands import COMMANDS

    for task in dict.fromkeys(command.task for command in COMMANDS.values()):
        yield f"## {task}\n"
        for name, command in COMMANDS.items():
            if command.task == task:
                yield from _command(name)


def _command(name: str) -> Iterator[str]:
    parser = parser_of(name)
    yield f"### raytriever {name}\n\n{parser.description}\n"
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        rows = [_row(parser, action) for action in actions if "--help" not in action.option_strings]
        if rows:
            yield f"| {group.title} | |\n| --- | --- |\n" + "\n".join(rows) + "\n"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=1000)
    values = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    spelling = f"{', '.join(action.option_strings)} {values}".strip()
    text = formatter._expand_help(action) if action.help else ""
    if isinstance(action, argparse.BooleanOptionalAction) and action.default not in (None, argparse.SUPPRESS):
        default = f" (default: {action.default})"  # Python 3.13 no longer adds it
        text = text.removesuffix(default) + default
    return f"| `{_cell(spelling)}` | {_cell(text)} |"


def settings() -> Iterator[str]:
    """Yield a table for each section of a configuration file."""
    from raytriever.training.run_config import SECTIONS

    for section, kind in SECTIONS.items():
        yield f"### `{section}:`\n\n| setting | default | |\n| --- | --- | --- |"
        for field in dataclasses.fields(kind):
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
    """Yield the signature and the docstring of each public name, and those of the public modules after the others."""
    import raytriever
    import raytriever.sentence_transformers

    names = [name for name in raytriever.__all__ if not isinstance(getattr(raytriever, name), ModuleType)]
    for name in names:
        yield from _public_name(f"rt.{name}", getattr(raytriever, name))
    modules = {"rt.losses.": raytriever.losses, "rt.metrics.": raytriever.metrics, "": raytriever.sentence_transformers}
    for prefix, module in modules.items():
        yield f"## {module.__name__}\n\n{(module.__doc__ or '').partition(chr(10))[0]}\n"
        for name in module.__all__:
            yield from _public_name(prefix + name, getattr(module, name))


def _public_name(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if isinstance(value, ModuleType) or (inspect.isclass(value) and issubclass(value, Exception)):
        yield f"{_markdown(value.__doc__)}\n"
        return
    yield f"```python\n{_signature(name, value)}\n```\n\n{_markdown(value.__doc__)}\n"
    for member, function in vars(value).items() if inspect.isclass(value) else ():
        if member.startswith("_"):
            continue
        if isinstance(function, FunctionType | classmethod):
            signature = _signature(f"{name}.{member}", getattr(value, member))
            yield f"#### {name}.{member}\n\n```python\n{signature}\n```\n\n{_markdown(function.__doc__)}\n"
        elif function.__doc__ and not isinstance(function, str | int | float | tuple | None):
            yield f"`{name}.{member}`: {_markdown(function.__doc__)}\n"


def _signature(name: str, value: Any) -> str:
    """Return a signature as ruff formats it: on one line, or with an argument a line."""
    signature = inspect.signature(value)
    words: list[str] = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind == inspect.Parameter.KEYWORD_ONLY and kind == inspect.Parameter.POSITIONAL_OR_KEYWORD:
            words.append("*")
        kind = parameter.kind
        words.append(_parameter(parameter))
    has_result = signature.return_annotation is not inspect.Signature.empty and not inspect.isclass(value)
    result = f" -> {_annotation(signature.return_annotation)}" if has_result else ""
    line = f"{name}({', '.join(words)}){result}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = parameter.annotation
    text = stars + parameter.name
    if annotation is not inspect.Parameter.empty:
        text += f": {_annotation(annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        text += f"{' = ' if ':' in text else '='}{parameter.default!r}"
    return text


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _markdown(docstring: str | None) -> str:
    """Return a docstring in Google's style as Markdown: its sections become lists, its examples a code block."""

    def section(match: re.Match[str]) -> str:
        title, body = match[1], match[2].rstrip()
        if title == "Examples":
            return f"```python\n{inspect.cleandoc(body).replace('  # doctest: +SKIP', '')}\n```\n\n"
        lines = ENTRY.sub(r"- `\1`: ", body) if title in ("Args", "Attributes", "Raises") else f"- {body.strip()}"
        return f"{title}:\n\n{CONTINUED.sub('  ', lines)}\n\n"

    text = inspect.cleandoc(docstring or "") + "\n"
    return SECTION.sub(section, text).strip()


def layers() -> Iterator[str]:
    """Yield the rooms as a table: the number of the layer, the room, and the first line of its docstring."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = contracts[0]["layers"]
    yield "| layer | room | |\n| --- | --- | --- |"
    for number, row in zip(range(len(rows), 0, -1), rows, strict=True):
        for name in row.split(" | "):
            yield f"| {number} | `{name}` | {_cell(_idea(ROOT / 'platform' / 'raytriever' / name))} |"


def _idea(package: Path) -> str:
    """Return the first line of the docstring of a package."""
    text = (package / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]


def front() -> Iterator[str]:
    """Yield the README between its title and its list of pages, with links as `docs/index.md` needs them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("\n\n")[2].partition("\n## Find your page")[0]
    yield shown.replace("](docs/", "](")


GENERATORS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "settings": settings,
    "layers": layers,
    "api": api,
    "front": front,
}


def expand(text: str) -> str:
    """Return a page with current generated text between its marks; an unknown name is a `KeyError`."""
    return GENERATED.sub(lambda match: "\n".join([match[1], "", *GENERATORS[match[2]](), match[3]]), text)


def pages_of(entry: Any) -> Iterator[str]:
    """Yield the pages of an entry of the navigation of MkDocs, in order."""
    if isinstance(entry, str):
        yield entry
        return
    for part in entry.values() if isinstance(entry, dict) else entry:
        yield from pages_of(part)


def llms() -> str:
    """Return `llms.txt`: the pages by section of the navigation, each with its title and its first sentence."""
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    lines = ["# raytriever", "", f"> {_title_and_sentence('index.md')[1]}"]
    for section in sections:
        for name, entry in section.items():
            found = [page for page in pages_of(entry) if page != "index.md" and page not in TOP.values()]
            lines += ["", f"## {name}", ""] if found else []
            lines += ["- [{1}]({0}): {2}".format(page, *_title_and_sentence(page)) for page in found]
    return "\n".join([*lines, ""])


def _title_and_sentence(page: str) -> tuple[str, str]:
    """Return the heading of a page and the first sentence of its text, without links."""
    text = FENCE.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    paragraph = " ".join(PARAGRAPH.findall(text)[0].split())
    sentence = SENTENCE.match(MARKUP.sub(r"\1", paragraph))
    assert sentence, page
    return text.splitlines()[0].removeprefix("# "), re.sub(":$", ".", sentence[0])


def refresh_pages() -> None:
    """Replace the generated text of the pages of the repository, and `llms.txt`."""
    LLMS.write_text(llms(), encoding="utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if expand(text) != text:
            page.write_text(expand(text), encoding="utf-8")
            print(page.relative_to(ROOT))


def write_pages(target: Path) -> None:
    """Copy the pages and pictures to a folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in target.rglob("*.md"):
        text = TO_TOP.sub(lambda match: f"]({match[1]}{TOP[match[2]]}", page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
    for source, name in TOP.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (target / name).write_text(text.replace("](docs/", "]("), encoding="utf-8")


def main() -> None:
    """Refresh the pages, or build the site strictly and end with MkDocs's exit code."""
    parser = argparse.ArgumentParser(description="Build the site of the documentation in build/site.")
    parser.add_argument("--write", action="store_true", help="refresh the generated text of the pages and end")
    if parser.parse_args().write:
        refresh_pages()
        return
    write_pages(PAGES)
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    status = subprocess.run(command, env=environment, check=False).returncode
    for page in PAGES.rglob("*.md") if status == 0 else ():  # for the links of llms.txt
        shutil.copy(page, SITE / page.relative_to(PAGES))
    sys.exit(status)


if __name__ == "__main__":
    main()
