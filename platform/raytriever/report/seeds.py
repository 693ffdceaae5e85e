"""Settings compared over seeds: runs that differ in the seed alone are several trainings of one setting.

The other tests of a comparison say whether these encoders differ on such queries. Another seed gives another encoder,
so only several seeds say whether their settings differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raytriever.evaluation.differences.seeds import SeedComparison, SeededResults, SeedMetrics
from raytriever.evaluation.protocol import metric_title
from raytriever.metrics.significance import LEVEL, holm
from raytriever.report.finished_runs import NOT_SETTINGS, FinishedRun
from raytriever.report.page import Cell, HtmlTable
from raytriever.report.tables import figure_cell, probability_cell, significance_cell
from raytriever.training.config import MAY_CHANGE

ONE_SEED = (
    "The tests say whether these trained encoders differ on such queries. Another seed gives another encoder: to "
    "compare settings, train each of them with several seeds and give all runs."
)
_SEED = "seed"
_NO_SETTING = {_SEED, *MAY_CHANGE, *NOT_SETTINGS}


def seed_tables(
    runs: Sequence[FinishedRun], names: Mapping[tuple[int, str], str], queries: Mapping[str, Mapping[str, Any]]
) -> list[HtmlTable]:
    """Return a table that compares settings over queries and seeds; none if no setting has runs of two seeds.

    `names` are those of `comparison.row_names`.
    """
    trained = {label: [names[index, "after"] for index in own] for label, own in _settings(runs).items()}
    if all(len(own) < 2 for own in trained.values()):
        return []
    # Rows that all runs share are the encoder before training and BM25.
    shared = [{name for (index, _), name in names.items() if index == one} for one in _trained(runs)]
    rows = trained | {name: [name] for name in sorted(set.intersection(*shared))}
    results = SeededResults(
        {
            (label, dataset): [
                _metrics(whole["models"][name], number if label in trained else None) for number, name in enumerate(own)
            ]
            for dataset, whole in queries.items()
            for label, own in rows.items()
            if all(name in whole["models"] for name in own)
        }
    )
    return [_table(results, {label: len(own) for label, own in rows.items()})]


def _trained(runs: Sequence[FinishedRun]) -> list[int]:
    return [index for index, run in enumerate(runs) if run.trained]


def _settings(runs: Sequence[FinishedRun]) -> dict[str, list[int]]:
    """Return the runs of each setting, one for each seed. A setting is named by what differs from the others."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, int]] = {}
    for index in _trained(runs):
        settings = runs[index].settings
        kept = tuple(sorted((k, v) for k, v in settings.items() if k.rpartition(".")[2] not in _NO_SETTING))
        seed = " ".join(value for key, value in settings.items() if key.rpartition(".")[2] == _SEED)
        groups.setdefault(kept, {}).setdefault(seed, index)
    every = [dict(kept) for kept in groups]
    differing = [
        key for key in dict.fromkeys(key for one in every for key in one) if len({o.get(key) for o in every}) > 1
    ]
    named = (", ".join(f"{key} {dict(kept).get(key, 'unset')}" for key in differing) or "trained" for kept in groups)
    return {name: list(seeds.values()) for name, seeds in zip(named, groups.values(), strict=True)}


def _metrics(content: Mapping[str, Any], seed: int | None) -> SeedMetrics:
    values = {metric: np.array(one, np.float64) for metric, one in content["metrics"].items()}
    return SeedMetrics(seed, {metric: float(np.nanmean(one)) for metric, one in values.items()}, values)


def _table(results: SeededResults, seeds: Mapping[str, int]) -> HtmlTable:
    cells: list[list[str | Cell]] = []
    for metric in dict.fromkeys(name for one in results.cells.values() for name in one[0].metrics):
        tested: list[tuple[str, str, str, SeedComparison]] = []
        for dataset, (row, other) in itertools.product(results.datasets, itertools.combinations(seeds, 2)):
            if max(seeds[row], seeds[other]) > 1 and all(results.has(one, dataset, metric) for one in (row, other)):
                better, worse = sorted((row, other), key=lambda one: -results.mean(one, dataset, metric))
                tested.append((dataset, better, worse, results.compare(better, worse, dataset, metric)))
        tested = [one for one in tested if np.isfinite(one[3].p)]
        for (dataset, row, other, one), p in zip(tested, holm([one[3].p for one in tested]), strict=True):
            of_seeds = " and ".join(str(seeds[name]) for name in (row, other))
            cells.append(
                [
                    dataset,
                    metric_title(metric),
                    row,
                    other,
                    significance_cell(float(p)),
                    figure_cell(one.difference, signed=True),
                    of_seeds,
                    probability_cell(one.p),
                ]
            )
    columns = ["data set", "metric", "setting", "against", "significant", "difference", "seeds", "p"]
    note = (
        "Runs that differ in the seed alone are one setting. The error of a difference has a part of the queries and a "
        "part of the seeds. Significant: p, after Holm's correction over the pairs and data sets of a metric, is below "
        f"{LEVEL}. A setting with one seed is not tested."
    )
    return HtmlTable("Settings over seeds", columns, cells, note)
