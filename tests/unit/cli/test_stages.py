"""Stages in a configuration file: their layers, their checks and their errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from raytriever.cli.commands import COMMANDS
from raytriever.cli.train import _flags, _overridden_flags, resolve_settings
from raytriever.data.data_settings import DataConfig
from raytriever.experiments.recipes import RECIPES
from raytriever.experiments.run.start_run import default_run_name
from raytriever.losses.loss_settings import LossConfig
from raytriever.training.run_config import Config, difference, dump_config, load_config, to_dict
from raytriever.training.training_settings import TrainingConfig

ErrorLine = Callable[..., str]

PAPER = """
data: {dataset: letters, negatives_per_query: 7}
loss: {temperature: 0.02}
training: {batch_size: 128, learning_rate: 3e-5, epochs: 3}
stages:
- name: llm
  data: {positives: llm, positives_per_query: 4, negatives_per_query: 4}
  loss: {loss: lsepair}
- name: human
  data: {positives: human}
  loss: {loss: infonce}
  training: {epochs: 1}
"""


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    file = tmp_path / "paper.yaml"
    file.write_text(PAPER)
    return file


def resolved(*words: object) -> Config:
    return resolve_settings(COMMANDS["train"].parser("train").parse([str(word) for word in words]))


def test_a_stage_overrides_the_run_and_not_the_stage_before(paper: Path) -> None:
    config = resolved("--config", paper)
    base = Config(
        data=DataConfig(dataset="letters", negatives_per_query=7),
        loss=LossConfig(temperature=0.02),
        training=TrainingConfig(batch_size=128, learning_rate=3e-5, epochs=3.0),
    )
    assert dataclasses.replace(config, stages=()) == base
    llm, human = config.stages
    assert llm == dataclasses.replace(
        base,
        name="llm",
        data=dataclasses.replace(base.data, positives="llm", positives_per_query=4, negatives_per_query=4),
        loss=LossConfig(loss="lsepair", temperature=0.02),
    )
    assert human == dataclasses.replace(
        base,
        name="human",
        data=dataclasses.replace(base.data, positives="human"),
        loss=LossConfig(loss="infonce", temperature=0.02),
        training=dataclasses.replace(base.training, epochs=1.0),
    )
    assert config.losses == "lsepair then infonce"
    assert default_run_name(config) == "letters-minilm-llm-human-seed0"


def test_stages_override_flags_and_flags_override_file_and_recipe(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, "odd", lambda: Config(training=TrainingConfig(patience=3, batch_size=2)))
    words = ["--recipe", "odd", "--config", str(paper), "--temperature", "1", "--loss", "mw", "--seed", "5"]
    curriculum = resolved(*words)
    for config in (curriculum, *curriculum.stages):
        training = config.training
        assert (training.patience, training.batch_size, config.loss.temperature, training.seed) == (3, 128, 1.0, 5)
    assert [stage.loss.loss for stage in curriculum.stages] == ["lsepair", "infonce"]
    # A flag that a stage overrides is expected, and only such a one.
    expected = list(_overridden_flags(curriculum, _flags(COMMANDS["train"].parser("train").parse(words))))
    assert expected == ["--loss mw: the --config file overrides it in stage llm, human"]


def test_epochs_of_a_stage_replace_steps_and_steps_replace_epochs(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"

    def lengths(base: dict[str, Any], stage: dict[str, Any], *flags: object) -> tuple[int | None, float | None]:
        file.write_text(yaml.safe_dump({"training": base, "stages": [{"name": "a", "training": stage}]}))
        curriculum = resolved("--config", file, *flags)
        again = tmp_path / "again.yaml"
        again.write_text(dump_config(curriculum))
        assert load_config(again) == curriculum
        training = curriculum.stages[0].training
        return training.max_steps, training.epochs

    assert lengths({"max_steps": 60}, {"epochs": 2}) == (None, 2.0)
    assert lengths({"epochs": 3}, {"max_steps": 5}) == (5, None)
    assert lengths({"max_steps": 60, "epochs": 2}, {"epochs": 2}) == (None, 2.0)
    assert lengths({"max_steps": 60}, {"max_steps": 60, "epochs": 2}) == (60, 2.0)
    assert lengths({"max_steps": 60}, {"seed": 1}) == (60, None)
    assert lengths({"epochs": 3}, {"max_steps": None}) == (None, 3.0)
    assert lengths({}, {"epochs": 1}, "--max-steps", 5) == (None, 1.0)


def test_a_written_curriculum_is_read_back_equal(paper: Path, tmp_path: Path) -> None:
    curriculum = load_config(paper)
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(curriculum))
    assert load_config(file) == curriculum
    assert load_config(file).hash == curriculum.hash == yaml.safe_load(file.read_text())["hash"]
    # The run's settings are whole, a stage's are what it has otherwise.
    content = yaml.safe_load(file.read_text())
    assert content["training"] == to_dict(curriculum)["training"]
    assert content["stages"][0] == {
        "name": "llm",
        "data": {"positives": "llm", "positives_per_query": 4, "negatives_per_query": 4},
        "loss": {"loss": "lsepair"},
    }


def test_stages_that_differ_are_named(paper: Path) -> None:
    config = load_config(paper)
    here, plain = to_dict(config), to_dict(dataclasses.replace(config, stages=()))
    swapped = to_dict(dataclasses.replace(config, stages=config.stages[::-1]))
    stored = to_dict(config)
    there = stored["stages"]
    assert difference(stored, here) is None
    assert difference(plain, plain) is None
    assert difference(stored, plain) == "its stages are llm, human there and none here"
    for absent in (None, [], "damaged", [1]):
        assert difference({**plain, "stages": absent}, here) == "its stages are none there and llm, human here"
    assert difference(stored, swapped) == "its stages are llm, human there and human, llm here"
    # What is written out though it is the run's own setting is no difference; what is left out is one.
    there[0]["training"] = {"seed": 0}
    assert difference(stored, here) is None
    # How a stage is carried out may change.
    there[0]["training"] = {"num_workers": 7, "keep": 9}
    there[1]["model"] = {"activation_checkpointing": True}
    assert difference(stored, here) is None
    there[1]["model"] = {"lora_rank": 3}
    assert difference(stored, here) == "model.lora_rank of stage 'human' is 3 there and 0 here"
    del there[1]["model"], there[1]["loss"]
    assert difference(stored, here) == "loss.loss of stage 'human' is 'mw' there and 'infonce' here"


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ("[]", "`stages:` holds []; give a list of stages, each with a `name:`"),
        ("[a]", "stage 1 holds 'a'; give `name:` and sections such as `loss:`"),
        ("[{loss: {loss: mw}}]", "stage 1 has no name; give a `name:` of letters, digits"),
        ("[{name: a}, {name: ../b}]", "stage 2 has the invalid name '../b'; give a `name:`"),
        ("[{name: a}, {name: b}, {name: a}]", "two stages have the name 'a'; give each stage a different name"),
        ("[{name: a, losses: {loss: mw}}]", "stage 'a': unknown section 'losses'; did you mean 'loss'?"),
        ("[{name: a, loss: {los: mw}}]", "stage 'a': unknown setting 'los'; did you mean 'loss'?"),
        ("[{name: a, loss: mw}]", "stage 'a': section 'loss' holds 'mw'; give `setting: value` lines"),
        ("[{name: a, training: {seed: x}}]", "stage 'a': seed is 'x'; give a whole number"),
        (
            "[{name: a, model: {model: x}}]",
            "stage 'a': model.model must be the same in all stages; move it above `stages:`",
        ),
        ("[{name: a, data: {test_split: dev}}]", "stage 'a': data.test_split must be the same in all stages"),
        ("[{name: a}, {name: b, loss: {loss: mv}}]", "stage 'b': loss: unknown value 'mv'; did you mean 'mw'?"),
        (
            "[{name: b, training: {batch_size: 7, num_workers: 2}}]",
            "stage 'b': batch_size: 7 is not divisible by 2 workers; give a multiple of 2, such as 8",
        ),
        ("[{name: a}, {name: b, data: {train_split: tr}}]", "letters: no split 'tr'; there are: dev, test"),
        ("[{name: a}, {name: b, data: {dataset: nowhere}}]", "stage 'b': dataset nowhere: no data set of this name"),
        (
            "[{name: a}, {name: b, data: {positives: llm}}]",
            "stage 'b': letters train: no query has a positive of source",
        ),
    ],
)
def test_a_user_error_in_a_stage(
    error_line: ErrorLine, letters: Path, tiny_encoder: Path, tmp_path: Path, stages: str, expected: str
) -> None:
    file = tmp_path / "mine.yaml"
    settings = f"data: {{dataset: '{letters}'}}\nmodel: {{model: '{tiny_encoder}'}}\ntraining: {{warmup_steps: 0}}\n"
    file.write_text(f"{settings}stages: {stages}\n")
    line = error_line("train", "--config", file)
    assert expected in line
    assert line.startswith((f"{file}: ", "stage 'b': "))


def test_a_directory_of_other_stages_is_refused_until_it_is_fresh(
    error_line: ErrorLine, work: Path, paper: Path
) -> None:
    (work / "letters").mkdir()
    (work / "run").mkdir()
    (work / "run" / "config.yaml").write_text(dump_config(load_config(paper)))
    (work / "here.yaml").write_text(PAPER.replace("{positives: llm, ", "{"))
    assert error_line("train", "--config", "here.yaml", "--output", "run") == (
        "output run: holds a run with other settings (data.positives of stage 'llm' is 'llm' there and 'all' here); "
        "give another output, or fresh=True to remove that run"
    )
    # Fresh, the directory is no matter any more, and what is wrong is the data set.
    assert "dataset letters" in error_line("train", "--config", paper, "--output", "run", "--fresh")
