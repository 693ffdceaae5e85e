"""Commit of a hub model, from the hub's cache or from the configuration of a resumed run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raytriever.config import Config, Curriculum, Stage, dump_config
from raytriever.errors import ModelError
from raytriever.experiment.opening import pin_sources
from raytriever.models.config import ModelConfig
from raytriever.models.resolution import commit_of

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def hub(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache in the layout of `huggingface_hub` with a model of two commits, without the network."""
    cache = tmp_path / "hub"
    model = cache / "models--org--name"
    for commit in (OLD, NEW):
        shutil.copytree(tiny_encoder, model / "snapshots" / commit)
    (model / "refs").mkdir()
    (model / "refs" / "v1").write_text(OLD)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    point(model, OLD)
    return model


def point(model: Path, commit: str) -> None:
    (model / "refs" / "main").write_text(commit)


def curriculum(revision: str | None = None) -> Curriculum:
    base = Config(model=ModelConfig("org/name", revision))
    return Curriculum(base, (Stage("one", base), Stage("two", base)))


def test_a_name_becomes_a_commit_in_all_stages(hub: Path, tmp_path: Path) -> None:
    result = pin_sources(curriculum(), tmp_path / "run", fresh=False)
    assert result.base.model.revision == OLD
    assert [stage.config.model.revision for stage in result.stages] == [OLD, OLD]
    point(hub, NEW)
    assert commit_of("org/name") == NEW
    assert commit_of("org/name", "v1") == OLD
    assert pin_sources(curriculum("v1"), tmp_path / "run", fresh=False).base.model.revision == OLD


def test_a_resumed_run_keeps_its_commit(hub: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(pin_sources(curriculum(), run, fresh=False)))
    point(hub, NEW)
    assert pin_sources(curriculum(), run, fresh=False).base.model.revision == OLD
    assert pin_sources(curriculum(), run, fresh=True).base.model.revision == NEW
    assert pin_sources(curriculum("main"), run, fresh=False).base.model.revision == NEW  # asked for: to be refused
    other = replace(curriculum().base, model=ModelConfig("org/other"))
    with pytest.raises(ModelError, match="not in its local cache"):
        pin_sources(Curriculum(other), run, fresh=False)
    (run / "config.yaml").write_text("loss: {")
    assert pin_sources(curriculum(), run, fresh=False).base.model.revision == NEW


def test_a_local_model_has_no_commit(tiny_encoder: Path, tmp_path: Path) -> None:
    for model in ("minilm", str(tiny_encoder)):
        given = Curriculum(Config(model=ModelConfig(model)))
        assert pin_sources(given, tmp_path, fresh=False) == given
