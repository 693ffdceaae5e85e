"""Layers of settings: defaults, recipe, file, flags, `quickstart`; and the flags of the design."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raytriever.cli.commands import COMMANDS
from raytriever.cli.main import run
from raytriever.cli.train import resolve_settings
from raytriever.core.errors import ConfigError
from raytriever.data.data_settings import DataConfig
from raytriever.experiments.recipes import RECIPES
from raytriever.experiments.run.start_run import default_run_name, shown_run_name
from raytriever.models.model_settings import ModelConfig
from raytriever.training.run_config import NAME, SECTIONS, Config, check_config, dump_config, load_config
from raytriever.training.training_settings import TrainingConfig


def resolved(*words: object) -> Config:
    return resolve_settings(COMMANDS["train"].parser("train").parse([str(word) for word in words]))


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a recipe that differs from every default."""
    settings = TrainingConfig(batch_size=24, max_steps=7, seed=3, warmup_steps=2)
    monkeypatch.setitem(RECIPES, "odd", lambda: Config(training=settings, model=ModelConfig(pooling="cls")))
    return "odd"


def test_each_layer_overrides_the_layers_below(recipe: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("training: {seed: 4, warmup_steps: 5, learning_rate: 1e-3}\nmodel: {query_prompt: 'query: '}\n")
    config = resolved("--recipe", recipe, "--config", file, "--warmup-steps", 9, "--temperature", 1)
    default = TrainingConfig()
    assert config.training == dataclasses.replace(
        default, batch_size=24, max_steps=7, seed=4, warmup_steps=9, learning_rate=1e-3
    )
    assert config.model == ModelConfig(pooling="cls", query_prompt="query: ")
    assert config.loss.temperature == 1.0
    # What a layer does not name it does not touch.
    assert resolved("--recipe", recipe).training.patience == default.patience
    assert resolved("--config", file).model.pooling is None


@pytest.mark.parametrize(
    "settings", ["loss: {loss: 'own/hinge.py:hinge'}", "stages: [{name: one, loss: {loss: 'mw+own/hinge.py:hinge'}}]"]
)
def test_a_loss_file_of_a_settings_file_runs_only_if_the_command_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings may be those of somebody else, who wants the file to run."""
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    Path("own/hinge.py").write_text("open('executed', 'w')\n")
    Path("config.yaml").write_text(settings)
    words = ["--config", "config.yaml", "--dataset", "data"]
    assert run("train", [*words, "--dry-run"]) == 2
    assert capsys.readouterr().err == (
        "error: --config config.yaml: its loss own/hinge.py:hinge is a Python program; "
        "read own/hinge.py; if you trust it, add --loss own/hinge.py:hinge\n"
    )
    assert not Path("executed").exists()
    if settings.startswith("stages"):  # whose settings override flags
        with pytest.raises(ConfigError, match=r"its loss own/hinge\.py:hinge is a Python program"):
            resolved(*words, "--loss", "own/hinge.py:other")
    assert resolve_settings(
        COMMANDS["train"].parser("train").parse([*words, "--loss", f"{tmp_path}/own/hinge.py:hinge"])
    ).loss.files


def test_a_loss_file_of_a_search_space_runs_only_if_the_command_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("space.yaml").write_text("loss: {loss: [mw, 'hinge.py:hinge']}")
    assert run("tune", ["--search-space", "space.yaml", "--dataset", "data"]) == 2
    assert "--search-space space.yaml: its loss hinge.py:hinge is a Python program" in capsys.readouterr().err


def test_the_default_recipe_is_that_of_pydocs(tmp_path: Path) -> None:
    assert resolved() == RECIPES["pydocs"]()
    assert resolved("--dataset", "elsewhere") == Config(data=DataConfig(dataset="elsewhere"))
    (tmp_path / "empty.yaml").write_text("loss: {}\n")
    assert resolved("--config", tmp_path / "empty.yaml") == Config()


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        RECIPES["pydocs"](),
        Config(
            model=ModelConfig(
                model="C:\\é # x: y", query_prompt="query: \u2028\n'\"", passage_prompt="", query_length=32
            ),
            training=TrainingConfig(learning_rate=1e-5, epochs=0.1, weight_decay=1e-300, seed=2**32 - 1),
        ),
    ],
    ids=["defaults", "pydocs", "odd"],
)
def test_a_written_configuration_is_read_back_equal(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    assert load_config(file) == config
    assert load_config(file).hash == config.hash
    assert resolved("--config", file) == config


def test_every_setting_changes_the_hash() -> None:
    seen = {Config().hash}
    for section, kind in SECTIONS.items():
        settings = kind()
        for field in dataclasses.fields(settings):
            changed = dataclasses.replace(settings, **{field.name: _other(getattr(settings, field.name))})
            seen.add(dataclasses.replace(Config(), **{section: changed}).hash)
    assert len(seen) == 1 + sum(len(dataclasses.fields(kind)) for kind in SECTIONS.values())


def test_every_setting_has_a_help_text_and_a_flag_or_a_line_that_names_its_file() -> None:
    parser = COMMANDS["train"].parser("train")
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert sum(bool(action.option_strings) for action in parser._actions) <= 75
    for kind in SECTIONS.values():
        for field in dataclasses.fields(kind):
            assert len(field.metadata["help"]) > 10
            flag = "--" + field.name.replace("_", "-")
            assert (flag in flags) == field.metadata["flag"] == (flag not in parser.of_files)


@pytest.mark.parametrize(
    ("dataset", "model"),
    [("data/scifact", "minilm"), ("..", "intfloat/e5-base-v2"), ("数据", "../../m"), ("x" * 300, "a")],
)
def test_the_default_name_of_a_run_is_a_run_name(dataset: str, model: str) -> None:
    name = default_run_name(Config(data=DataConfig(dataset=dataset), model=ModelConfig(model=model)))
    assert NAME.fullmatch(name)
    assert name.endswith("-mw-seed0")


def test_the_name_at_a_tracker_tells_runs_apart() -> None:
    base = Config(data=DataConfig(dataset="faq"))
    config = dataclasses.replace(
        base, training=dataclasses.replace(base.training, learning_rate=1e-4, num_workers=4, max_steps=50)
    )
    assert shown_run_name(base, base) == "mw seed0 faq-minilm"
    assert shown_run_name(config, base) == "mw seed0 max_steps=50 learning_rate=0.0001 faq-minilm"
    names = "batch_size max_steps warmup_steps patience eval_steps weight_decay max_grad_norm"
    texts = dict.fromkeys(names.split(), 9)
    many = dataclasses.replace(base, training=dataclasses.replace(base.training, **texts))
    assert shown_run_name(many, base).endswith(" and 1 more faq-minilm")
    long = dataclasses.replace(base, model=ModelConfig(query_prompt="x" * 300))
    assert len(shown_run_name(long, base)) <= 220


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "other"


def training(*words: object) -> TrainingConfig:
    config = resolved(*words)
    check_config(config)
    return config.training


@pytest.mark.parametrize(
    ("given", "stored", "ends"), [("4", 4, (4, 4)), ("2:2", 2, (2, 2)), ("02:16", "2:16", (2, 16))]
)
def test_a_number_or_a_range(given: str, stored: int | str, ends: tuple[int, int]) -> None:
    result = training("--num-workers", given)
    assert (result.num_workers, result.workers) == (stored, ends)


@pytest.mark.parametrize("given", ["0", "4:1", "1.5", ":4", "1:2:3", ""])
def test_other_values_are_user_errors(given: str) -> None:
    with pytest.raises(ConfigError, match=r"num_workers: .*1:4") as caught:
        training(f"--num-workers={given}")
    assert repr(given) in str(caught.value)


def test_a_file_uses_and_keeps_the_form_of_the_flag(tmp_path: Path) -> None:
    # To YAML 1.1 an unquoted 1:4 is sixty-four.
    file = tmp_path / "run.yaml"
    file.write_text("training: {num_workers: 1:4}\n")
    config = load_config(file)
    assert config.training.workers == (1, 4)
    file.write_text(dump_config(config))
    assert load_config(file) == config


def test_the_smallest_number_divides_the_batch_and_the_largest_divisor_shares_it() -> None:
    result = training("--num-workers", "2:5", "--batch-size", 8)
    assert [result.sharing(there) for there in range(2, 6)] == [2, 2, 4, 4]
    assert training("--num-workers", "1:3", "--batch-size", 7).sharing(3) == 1
    with pytest.raises(ConfigError, match=r"batch_size: 64 is not divisible by 3 workers.*num_workers"):
        training("--num-workers", "3:4", "--batch-size", 64)


def test_settings_of_training_are_those_of_train(error_line: Callable[..., str]) -> None:
    assert error_line("quickstart", "--max-steps", "3").startswith("--max-steps: unknown flag")


def test_it_is_the_training_of_the_recipe_with_a_name(
    error_line: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []

    def start(config: Config, base: Config, output: Path, run_name: str, fresh: bool, *others: object) -> None:
        calls.append((config, base, output, run_name, fresh))
        raise ConfigError("stopped here")

    monkeypatch.setattr("raytriever.cli.train.start_run", start)
    assert error_line("quickstart", "--fresh") == error_line("train") == "stopped here"
    pydocs = RECIPES["pydocs"]()
    assert calls[0] == (pydocs, pydocs, Path("runs/quickstart"), "quickstart", True)
    assert calls[1] == (pydocs, pydocs, Path("runs/pydocs-minilm-mw-seed0"), None, False)
