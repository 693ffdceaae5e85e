"""The documents: generated pages are current, links and paths exist, commands are known, and the code in them runs."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from processes import run_python

import raytriever

REPOSITORY = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = sorted([*TOP, *(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md"))])
TUTORIALS = [page for page in PAGES if page.startswith("docs/tutorials/")]
API = raytriever.__all__

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+?)(?: \{ #([\w-]+) \})?$", re.MULTILINE)
# A path of the repository in code style; letters in capitals are placeholders.
PATH = re.compile(
    r"`(?:python )?((?:benchmarks|cluster|dashboards|docs|jobs|platform|tests)/[a-z0-9_./-]+|[a-z_/]+/[a-z_]+\.py)`"
)
ROOTS = (REPOSITORY, REPOSITORY / "platform", REPOSITORY / "platform" / "raytriever")


def _script(path: str) -> ModuleType:
    """Import a script of the repository by its path."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, REPOSITORY / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _build() -> ModuleType:
    return _script("docs/build.py")


@functools.cache
def _text(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


@functools.cache
def _anchors(page: str) -> frozenset[str]:
    text = FENCE.sub("", _text(page))
    return frozenset(named or _slug(title) for title, named in HEADING.findall(text))


def _slug(title: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def test_the_page_of_benchmarks_is_what_the_script_writes() -> None:
    page = _script("benchmarks/page.py")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python benchmarks/page.py"


def test_generated_text_is_what_the_code_says() -> None:
    for page in PAGES:
        if "<!-- generated: " in _text(page):
            assert _text(page) == _build().expand(_text(page)), f"{page}: run python docs/build.py --write"


def test_the_list_of_pages_for_language_models_is_current() -> None:
    text = _text("docs/llms.txt")
    assert text == _build().llms(), "docs/llms.txt: run python docs/build.py --write"
    assert text.startswith("# raytriever\n\n> ")
    listed = re.findall(r"^- \[.+\]\((.+\.md)\): \S.+[^:]$", text, re.MULTILINE)
    assert sorted(f"docs/{page}" for page in listed) == [page for page in PAGES if page not in (*TOP, "docs/index.md")]


def test_links_lead_to_files_and_headings() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(FENCE.sub("", _text(page)))]
    for page, target in links:
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (REPOSITORY / page).parent / path if path else REPOSITORY / page
        assert file.is_file(), f"{page}: {target}"
        if anchor:
            assert anchor in _anchors(str(file.resolve().relative_to(REPOSITORY))), f"{page}: {target}"


def test_paths_of_the_repository_exist() -> None:
    for page in PAGES:
        for path in PATH.findall(FENCE.sub("", _text(page))):
            assert any((root / path).exists() for root in ROOTS), f"{page}: {path}"


def test_the_navigation_names_every_page_once() -> None:
    named = list(_build().pages_of(yaml.safe_load(_text("mkdocs.yml"))["nav"]))
    there = [page.removeprefix("docs/") for page in PAGES if page not in TOP]
    assert sorted(named) == sorted([*there, *_build().TOP.values()])


@functools.cache
def _flags(command: str) -> frozenset[str]:
    parser: argparse.ArgumentParser = _build().parser_of(command)
    return frozenset(parser._option_string_actions)


def _commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each `raytriever COMMAND --flag ...` of the page's blocks and code spans, with its flags."""
    from raytriever.cli.commands import COMMANDS

    text = _text(page)
    lines = [line for *_, block in FENCE.findall(text) for line in re.sub(r"\\\n", " ", block).splitlines()]
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for line in [*lines, *spans]:
        match = re.match(r"(?:\S+=\S+ )*raytriever (\w+)(.*)", line.strip())
        if match is None:
            continue
        command, rest = match[1], match[2].split(" #")[0]
        if command == "COMMAND":
            continue
        assert command in COMMANDS, f"{page}: {line}"
        words = rest.split()
        yield command, [word.split("=")[0] for word in words if word.startswith("--")]


def test_commands_and_their_flags_exist() -> None:
    for page in PAGES:
        for command, flags in _commands(page) if page != "CHANGELOG.md" else ():
            assert set(flags) <= _flags(command), f"{page}: raytriever {command} {' '.join(flags)}"


def _environment(folder: Path) -> dict[str, str]:
    return {"RAYTRIEVER_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("page", TUTORIALS)
def test_blocks_of_a_tutorial_run(page: str, tmp_path: Path) -> None:
    """Blocks after `<!-- run -->`, and Python blocks without raytriever, run one after another in one folder."""
    for match in FENCE.finditer(_text(page)):
        _, language, block = match.groups()
        is_marked = _text(page)[: match.start()].endswith("<!-- run -->\n")
        if language == "python" and (is_marked or not re.search(r"raytriever|\brt\.", block)):
            commands = [["-c", block]]
        elif is_marked:
            lines = [line.split() for line in block.splitlines()]
            commands = [[str(REPOSITORY / f"jobs/{line[1]}.py"), *line[2:]] for line in lines]
        else:
            continue
        for command in commands:
            run_python(*command, cwd=tmp_path, variables=_environment(tmp_path))


def test_python_blocks_parse_and_use_public_names() -> None:
    pages = ["README.md", "CONTRIBUTING.md", *TUTORIALS]
    blocks = [(page, *match) for page in pages for match in FENCE.findall(_text(page))]
    for page, _, language, block in blocks:
        for node in ast.walk(ast.parse(block)) if language == "python" else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rt":
                assert node.attr in API, f"{page}: rt.{node.attr}"


@pytest.mark.slow
def test_the_example_of_the_readme_runs(tiny_dataset: Path, tmp_path: Path) -> None:
    block = next(block for _, language, block in FENCE.findall(_text("README.md")) if language == "python")
    for written, used in {"path/to/scifact": str(tiny_dataset), "max_steps=500": "max_steps=2"}.items():
        assert written in block
        block = block.replace(written, used)
    run_python("-c", block, cwd=tmp_path, variables=_environment(tmp_path))


def test_the_readme_is_one_page() -> None:
    readme = _text("README.md")
    assert len(readme.split()) <= 600
    assert _text("docs/glossary.md").count("\n") <= 30


def test_the_changelog_has_the_version() -> None:
    version = tomllib.loads(_text("pyproject.toml"))["project"]["version"]
    assert raytriever.__version__ == version
    changelog = _text("CHANGELOG.md")
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", changelog, re.MULTILINE)) <= kinds
