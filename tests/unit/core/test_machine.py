"""Facts about the machine, with what Linux has and with what other systems have: each function of Linux is hidden."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from raytriever.core import machine

PACKAGE = Path(machine.__file__).parents[1]


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what only Linux has."""
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn", "fork"])


def test_linux_reports_what_this_process_may_use() -> None:
    assert machine.usable_cores() == len(os.sched_getaffinity(0))
    assert 0 < machine.free_system_memory() < machine.total_memory()
    assert machine.clean_processes().get_start_method() == "forkserver"


def test_a_limit_of_a_cgroup_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert machine.free_system_memory() == 600_000


@pytest.mark.usefixtures("hidden")
def test_other_systems_report_cores_and_memory() -> None:
    assert machine.usable_cores() == os.cpu_count()
    assert machine.free_system_memory() == machine.total_memory() // 2 > 10**8
    assert machine.clean_processes().get_start_method() == "spawn"


@pytest.mark.usefixtures("hidden")
def test_other_systems_report_processes() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = machine.start_of_process(process.pid)
        assert started is not None
        assert started == machine.start_of_process(process.pid)
        process.communicate(b"\n")
    assert machine.start_of_process(process.pid) is None


# Packages without a wheel for a system, or with wheels for its newest releases only, by the beginnings of their names.
MISSING = {"linux": ("scalable-vs", "openvino"), "darwin": ("scalable-vs", "cuda-", "nvidia-", "triton")}


@pytest.mark.parametrize(("system", "processor"), [("linux", "aarch64"), ("darwin", "arm64")])
def test_no_dependency_outside_the_extras_is_missing_elsewhere(system: str, processor: str) -> None:
    where = {
        "sys_platform": system,
        "platform_system": system.capitalize(),
        "platform_machine": processor,
        "python_version": "3.11",
    }
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    pending, needed = [("raytriever", "")], set[str]()
    while pending:
        name, extra = pending.pop()
        for text in project["dependencies"] if name == "raytriever" else requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({**where, "extra": extra}):
                continue
            dependency = canonicalize_name(requirement.name)
            if dependency not in needed:
                needed.add(dependency)
                with suppress(PackageNotFoundError):  # one that only the other system needs
                    requires(dependency)
                    pending += [(dependency, "")]
            pending += [(dependency, extra) for extra in requirement.extras if (dependency, extra) not in pending]
    assert {"ray", "torch", "faiss-cpu", "numba"} <= needed
    assert not [name for name in needed if name.startswith(MISSING[system])]
