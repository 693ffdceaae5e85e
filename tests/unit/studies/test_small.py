"""Studies at small (packs) and at smoke (docstrings): their data can be used for training and measuring."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from raytriever.config.curriculum import check_curriculum
from raytriever.data.prepare.open import open_dataset
from raytriever.studies.definition import SMALL, SMOKE, UNANSWERABLE, Study
from raytriever.studies.recipes import STUDIES, study_recipe

pytestmark = pytest.mark.slow


@pytest.fixture
def data_root(data_packs: Path, tiny_encoder: Path, tmp_path: Path) -> Path:
    """Return a folder with the packs and a base encoder."""
    root = tmp_path / "root"
    shutil.copytree(tiny_encoder, root / "base-encoder" / "encoder")
    figures = {"measurements": [{"tokens": 1, "loss": 10.0, "accuracy": 0.1}]}
    (root / "base-encoder" / "encoder" / "figures.json").write_text(json.dumps(figures))
    for pack in data_packs.iterdir():
        (root / pack.name).symlink_to(pack)
    return root


def check(study: Study) -> None:
    """Check that training and validation queries exist and are not measured, and that every data set can be read."""
    opened: dict[str, dict[str, set[str]]] = {}
    for arm in study.arms:
        for one in arm.datasets:
            may_miss = UNANSWERABLE in one.extras
            dataset = open_dataset(one.dataset, [one.split], max_bad_rows=1.0 if may_miss else 0.01)
            assert len(dataset.relevant_queries(one.split)) >= 20
        if arm.curriculum is None:
            continue
        check_curriculum(arm.curriculum)
        data = arm.curriculum.base.data
        if data.dataset not in opened:
            dataset = open_dataset(data.dataset, [data.train_split, data.dev_split, data.test_split])
            opened[data.dataset] = {
                split: {dataset.queries.texts[int(position)] for position in dataset.positives(split).queries}
                for split in (data.train_split, data.dev_split, data.test_split)
            }
        train, dev, test = opened[data.dataset].values()
        assert len(train) >= arm.curriculum.base.training.batch_size
        assert len(dev) >= arm.curriculum.base.training.batch_size
        assert not train & test
        assert not dev & test


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STUDIES)
def test_smoke_uses_docstrings_only(name: str, tmp_path: Path) -> None:
    study = study_recipe(name)(SMOKE, None, tmp_path / "data")
    check(study)
    assert study.seeds == 1
    assert all(one.dataset.startswith(str(tmp_path)) for arm in study.arms for one in arm.datasets)


@pytest.mark.data
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STUDIES)
def test_small_uses_packs(name: str, data_root: Path, tmp_path: Path) -> None:
    study = study_recipe(name)(SMALL, data_root, tmp_path / "data")
    check(study)
    assert study.seeds == 3
    again = study_recipe(name)(SMALL, data_root, tmp_path / "data")
    assert [(arm.name, arm.curriculum) for arm in again.arms] == [(arm.name, arm.curriculum) for arm in study.arms]
