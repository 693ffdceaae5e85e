"""Wheels of the base install for systems that this machine is not: Linux on arm64, and macOS on Apple processors.

Run: `python benchmarks/wheels.py [--json PATH]`, with access to a package index. The packages are the dependencies of
the project, and theirs, by the metadata that is installed here and the markers of the other system. The versions are
those of `constraints.txt`. pip looks for a wheel of each, and installs none."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ends import exactly, parser, report, reported

REPOSITORY = Path(__file__).parent.parent
# Platform tags, newest last, and the values of the markers that requirements ask for.
SYSTEMS = {
    "Linux, arm64": (
        ("manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64"),
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64", "os_name": "posix"},
    ),
    "macOS 14, arm64": (
        tuple(f"macosx_{major}_0_{kind}" for major in (11, 12, 13, 14) for kind in ("arm64", "universal2")),
        {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64", "os_name": "posix"},
    ),
}
PYTHON = {"python_version": "3.11", "python_full_version": "3.11.9"}


def closure(requirements: list[str], markers: dict[str, str]) -> set[str]:
    """Return the names of requirements, and of what these require, in another environment."""
    names: set[tuple[str, str]] = set()
    pending = [(Requirement(text), "") for text in requirements]
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker and not requirement.marker.evaluate({**PYTHON, **markers, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for item in ("", *requirement.extras):
            if (name, item) not in names:
                names.add((name, item))
                pending += [(Requirement(text), item) for text in requires(name) or ()]
    return {name for name, _ in names}


def without_wheel(pins: list[str], platforms: tuple[str, ...]) -> list[str]:
    """Return the pinned versions for which pip finds no wheel for any of the platforms."""
    missing: list[str] = []
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", "3.11", "--implementation", "cp", "--target", folder]
        command += [word for platform in platforms for word in ("--platform", platform)]
        while pins:
            done = subprocess.run([*command, *pins], capture_output=True, text=True)
            if not done.returncode:
                break
            # pip ends at the first one.
            failed = re.search(r"No matching distribution found for (\S+)", done.stderr)
            if failed is None:
                raise SystemExit(done.stderr)
            missing.append(failed[1])
            pins = [pin for pin in pins if pin != failed[1]]
    return missing


def main() -> None:
    """Count the packages, and name those without a wheel."""
    arguments = parser(__doc__ or "").parse_args()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lines = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    versions = {canonicalize_name(name): version for name, version in lines}
    ends = {}
    for system, (platforms, markers) in SYSTEMS.items():
        names = closure(project["dependencies"], markers)
        pins = [f"{name}=={versions[name]}" if name in versions else name for name in sorted(names)]
        missing = without_wheel(pins, platforms)
        ends[f"{system}: packages"] = reported(len(names))
        ends[f"{system}: without a wheel {', '.join(missing)}".strip()] = exactly(len(missing), 0)
    report("wheels", ends, arguments.json)


if __name__ == "__main__":
    main()
