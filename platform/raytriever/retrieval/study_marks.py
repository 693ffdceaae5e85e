"""Marks of significance in a study's table: rows of a block against its baselines, corrected over the data sets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from raytriever.metrics.comparison import FIRST_MARKS, LEVEL, SECOND_MARKS
from raytriever.metrics.holm import holm
from raytriever.retrieval.study_results import ABOVE, BELOW, NOISE, StudyResults


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


def best_of_block(results: StudyResults, block: Block, metrics: Collection[str]) -> dict[tuple[str, str], list[str]]:
    """Find the rows of a block that are the best of a column by more than noise.

    A row is the best if it is above each other row in every seed and by the test, at the largest of these p-values
    after Holm's correction over the data sets. It is the second if it is so above each of the rest.

    Args:
        results: what was measured.
        block: the rows that are compared.
        metrics: the metrics for which more is better.

    Returns:
        By data set and metric the best row, or the best and the second.
    """
    best: dict[tuple[str, str], list[str]] = {}
    for metric in metrics:
        there = {one: [row for row in block.rows if results.has(row, one, metric)] for one in results.datasets}
        means = {(one, row): results.mean(row, one, metric) for one, rows in there.items() for row in rows}
        ordered = {
            one: [row for _, row in sorted(((-means[one, row], row) for row in rows), key=itemgetter(0))]
            for one, rows in there.items()
        }
        for place in (0, 1):
            tests: dict[str, float] = {}
            for one, rows in ordered.items():
                others = rows[place + 1 :]
                if others and len(best.get((one, metric), ())) == place:
                    found = [results.compare(rows[place], other, one, metric) for other in others]
                    tests[one] = max(each.p if each.outcome == ABOVE else 1.0 for each in found)
            for one, p in zip(tests, holm(list(tests.values())), strict=True):
                if p < LEVEL:
                    best.setdefault((one, metric), []).append(ordered[one][place])
    return best


def metrics_of(results: StudyResults, dataset: str) -> list[str]:
    """All figures that any row has on a data set, in their order."""
    found = [one for (_, name), found in results.found.items() if name == dataset for one in found]
    return list(dict.fromkeys(metric for one in found for metric in one.metrics))
