"""Several models of a study side by side: each index's rates over recall, and how far queries drifted in training.

A model that is a training run's directory has its curve of the mean distance between queries and positives, which
its training has told step by step (`losses/distances.py`; out-of-distribution paper, Figure 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytriever.index.measure import Point
from raytriever.retrieval.figures_models import save_curves as save_steps
from raytriever.retrieval.ood import CUTOFFS
from raytriever.retrieval.ood_figures import save_curves
from raytriever.storage import committed_directory
from raytriever.tracking.steps import STEPS, curve

DRIFT = "query_positive_distance"


def save_across(folder: Path, results: Mapping[str, Mapping[str, Any]], places: Mapping[str, str]) -> None:
    """Write the pictures into a directory of their own; one there gives way.

    Args:
        folder: the directory.
        results: `results.json` of each model, by its name in pictures.
        places: the models as they were named, by the same names.

    Raises:
        StorageError: it cannot be written.
    """
    with committed_directory(folder, {"kind": "ood-across", "models": list(results)}, replace=True) as aside:
        for kind in dict.fromkeys(kind for one in results.values() for kind in one["indexes"]):
            for k in CUTOFFS:
                curves = {
                    name: [_point(point) for point in one["indexes"][kind]["curves"][str(k)]]
                    for name, one in results.items()
                    if kind in one["indexes"]
                }
                save_curves(aside / f"{kind}-rate-recall-{k}.png", curves, k, f"{kind}: rate and recall@{k}")
        drifts = {name: drift(Path(place)) for name, place in places.items()}
        if any(drifts.values()):
            save_steps(aside / f"{DRIFT}.png", drifts, "mean distance of a query and its positives")


def drift(model: Path) -> list[tuple[int, float]]:
    """The distance at every step of the run a model is of: its directory, or `model` within; empty where it is none."""
    folder = next((place for place in (model, model.parent) if (place / STEPS).is_file()), None)
    return [] if folder is None else curve(folder, DRIFT)


def _point(told: Mapping[str, Any]) -> Point:
    values = {name: float("nan") if value is None else value for name, value in told.items()}
    return Point(int(values["effort"]), values["recall"], values["candidates"], values["qps"])
