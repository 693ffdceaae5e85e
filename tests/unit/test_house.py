"""The layout of the package: small folders, no shared prefixes, no cycles, Ray in its rooms only."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import house


def test_no_folder_is_crowded() -> None:
    assert house.crowded_folders() == []


def test_no_three_files_of_a_folder_share_a_prefix() -> None:
    assert house.shared_prefixes() == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert house.cycles() == []


def test_only_cluster_and_the_ray_part_of_tuning_import_ray() -> None:
    assert house.ray_outside_cluster() == []


def test_words_of_no_field_stay_out_of_the_package() -> None:
    assert house.dialect() == []


def test_docstrings_begin_with_no_relative_clause() -> None:
    assert house.relative_docstrings() == []


def test_commands_and_public_names_reach_every_definition() -> None:
    assert house.unreached(house.roots()) == []


def test_without_a_command_its_code_is_unreached() -> None:
    lines = house.unreached(house.roots() - {"raytriever.cli.annotate"})
    assert any("annotation/job.py" in line for line in lines)
