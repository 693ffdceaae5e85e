"""What holds of every file, so that nobody has to remember it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

import raytriever

REPOSITORY = Path(__file__).parent.parent.parent
PACKAGE = REPOSITORY / "platform" / "raytriever"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 400


def test_the_package_is_found() -> None:
    assert len(MODULES) > 60
    assert Path(raytriever.__file__).parent == PACKAGE


@pytest.mark.parametrize("folder", ["platform", "tests"])
def test_a_source_root_is_no_package(folder: str) -> None:
    # With a `platform` package on the path, `import uuid` breaks: it wants Python's own module of that name.
    assert not (REPOSITORY / folder / "__init__.py").exists()


def test_pythons_own_platform_module_wins() -> None:
    program = "import platform, uuid; uuid.uuid4(); print(platform.__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).is_relative_to(REPOSITORY / "platform")


def test_a_module_opens_with_its_idea_and_is_short() -> None:
    for module in MODULES:
        text = module.read_text(encoding="utf-8")
        assert len(ast.get_docstring(ast.parse(text)) or "") > 20, module
        assert text.count("\n") <= LONGEST, module


def test_the_version_is_stated_once() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert raytriever.__version__ == project["version"]


def test_the_picture_of_the_layers_has_their_order() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    depth = {name: number for number, layer in enumerate(contracts[0]["layers"]) for name in layer.split(" | ")}
    picture = (REPOSITORY / "docs" / "images" / "layers.svg").read_text(encoding="utf-8")
    boxes = re.findall(r'font-size="14"[^>]*>([^<]+)<', picture)
    depths = [[depth[name] for name in re.findall("[a-z_]{3,}", box)] for box in boxes]
    assert len(depths) > 5
    assert all(max(upper) < min(lower) for upper, lower in pairwise(depths))
