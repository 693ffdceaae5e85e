"""Recipes: functions that return the whole configuration of an experiment."""

from collections.abc import Callable

from raytriever.config import Config
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError, setting
from raytriever.options import did_you_mean
from raytriever.paths import DATASET
from raytriever.recipes.auc_paper import minilm, xlmr_base, xlmr_large
from raytriever.recipes.pydocs import pydocs

RECIPES: dict[str, Callable[[], Config]] = {
    "pydocs": pydocs,
    "minilm": minilm,
    "xlmr-base": xlmr_base,
    "xlmr-large": xlmr_large,
}


def base_config(recipe: str | None, dataset: str | None, has_file: bool = False) -> Config:
    """Return the lowest layer of settings: a recipe, the quickstart for the embedded data sets, or the defaults.

    Args:
        recipe: its name, if any.
        dataset: the data set that was given, if any.
        has_file: True if a configuration file overrides them; the quickstart is then not used.

    Raises:
        ConfigError: there is no such recipe.
    """
    if recipe:
        if recipe not in RECIPES:
            raise ConfigError(f"unknown recipe {recipe!r}", setting("recipe"), did_you_mean(recipe, RECIPES))
        return RECIPES[recipe]()
    is_quickstart = (dataset or DataConfig.dataset) in DATASET.names and not has_file
    return RECIPES["pydocs"]() if is_quickstart else Config()
