"""Functions that return a whole configuration, one file an experiment."""

from collections.abc import Callable

from raytriever.config import Config
from raytriever.recipes.pydocs import pydocs

RECIPES: dict[str, Callable[[], Config]] = {"pydocs": pydocs}
