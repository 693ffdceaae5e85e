"""The workflows and templates of GitHub: valid YAML, targets of the Makefile and no other commands, versions named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
GITHUB = REPOSITORY / ".github"
TARGETS = set(re.findall(r"^([\w-]+)(?: [\w-]+)*:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


def jobs(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())
    assert loaded["permissions"] == {"contents": "read"}
    return dict(loaded["jobs"])


def test_workflows_run_targets_of_the_makefile() -> None:
    [checks] = jobs("checks").values()
    assert {"check", "test", "docs"} < set(checks["strategy"]["matrix"]["target"]) <= TARGETS
    assert [step["run"] for step in checks["steps"] if "run" in step] == ["make ${{ matrix.target }}"]
    [version] = [step["with"]["python-version"] for step in checks["steps"] if "python-version" in step.get("with", {})]
    assert f'requires-python = ">={version}"' in (REPOSITORY / "pyproject.toml").read_text()


def test_a_release_publishes_the_wheel_of_the_checks_without_a_password() -> None:
    release = jobs("release")
    assert release["checks"] == {"uses": "./.github/workflows/checks.yml"}
    publish = release["publish"]
    assert publish["needs"] == "checks"
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "secrets." not in (GITHUB / "workflows" / "release.yml").read_text()
