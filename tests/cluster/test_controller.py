"""Ray Train's controller with what is added to it, under Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import raytriever


@pytest.mark.slow
def test_groups_that_die_before_they_train_leave_their_place_to_the_next(tmp_path: Path) -> None:
    platform = str(Path(raytriever.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("dying_groups.py"), tmp_path],
        env={**os.environ, "PYTHONPATH": platform},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
