"""Ray Train's controller with what is added to it, under Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_python


@pytest.mark.slow
def test_groups_that_die_before_they_train_leave_their_place_to_the_next(tmp_path: Path) -> None:
    run_python(Path(__file__).with_name("dying_groups.py"), tmp_path, timeout=200)
