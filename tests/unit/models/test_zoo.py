"""Directories of sentence-transformers: the comparison of the zoo notices a property that is read wrongly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[3] / folder) for folder in ("benchmarks", "tests/support")]
from directories import CASES, Case

import zoo


@pytest.mark.parametrize("case", [case for case in CASES if not case.refused], ids=lambda case: case.name)
def test_the_comparison_notices_a_property_that_is_read_wrongly(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path / case.name)
    teeth = zoo.measure_teeth(case, tmp_path / case.name)
    assert teeth
    assert max(teeth.values()) < zoo.NOTICED, teeth
