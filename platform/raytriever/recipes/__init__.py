"""Functions that return a whole configuration, one file an experiment."""

from collections.abc import Callable

from raytriever.config import Config
from raytriever.recipes.minilm import minilm
from raytriever.recipes.pydocs import pydocs
from raytriever.recipes.xlmr_base import xlmr_base
from raytriever.recipes.xlmr_large import xlmr_large

RECIPES: dict[str, Callable[[], Config]] = {
    "pydocs": pydocs,
    "minilm": minilm,
    "xlmr-base": xlmr_base,
    "xlmr-large": xlmr_large,
}
