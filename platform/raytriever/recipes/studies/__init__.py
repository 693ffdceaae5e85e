"""The studies of the papers' tables, one file each, imported when asked for.

Each has `study(scale, data_root, folder) -> Study` (`config.study`): `data_root` is the folder of the data packs or
None, `folder` where data sets that it cuts may be written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raytriever.config.study import Study

STUDIES = (
    "mw-in-domain",
    "mw-zero-shot",
    "mw-ablation",
    "mw-convergence",
    "multi-positive",
    "heterogeneous",
    "curriculum",
    "ratio",
    "variants",
    "budget",
    "lambda",
    "refresh",
)
Recipe = Callable[[str, Path | None, Path], "Study"]


def study_recipe(name: str) -> Recipe:
    """The recipe of a study, one of `STUDIES`; `lambda` is in `lambda_weight.py`, as Python keeps the word."""
    module = {"lambda": "lambda_weight"}.get(name, name.replace("-", "_"))
    recipe: Recipe = importlib.import_module(f"raytriever.recipes.studies.{module}").study
    return recipe
