"""The layout of the package: small folders, no shared prefixes, no cycles, Ray in its rooms only."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import pytest

import house
import reached


def test_no_folder_is_crowded() -> None:
    assert house.crowded_folders() == []


def test_no_three_files_of_a_folder_share_a_prefix() -> None:
    assert house.shared_prefixes() == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert house.cycle() == []


def test_only_cluster_and_the_ray_part_of_tuning_import_ray() -> None:
    assert house.ray_outside_cluster() == []


def test_words_of_no_field_stay_out_of_code_tests_and_documents() -> None:
    assert house.dialect() == []


def test_a_word_of_no_field_is_found_in_names_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("def is_told(): ...\nclass WorkerNews: ...\n# besides, a retold story\n")
    monkeypatch.setattr(house, "REPOSITORY", tmp_path)
    monkeypatch.setattr(house, "WRITTEN", ("tests",))
    assert house.dialect() == ["tests/a.py:1: told", "tests/a.py:2: news"]


def test_docstrings_begin_with_no_relative_clause() -> None:
    assert house.relative_docstrings() == []


def test_no_two_public_classes_have_one_name() -> None:
    assert house.repeated_class_names() == []


def test_errors_name_settings_and_spell_no_flags() -> None:
    assert house.flag_literals() == []


def test_the_settings_in_texts_exist() -> None:
    assert house.unknown_settings() == []


def test_commands_and_public_names_reach_every_definition() -> None:
    assert reached.unreached(reached.roots()) == []


def test_without_a_command_its_code_is_unreached() -> None:
    lines = reached.unreached(reached.roots() - {"raytriever.cli.annotate"})
    assert any("annotation/job.py" in line for line in lines)
