"""Recipes: functions that return the whole configuration of an experiment."""

from collections.abc import Callable

from raytriever.core.errors import setting
from raytriever.core.paths import DATASET
from raytriever.core.unknown_names import check_known
from raytriever.data.data_settings import DataConfig
from raytriever.experiments.recipes.auc_paper import minilm, xlmr_base, xlmr_large
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.training.run_config import Config
from raytriever.training.training_settings import TrainingConfig


def pydocs() -> Config:
    """Return the default of `train`: MiniLM on docstrings of Python's library. Training takes minutes on two cores.

    The loss is MW at temperature 0.01 on in-batch negatives, and the dev split decides which checkpoint is kept. In
    fp32 every machine with the same Python prints nearly the same table.

    Command: `raytriever train --loss mw`"""
    return Config(
        data=DataConfig(dataset="pydocs"),
        model=ModelConfig(model="minilm", passage_length=48),
        loss=LossConfig(loss="mw", temperature=0.01),
        training=TrainingConfig(batch_size=64, max_steps=40, learning_rate=5e-5, warmup_steps=10, precision="fp32"),
    )


RECIPES: dict[str, Callable[[], Config]] = {
    "pydocs": pydocs,
    "minilm": minilm,
    "xlmr-base": xlmr_base,
    "xlmr-large": xlmr_large,
}


def base_config(recipe: str | None, dataset: str | None, has_file: bool = False) -> Config:
    """Return the base configuration, which other settings override. It is the named recipe; else the recipe `pydocs`,
    if the data set is `pydocs` and there is no configuration file; else the defaults."""
    if recipe:
        check_known("recipe", recipe, RECIPES, setting("recipe"))
        return RECIPES[recipe]()
    is_quickstart = (dataset or DataConfig.dataset) in DATASET.names and not has_file
    return RECIPES["pydocs"]() if is_quickstart else Config()
