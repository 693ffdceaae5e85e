"""State of a run's directory, directories that are never changed, and the commit of a hub model."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from raytriever.core.errors import ConfigError, ModelError
from raytriever.data.data_settings import DataConfig
from raytriever.evaluation.results import EVALUATION, Results
from raytriever.experiments.run.run_directory import RunDirectory, newer_datasets
from raytriever.experiments.run.start_run import pin_sources, start_run
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.models.resolve_model import commit_of
from raytriever.training.run_config import Config, dump_config, to_dict
from raytriever.training.training_settings import MAY_CHANGE, TrainingConfig, ValidationConfig

CONFIG = to_dict(Config())
TEXT = dump_config(Config())
FACTS = {"steps": 4, "best": None}


def opened(path: Path, fresh: bool = False) -> RunDirectory:
    return RunDirectory.open(path, CONFIG, fresh)


def test_a_run_is_new_then_interrupted_then_finished(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one"
    run = opened(path)
    assert run.state == "new"
    assert not path.parent.exists()  # looking touches nothing
    run.begin(TEXT)
    run = opened(path)
    assert run.state == "interrupted"
    (path / "checkpoints").mkdir()
    run.begin(TEXT)
    assert (path / "checkpoints").is_dir()
    run.finish(FACTS)
    assert opened(path).state == "finished"


def test_more_steps_of_a_finished_run_are_refused_with_the_way_to_train_its_model_further(tmp_path: Path) -> None:
    path = tmp_path / "run"
    opened(path).begin(TEXT)
    longer = to_dict(Config(training=TrainingConfig(max_steps=12)))
    with pytest.raises(ConfigError, match=r"give another output, or fresh=True"):
        RunDirectory.open(path, longer, False)  # it is not finished, and has no model yet
    opened(path).finish(FACTS)
    with pytest.raises(ConfigError) as caught:
        RunDirectory.open(path, longer, False)
    assert str(caught.value) == (
        f"output {path}: holds a run with other settings (training.max_steps is None there and 12 here); give "
        f"another output with model {path}/model to train its model further, or fresh=True to remove that run"
    )


def test_data_that_has_changed_since_a_run_finished_is_named(tmp_path: Path) -> None:
    path, data = tmp_path / "run", tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    (data / "qrels" / "train.tsv").write_text("")
    (data / "corpus.jsonl").write_text("")
    opened(path).begin(TEXT)
    opened(path).finish(FACTS)
    names = ["pydocs", "s3://bucket/data", str(tmp_path / "moved"), str(data), str(data)]
    finished = (path / "metrics.json").stat().st_mtime
    for file in (data / "corpus.jsonl", data / "qrels" / "train.tsv"):
        os.utime(file, (finished, finished))
    assert newer_datasets(path, names) == []
    os.utime(data / "qrels" / "train.tsv", (finished + 2, finished + 2))
    assert newer_datasets(path, names) == [
        f"{data}/qrels/train.tsv is newer than the finished run {path}; to train on it, give another --output"
    ]


def test_files_of_losses_that_share_a_name_are_all_kept(tmp_path: Path) -> None:
    files = [tmp_path / folder / "own.py" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"def {file.parent.name}(scores, positives, negatives): ...\n")
    losses = [LossConfig("+".join(f"{file}:{file.parent.name}" for file in files))] * 2  # of two stages
    opened(tmp_path / "run").begin(TEXT, losses)
    stored = {file.name: file.read_text() for file in (tmp_path / "run" / "losses").iterdir()}
    assert stored == {"own.py": files[0].read_text(), "_own.py": files[1].read_text()}


@pytest.mark.parametrize("finished", [False, True])
def test_fresh_removes_the_old_run_when_the_new_one_starts(tmp_path: Path, finished: bool) -> None:
    path = tmp_path / "run"
    run = opened(path)
    run.begin(dump_config(Config(training=TrainingConfig(seed=5))))
    (path / "checkpoints").mkdir()
    if finished:
        run.finish(FACTS)
    run = opened(path, fresh=True)
    assert run.state == "new"
    assert (path / "checkpoints").is_dir()
    run.begin(TEXT)
    assert [file.name for file in path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_directory_without_a_run_is_refused_even_with_fresh(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=rf"^output {tmp_path}: is not empty and holds no run; give another"):
        opened(tmp_path, fresh)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_data_and_models_that_moved_are_the_same_setting(tmp_path: Path) -> None:
    for place in ("old", "new"):
        for name in ("faq", "more", "encoder", "other"):
            (tmp_path / place / name).mkdir(parents=True)

    def settings(place: str, model: str = "encoder") -> Config:
        folder = tmp_path / place
        data = DataConfig(dataset=str(folder / "faq"), extra_datasets=f"{folder / 'more'},pydocs")
        return Config(data=data, model=ModelConfig(model=str(folder / model)))

    RunDirectory.open(tmp_path / "run", to_dict(settings("old")), False).begin(dump_config(settings("old")))
    with pytest.raises(ConfigError, match=r"data\.dataset is"):  # both are there: one of them is meant
        RunDirectory.open(tmp_path / "run", to_dict(settings("new")), False)
    shutil.rmtree(tmp_path / "old")
    assert RunDirectory.open(tmp_path / "run", to_dict(settings("new")), False).state == "interrupted"
    with pytest.raises(ConfigError, match=r"model\.model is"):  # of another name
        RunDirectory.open(tmp_path / "run", to_dict(settings("new", "other")), False)
    with pytest.raises(ConfigError, match=r"data\.dataset is"):  # is nowhere
        RunDirectory.open(tmp_path / "run", to_dict(settings("gone")), False)


def test_a_stage_whose_data_moved_continues(tmp_path: Path) -> None:
    def settings(place: str, name: str = "faq") -> Config:
        return Config(stages=(Config(name="one", data=DataConfig(dataset=str(tmp_path / place / name))),))

    (tmp_path / "new" / "faq").mkdir(parents=True)
    RunDirectory.open(tmp_path / "run", {}, False).begin(dump_config(settings("old")))
    assert RunDirectory.open(tmp_path / "run", to_dict(settings("new")), False).state == "interrupted"
    with pytest.raises(ConfigError, match=r"data\.dataset of stage 'one' is"):
        RunDirectory.open(tmp_path / "run", to_dict(settings("new", "other")), False)


def test_another_split_of_moved_data_is_another_setting(tmp_path: Path) -> None:
    def settings(place: str, split: str) -> dict[str, Any]:
        datasets = f"own,{tmp_path / place / 'faq'}#{split}"
        return to_dict(Config(validation=ValidationConfig(eval_datasets=datasets)))

    (tmp_path / "new" / "faq").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(settings("old", "dev")))
    RunDirectory.open(tmp_path / "run", settings("new", "dev"), fresh=False)
    for place in ("old", "new"):
        with pytest.raises(ConfigError, match=r"validation\.eval_datasets is"):
            RunDirectory.open(tmp_path / "run", settings(place, "test"), fresh=False)


def test_settings_of_the_execution_may_change_and_others_may_not(tmp_path: Path) -> None:
    path = tmp_path / "run"
    opened(path).begin(TEXT)
    changed = {"num_workers": 4, "strategy": "zero2", "grad_cache_chunk": 8, "keep": 3, "checkpoint_steps": 7}
    assert set(changed) < set(MAY_CHANGE)
    again = to_dict(Config(model=ModelConfig(activation_checkpointing=True), training=TrainingConfig(**changed)))
    assert RunDirectory.open(path, again, False).state == "interrupted"
    for name in ("seed", "batch_size", "learning_rate"):
        assert name not in MAY_CHANGE
        other = to_dict(Config())
        other["training"][name] = "another"
        with pytest.raises(ConfigError, match=f"training.{name} is"):
            RunDirectory.open(path, other, False)


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
