"""Every hostile command ends as its case says, in one line, with nothing half-written and no secret shown."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from hostile.case import Case
from hostile.cases import CASES
from hostile.checking import faults
from hostile.running import Ended

from raytriever.cli.commands import COMMANDS


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_hostile_command(case: Case, ended: Callable[[Case], Ended]) -> None:
    how = ended(case)
    problems = list(faults(case, how))
    assert not problems, "\n".join([*problems, f"$ raytriever {case.words}", how.out[-1500:], how.err[-3000:]])


def test_there_are_enough_of_them_and_no_two_have_one_name() -> None:
    assert len(CASES) >= 300
    assert not [name for name, count in Counter(case.id for case in CASES).items() if count > 1]
    assert {case.stage for case in CASES} >= set(COMMANDS) - {"cache", "doctor", "quickstart", "runs"}
