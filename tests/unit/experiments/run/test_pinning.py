"""Commit of a hub model, from the hub's cache or from the configuration of a resumed run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raytriever.core.errors import ConfigError, ModelError
from raytriever.evaluation.results import EVALUATION, Results
from raytriever.experiments.run.run_directory import RunDirectory
from raytriever.experiments.run.start_run import pin_sources, start_run
from raytriever.models.model_settings import ModelConfig
from raytriever.models.resolve_model import commit_of
from raytriever.training.run_config import Config, dump_config

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


def curriculum(revision: str | None = None) -> Config:
    base = Config(model=ModelConfig("org/name", revision))
    return replace(base, stages=(replace(base, name="one"), replace(base, name="two")))


def test_a_name_becomes_a_commit_in_all_stages(hub: Path, tmp_path: Path) -> None:
    result = pin_sources(curriculum(), tmp_path / "run", fresh=False)
    assert result.model.revision == OLD
    assert [stage.model.revision for stage in result.stages] == [OLD, OLD]
    point(hub, NEW)
    assert commit_of("org/name") == NEW
    assert commit_of("org/name", "v1") == OLD
    assert pin_sources(curriculum("v1"), tmp_path / "run", fresh=False).model.revision == OLD


def test_a_resumed_run_keeps_its_commit(hub: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(pin_sources(curriculum(), run, fresh=False)))
    point(hub, NEW)
    assert pin_sources(curriculum(), run, fresh=False).model.revision == OLD
    assert pin_sources(curriculum(), run, fresh=True).model.revision == NEW
    assert pin_sources(curriculum("main"), run, fresh=False).model.revision == NEW  # asked for: to be refused
    other = replace(curriculum(), model=ModelConfig("org/other"))
    with pytest.raises(ModelError, match="not in its local cache"):
        pin_sources(other, run, fresh=False)
    (run / "config.yaml").write_text("loss: {")
    assert pin_sources(curriculum(), run, fresh=False).model.revision == NEW


def test_the_same_command_continues_a_run_of_a_tag(hub: Path, tmp_path: Path) -> None:
    run, tagged = tmp_path / "run", curriculum("v1")
    directory = RunDirectory.open(run, {}, fresh=False)
    directory.begin(dump_config(pin_sources(tagged, run, fresh=False)))
    (run / EVALUATION).mkdir()
    Results().write(run / EVALUATION)
    directory.finish({})
    finished = start_run(tagged, Config(), run, None, False, print, ())
    assert (finished.path, finished.is_new) == (run, False)
    point(hub, NEW)
    with pytest.raises(ConfigError, match=f"model.revision is '{OLD}' there and '{NEW}' here"):
        start_run(curriculum("main"), Config(), run, None, False, print, ())


def test_a_local_model_has_no_commit(tiny_encoder: Path, tmp_path: Path) -> None:
    for model in ("minilm", str(tiny_encoder)):
        given = Config(model=ModelConfig(model))
        assert pin_sources(given, tmp_path, fresh=False) == given
