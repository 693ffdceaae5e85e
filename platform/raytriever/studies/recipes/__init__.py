"""The studies of the papers' tables, in few modules, imported only when a study runs.

A module has `STUDIES`: functions of a `scale.StudyScale` that return a `studies.definition.Study`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raytriever.studies.definition import Study

_MODULES = {
    **dict.fromkeys(("mw-in-domain", "mw-zero-shot", "mw-ablation", "mw-convergence", "mw-from-base"), "auc"),
    **dict.fromkeys(("multi-positive", "heterogeneous", "curriculum"), "positives"),
    **dict.fromkeys(("ratio", "variants", "budget"), "ablations"),
    **dict.fromkeys(("lambda", "refresh"), "ours"),
    "abstain": "abstain.study",
    "guide": "ours",
}
STUDIES = tuple(_MODULES)
AT_FULL = {"mw-from-base": "mw-in-domain"}  # studies that are another one at full
OWN = "own"  # the scale of a study that comes from a file (`studies.own`)


def study_recipe(name: str) -> Callable[[str, Path | None, Path], Study]:
    """Return the recipe of a study, one of `STUDIES`: a function of the scale, the folder of the packs or None, and a
    folder for subsets of data sets."""
    from raytriever.studies.recipes.scale import StudyScale

    recipe = _recipe(name)
    return lambda scale, data_root, folder: recipe(StudyScale(scale, data_root, folder))


def study_summary(name: str) -> str:
    """Return the first line of a study's description."""
    return (_recipe(name).__doc__ or "").partition("\n")[0]


def _recipe(name: str) -> Callable[..., Study]:
    recipe: Callable[..., Study] = importlib.import_module(f"{__name__}.{_MODULES[name]}").STUDIES[name]
    return recipe
