"""The studies of the papers' tables, one file each, imported only when a study runs.

Each file has `study(scale, data_root, folder) -> Study` (`studies.definition`). `data_root` is the folder of the data
packs or None. The study may write subsets of data sets to `folder`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raytriever.studies.definition import Study

_MODULES = {
    "mw-in-domain": "auc.in_domain",
    "mw-zero-shot": "auc.zero_shot",
    "mw-ablation": "auc.ablation",
    "mw-convergence": "auc.convergence",
    "mw-from-base": "auc.from_base",
    "multi-positive": "positives.multi_positive",
    "heterogeneous": "positives.heterogeneous",
    "curriculum": "positives.curriculum",
    "ratio": "positives.ratio",
    "variants": "positives.variants",
    "budget": "positives.budget",
    "lambda": "lambda_weight",
    "refresh": "refresh",
    "abstain": "abstain.study",
    "guide": "guide",
}
STUDIES = tuple(_MODULES)
AT_FULL = {"mw-from-base": "mw-in-domain"}  # studies that are another one at full
OWN = "own"  # the scale of a study that comes from a file (`studies.own`)
Recipe = Callable[[str, Path | None, Path], "Study"]


def study_recipe(name: str) -> Recipe:
    """Return the recipe of a study, one of `STUDIES`."""
    recipe: Recipe = importlib.import_module(f"raytriever.studies.recipes.{_MODULES[name]}").study
    return recipe
