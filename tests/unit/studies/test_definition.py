"""Definition of a study, and the estimate of its cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raytriever.config import NAME, Config, Curriculum, Stage, override
from raytriever.studies.cost import cost_of, cost_text
from raytriever.studies.definition import Arm, MeasuredDataset, Study
from raytriever.studies.recipes import AT_FULL, STUDIES, study_recipe
from raytriever.training.monitoring import Encoding

MEASURED = (MeasuredDataset("letters", "letters", "test", ("auc",)),)


def arm(name: str, **other: Any) -> Arm:
    """Return an arm with ten steps of MiniLM in batches of 64."""
    config = override(Config(), {"training": {"max_steps": 10}, "model": {"query_length": 16, "passage_length": 32}})
    return Arm(**{"name": name, "row": name, "datasets": MEASURED, "curriculum": Curriculum(config), **other})


def study(*arms: Arm, baselines: tuple[str, ...] = ()) -> Study:
    return Study("name", "Title", "Table 1", arms, 1, baselines)


def test_arms_of_one_row_may_be_measured_on_different_data() -> None:
    other = (replace(MEASURED[0], name="words"),)
    assert [one.label for one in study(arm("a"), arm("b", row="a", datasets=other)).arms] == ["a", "a"]


def test_operations_are_counted_as_training_counts_them(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny encoder has two blocks of width 32. A fourth of their weights, biases and norms, is not counted."""
    from transformers import AutoModel

    from raytriever.studies import cost as study_cost

    encoding = Encoding.of(AutoModel.from_pretrained(tiny_encoder, add_pooling_layer=False))
    monkeypatch.setattr(study_cost, "ENCODERS", {"tiny": (2, 32), **study_cost.ENCODERS})
    one = arm("a", curriculum=Curriculum(override(arm("a").curriculum.base, {"model": {"model": "tiny"}})))  # type: ignore[union-attr]
    [cost] = cost_of(study(one), 1).arms
    # Its feed-forward layers are twice as wide as its states and not four times.
    assert encoding.per_pair * (16**2 + 32**2) * 640 < cost.operations
    exact = 640 * sum(6 * 12 * 2 * 32**2 * length + 12 * 2 * 32 * length**2 for length in (16, 32))
    assert cost.operations == pytest.approx(exact)


def test_costs_add_up_over_stages_epochs_and_seeds() -> None:
    once = cost_of(study(arm("a")), 1)
    assert once.arms[0].steps == 10
    assert cost_of(study(arm("a"), arm("b")), 3).gpu_hours == pytest.approx(6 * once.gpu_hours)
    base = arm("a").curriculum.base  # type: ignore[union-attr]
    by_epochs = override(base, {"training": {"max_steps": None, "epochs": 2.0}})
    staged = arm("a", curriculum=Curriculum(base, (Stage("one", base), Stage("two", by_epochs))), queries=640)
    assert cost_of(study(staged), 1).arms[0].steps == 10 + 20


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in AT_FULL])
def test_the_cost_of_every_study_is_estimated_at_full_and_none_contradicts_itself(name: str, tmp_path: Path) -> None:
    whole = study_recipe(name)("full", None, tmp_path / "data")
    cost = cost_of(whole, whole.seeds)
    assert cost.gpu_hours > 0
    text = cost_text(whole, whole.seeds, cost)
    assert "assumed, not measured" in text
    assert all(one.name in text for one in whole.arms if one.curriculum is not None)
    assert not list(tmp_path.iterdir())
    names = [arm.name for arm in whole.arms]
    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) for name in names)
    cells = [(arm.label, one.name) for arm in whole.arms for one in arm.datasets]
    assert len(set(cells)) == len(cells)
    assert all(arm.datasets and (arm.curriculum is None) == bool(arm.model) for arm in whole.arms)
    assert whole.analyse is not None or set(whole.baselines) <= {arm.row for arm in whole.arms}
