"""The layout of the package: small folders, no shared prefixes, no cycles, and who may use Ray, signals, print."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import pytest

import house

LONGEST = 400
# `submission` passes on the lines of a job, which its own stage has made printable.
PRINTING = {"terminal.py", "cluster/submission.py"}
# Where a handler is set: that of commands; Ctrl-C in processes of a pool, which the parent handles; and the handler of
# the program, set again after Ray has replaced it.
HANDLING = {"interruption.py", "processes.py", "cluster/session.py"}
# Names and paths of Linux alone, and the modules that may use them: those with a fallback.
LINUX_ONLY = {
    "sched_getaffinity": {"machine.py"},
    "posix_fadvise": set[str](),
    "posix_fallocate": set[str](),
    "memfd_create": set[str](),
    "pidfd_open": set[str](),
    "MAP_POPULATE": set[str](),
    "forkserver": {"machine.py"},
    "/proc": {"machine.py", "operation/doctor.py", "storage.py"},
    "/sys": {"machine.py", "operation/doctor.py"},
    "/dev/shm": {"operation/doctor.py", "cluster/session.py"},
}


def files() -> Iterator[tuple[str, str]]:
    """Every module and its path in the package."""
    return ((module, path.relative_to(house.PACKAGE).as_posix()) for module, path in house.modules().items())


def callers(pattern: str) -> set[str]:
    """Files that call something of such a name."""
    name = re.compile(pattern)
    return {
        path
        for module, path in files()
        for node in house.nodes(module)
        if isinstance(node, ast.Call) and name.fullmatch(ast.unparse(node.func))
    }


def test_a_module_opens_with_its_idea_and_is_short() -> None:
    assert len(house.modules()) > 60
    for module, path in house.modules().items():
        idea = ast.get_docstring(house.tree(module))
        assert idea is not None, path
        assert len(idea) > 20, path
        assert path.read_text(encoding="utf-8").count("\n") <= LONGEST, path


def test_every_print_goes_through_one_module() -> None:
    assert callers(r"print|sys\.(stdout|stderr)\.write") <= PRINTING


def test_a_handler_of_signals_is_set_in_three_places_and_used_by_commands_alone() -> None:
    setters = callers(r"signal\.(signal|setitimer|siginterrupt)|.*add_signal_handler.*")
    assert setters == HANDLING
    assert callers(r"(.*\.)?interruptible") == {"cli/main.py"}


def test_undocumented_ray_is_used_in_one_file_and_the_controller() -> None:
    private = re.compile(r"\bray(\.\w+)*\._(private|internal)\b")
    users = {path for module, path in files() if private.search(house.modules()[module].read_text("utf-8"))}
    assert users == {"cluster/ray_private.py", "cluster/train/controller.py"}


def test_only_modules_with_a_fallback_use_what_linux_alone_has() -> None:
    users: dict[str, set[str]] = {name: set() for name in LINUX_ONLY}
    known = re.compile(f"({'|'.join(LINUX_ONLY)})(/.*)?")
    for module, path in files():
        for node in house.nodes(module):
            text = getattr(node, "attr", None) or getattr(node, "value", None)
            if isinstance(text, str) and (found := known.fullmatch(text)):
                users[found[1]].add(path)
    assert {name: paths - LINUX_ONLY[name] for name, paths in users.items() if paths - LINUX_ONLY[name]} == {}
    assert users["sched_getaffinity"] == {"machine.py"}


def test_no_folder_is_crowded() -> None:
    assert house.crowded_folders() == []


def test_no_three_files_of_a_folder_share_a_prefix() -> None:
    assert house.shared_prefixes() == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert house.cycles() == []


def test_only_cluster_and_the_ray_part_of_tuning_import_ray() -> None:
    assert house.ray_outside_cluster() == []


def test_words_of_no_field_stay_out_of_code_tests_and_documents() -> None:
    assert house.dialect() == []


def test_a_word_of_no_field_is_found_in_names_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("def is_told(): ...\nclass WorkerNews: ...\n# besides, a retold story\n")
    monkeypatch.setattr(house, "REPOSITORY", tmp_path)
    monkeypatch.setattr(house, "WRITTEN", ("tests",))
    assert house.dialect() == ["tests/a.py:1: told", "tests/a.py:2: news"]


def test_docstrings_begin_with_no_relative_clause() -> None:
    assert house.relative_docstrings() == []


def test_no_two_public_classes_have_one_name() -> None:
    assert house.repeated_class_names() == []


def test_errors_name_settings_and_spell_no_flags() -> None:
    assert house.flag_literals() == []


def test_the_settings_in_texts_exist() -> None:
    assert house.unknown_settings() == []


def test_commands_and_public_names_reach_every_definition() -> None:
    assert house.unreached(house.roots()) == []


def test_without_a_command_its_code_is_unreached() -> None:
    lines = house.unreached(house.roots() - {"raytriever.cli.annotate"})
    assert any("annotation/job.py" in line for line in lines)
