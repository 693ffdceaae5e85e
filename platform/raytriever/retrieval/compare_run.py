"""A finished run, wherever it is kept: its figures, settings, curves, and what it found for every query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Curve = list[tuple[int, float]]
Figures = dict[str, dict[str, dict[str, float | None]]]  # by model, data set and metric


@dataclass(frozen=True)
class FinishedRun:
    """One of the runs that are compared.

    Args:
        name: on the page.
        figures: by model, data set and metric. Of a training run the model is `after`, what it is compared with
            `before` and `bm25`; of an evaluation each has its own name.
        splits: of each data set.
        settings: `section.name` and its value as text.
        curves: `loss` and `dev_loss` by step, of a training run.
        queries: by data set, the content of `per_query/DATASET.json`.
        trained: whether it is a training run.
    """

    name: str
    figures: Figures
    splits: Mapping[str, str]
    settings: Mapping[str, str]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    queries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trained: bool = False
