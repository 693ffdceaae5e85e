"""Marks of significance in a study's table: rows of a block against its baselines, corrected over the data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raytriever.metrics.comparison import FIRST_MARKS, LEVEL, SECOND_MARKS
from raytriever.metrics.holm import holm
from raytriever.retrieval.study_results import BELOW, NOISE, StudyResults


@dataclass(frozen=True)
class Block:
    """Rows that are compared with each other.

    Args:
        name: printed over them; empty where a study has one block.
        rows: labels in the results, and the names in print.
        baselines: labels of the rows that the others are marked against, at most two.
    """

    name: str
    rows: Mapping[str, str]
    baselines: Sequence[str]


def marks_of_block(results: StudyResults, block: Block) -> dict[tuple[str, str, str], str]:
    """Marks by row, data set and metric; p-values of one row, baseline and metric corrected over the data sets."""
    found: dict[tuple[str, str, str], str] = {}
    for baseline, marks in zip(block.baselines, (FIRST_MARKS, SECOND_MARKS), strict=False):
        for row in block.rows:
            for metric in dict.fromkeys(name for dataset in results.datasets for name in metrics_of(results, dataset)):
                both = [one for one in results.datasets if all(results.has(r, one, metric) for r in (row, baseline))]
                tests = {one: results.compare(row, baseline, one, metric) for one in both if row != baseline}
                tests = {name: one for name, one in tests.items() if np.isfinite(one.p)}
                corrected = holm([one.p for one in tests.values()])
                for (dataset, one), p in zip(tests.items(), corrected, strict=True):
                    if p < LEVEL and one.outcome != NOISE:
                        key = (row, dataset, metric)
                        found[key] = found.get(key, "") + marks[one.outcome == BELOW]
    return found


def metrics_of(results: StudyResults, dataset: str) -> list[str]:
    """All figures that any row has on a data set, in their order."""
    found = [one for (_, name), found in results.found.items() if name == dataset for one in found]
    return list(dict.fromkeys(metric for one in found for metric in one.metrics))
