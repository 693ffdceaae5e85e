"""What decides a study's figures, and what a call makes of what an earlier one left."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raytriever.cluster.study import SETTINGS, _compare, _settings, check_directory
from raytriever.cluster.study_arm import arm_folder, seeded
from raytriever.cluster.study_outcome import blocks_of, seeds_of
from raytriever.config import Config, Curriculum, Stage, lay
from raytriever.config.study import Arm, Measured, Study
from raytriever.errors import ConfigError


def study(data: Path, temperature: float = 0.01) -> Study:
    """MW beside the encoder as it is, on data that the study cut for itself."""
    config = lay(Config(), {"data": {"dataset": str(data)}, "loss": {"temperature": temperature}})
    measured = (Measured("letters", str(data), "test", ("auc",)),)
    arms = (
        Arm("before", "before", measured, None, model="minilm"),
        Arm("cl", "CL", measured, Curriculum(config), block="MiniLM"),
        Arm("mw", "MW", measured, Curriculum(config), block="MiniLM"),
    )
    return Study("mw-in-domain", "Title", "Table 1", arms, 3, ("CL",))


def begun(folder: Path) -> Study:
    """A directory whose study has begun."""
    (folder / "data" / "letters").mkdir(parents=True)
    made = study(folder / "data" / "letters")
    (folder / SETTINGS).write_text(json.dumps(_settings(made, "smoke", folder)))
    return made


def test_the_same_study_goes_on_also_where_its_directory_was_moved(tmp_path: Path) -> None:
    begun(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    check_directory(tmp_path / "there", "mw-in-domain", "smoke")
    moved = study(tmp_path / "there" / "data" / "letters")
    _compare(tmp_path / "there", _settings(moved, "smoke", tmp_path / "there"))


def test_arms_of_other_settings_are_refused(tmp_path: Path) -> None:
    begun(tmp_path)
    other = study(tmp_path / "data" / "letters", temperature=0.05)
    with pytest.raises(ConfigError, match=r"holds this study with other settings \(arm cl differs\)"):
        _compare(tmp_path, _settings(other, "smoke", tmp_path))
    fewer = replace(other, arms=other.arms[:1], baselines=())
    with pytest.raises(ConfigError, match=r"arm cl is not here"):
        _compare(tmp_path, _settings(fewer, "smoke", tmp_path))


def test_data_that_a_killed_call_had_begun_to_cut_is_no_other_study(tmp_path: Path) -> None:
    (tmp_path / "data" / "letters").mkdir(parents=True)
    check_directory(tmp_path, "mw-in-domain", "smoke")


def test_a_seed_is_that_of_every_stage() -> None:
    base = lay(Config(), {"training": {"seed": 5}})
    found = seeded(Curriculum(base, (Stage("one", base), Stage("two", base))), 2)
    assert [part.config.training.seed for part in (*found.stages, Stage("", found.base))] == [2, 2, 2]


def test_what_is_not_trained_is_made_once(tmp_path: Path) -> None:
    before, _, mw = study(tmp_path).arms
    assert list(seeds_of(before, 3)) == [0]
    assert list(seeds_of(mw, 3)) == [0, 1, 2]
    assert arm_folder(tmp_path, before, 0) == tmp_path / "arms" / "before" / "as-it-is"
    assert arm_folder(tmp_path, mw, 2) == tmp_path / "arms" / "mw" / "seed-2"


def test_a_baseline_counts_in_the_blocks_that_have_it(tmp_path: Path) -> None:
    alone, sizes = blocks_of(study(tmp_path))
    assert (alone.rows, alone.baselines) == ({"before": "before"}, [])
    assert (sizes.rows, sizes.baselines) == ({"MiniLM CL": "CL", "MiniLM MW": "MW"}, ["MiniLM CL"])
