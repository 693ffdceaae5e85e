"""Directories of sentence-transformers: raytriever encodes as the library does, and a misreading is noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[3] / folder) for folder in ("benchmarks", "tests/support")]
from cases import CASES, TEXTS, Case

import zoo

READ = [case for case in CASES if not case.refused]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


def written(case: Case, directory: Path) -> Path:
    folder = directory / case.name
    if not folder.exists():
        case.write(folder)
    return folder


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_directory_is_read_as_the_library_reads_it_or_refused(case: Case, directory: Path) -> None:
    examined = zoo.examine(written(case, directory))
    assert zoo.holds(case, examined), examined


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_the_comparison_notices_a_property_that_is_read_wrongly(case: Case, directory: Path) -> None:
    teeth = zoo.measure_teeth(case, written(case, directory), TEXTS[:7])
    assert teeth
    assert max(teeth.values()) < zoo.NOTICED, teeth
