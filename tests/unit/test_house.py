"""The layout of the package and what holds of every module, so that nobody has to remember it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path

from processes import run_python

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import pytest

import house
import reached

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
LONGEST = 400
PRINTING = {"raytriever.core.terminal"}
# Names and paths of Linux alone, and the modules that may use them: those with a fallback.
LINUX_ONLY = {
    "sched_getaffinity": {"core/machine.py"},
    "posix_fadvise": set[str](),
    "posix_fallocate": set[str](),
    "memfd_create": set[str](),
    "pidfd_open": set[str](),
    "MAP_POPULATE": set[str](),
    "forkserver": {"core/machine.py"},
    "/proc": {"core/machine.py"},
    "/sys": {"core/machine.py"},
    "/dev/shm": set[str](),
}


FAULTS = "crowded_folders shared_prefixes dialect vague_loops relative_docstrings repeated_class_names flag_literals"


@pytest.mark.parametrize("fault", [*FAULTS.split(), "unknown_settings"])
def test_no_module_has(fault: str) -> None:
    assert getattr(house, fault)() == []


def test_there_are_fourteen_rooms_and_no_file_name_occurs_three_times() -> None:
    files = [path.relative_to(house.PACKAGE) for path in house.modules().values() if path.name != "__init__.py"]
    assert len({path.parts[0] for path in files}) == 14
    assert [name for name, count in Counter(path.name for path in files).items() if count > 2] == []


def test_a_word_of_no_field_is_found_in_names_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("def is_told(): ...\nclass WorkerNews: ...\n# besides, a retold story\n")
    monkeypatch.setattr(house, "REPOSITORY", tmp_path)
    monkeypatch.setattr(house, "WRITTEN", ("tests",))
    assert house.dialect() == ["tests/a.py:1: told", "tests/a.py:2: news"]


def test_commands_and_public_names_reach_every_definition() -> None:
    assert reached.unreached(reached.roots()) == []


def test_without_a_command_its_code_is_unreached() -> None:
    lines = reached.unreached({name for name in reached.roots() if not name.startswith("raytriever.cli.")})
    assert any("evaluation/annotation/annotate_queries.py" in line for line in lines)


def test_a_module_opens_with_its_idea_and_is_short() -> None:
    assert len(house.modules()) > 60
    for module, path in house.modules().items():
        assert len(ast.get_docstring(house.tree(module)) or "") > 20, module
        assert path.read_text(encoding="utf-8").count("\n") <= LONGEST, module


def test_every_print_goes_through_one_module() -> None:
    for module in house.modules():
        names = {ast.unparse(node.func) for node in house.nodes(module) if isinstance(node, ast.Call)}
        assert module in PRINTING or not names & {"print", "sys.stdout.write", "sys.stderr.write"}, module


def test_only_modules_with_a_fallback_use_what_linux_alone_has() -> None:
    users: dict[str, set[str]] = {name: set() for name in LINUX_ONLY}
    for module, path in house.modules().items():
        for node in house.nodes(module):  # attributes, and texts that are not documentation
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
            name = node.attr if isinstance(node, ast.Attribute) else node.value if is_text else ""
            for known in LINUX_ONLY:
                if name == known or name.startswith(f"{known}/"):
                    users[known].add(path.relative_to(house.PACKAGE).as_posix())
    assert {name: files - LINUX_ONLY[name] for name, files in users.items() if files - LINUX_ONLY[name]} == {}
    assert users["sched_getaffinity"] == {"core/machine.py"}


def test_pythons_own_platform_module_wins() -> None:
    # With a `platform` package on the path, `import uuid` breaks: it wants Python's own module of that name.
    assert not [folder for folder in ("platform", "tests") if (REPOSITORY / folder / "__init__.py").exists()]
    program = "import platform, uuid; uuid.uuid4(); print(platform.__file__)"
    done = run_python("-c", program, cwd=REPOSITORY)
    assert not Path(done.stdout.strip()).is_relative_to(REPOSITORY / "platform")


def test_the_picture_of_the_layers_has_their_order() -> None:
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    depth = {name: number for number, layer in enumerate(layers) for name in layer.split(" | ")}
    picture = (REPOSITORY / "docs" / "images" / "layers.svg").read_text(encoding="utf-8")
    boxes = re.findall(r'font-size="14"[^>]*>([^<]+)<', picture)
    depths = [[depth[name] for name in re.findall("[a-z_]{3,}", box)] for box in boxes]
    assert len(depths) > 5
    assert all(max(upper) < min(lower) for upper, lower in pairwise(depths))
