"""The alerts and the configuration of Prometheus, checked and played through by its own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]
HERE = Path(__file__).parent
PROMETHEUS = HERE.parents[2] / "dashboards" / "prometheus"
INSTALL = "no promtool is installed: apt-get install prometheus, or leave these tests out with -m 'not prometheus'"


def promtool(*words: str) -> str:
    program = shutil.which("promtool")
    assert program, INSTALL
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_is_one(tmp_path: Path) -> None:
    assert "14 rules found" in promtool("check", "rules", str(PROMETHEUS / "alerts.yml"))
    assert "1 rule files found" in promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))


def test_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(HERE / "alerts_test.yml"))


def test_every_alert_is_played_through() -> None:
    rules = (PROMETHEUS / "alerts.yml").read_text()
    played = (HERE / "alerts_test.yml").read_text()
    names = [line.split()[-1] for line in rules.splitlines() if "- alert:" in line]
    assert [name for name in names if played.count(f"#{name.lower()}") < 1] == []
