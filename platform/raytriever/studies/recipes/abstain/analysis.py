"""Analysis of the study `abstain`: metrics of every row, intervals over resampled questions, transfer of thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.evaluation.differences.seeds import Cell, SeededResults, SeedMetrics
from raytriever.metrics.selective import bootstrap_interval, pseudo_values, resampling_weights
from raytriever.studies.definition import Evaluated, StudyAnalysis
from raytriever.studies.page import title_of, value_text
from raytriever.studies.recipes.abstain.claims import POOLED
from raytriever.studies.recipes.abstain.confidences import SCORE
from raytriever.studies.recipes.abstain.figures import save_risk_coverage, save_transfer
from raytriever.studies.recipes.abstain.measures import SystemMeasures, read_answers

SAMPLES, SEED = 1_000, 0

Rows = list[list[str]]


def analyse(
    datasets: Sequence[tuple[str, str]],
    temperatures: Mapping[str, float],
    baseline: str,
    proposed: str,
    drawn: Sequence[str],
    evaluations: Mapping[Cell, Sequence[Evaluated]],
) -> StudyAnalysis:
    """Analyse the evaluations of all rows.

    Args:
        datasets: names of the test and dev questions of each data set.
        temperatures: unit of the scores in a softmax, by row.
        baseline: row that the others are compared with.
        proposed: row whose score the best confidence of every row is compared with.
        drawn: rows in the figures.
        evaluations: evaluations by row and data set.

    Raises:
        StorageError: a file of an evaluation was damaged or changed.
        MetricInputError: no best document of the dev questions is relevant, or all are.
    """
    systems: dict[str, dict[int | None, SystemMeasures]] = {}
    for row, temperature in temperatures.items():
        for at, one in enumerate(evaluations[row, datasets[0][0]]):
            test, dev = (
                {names[0]: read_answers(evaluations[row, names[side]][at], temperature) for names in datasets}
                for side in (0, 1)
            )
            systems.setdefault(row, {})[one.seed] = SystemMeasures(dev, test)
    measured = _Measured(systems, [name for name, _ in datasets])
    intervals, differences = measured.intervals(), measured.differences(baseline)
    at_threshold = measured.means(lambda one: {name: one.at_threshold(name) for name in one.all_test})
    areas = measured.means(lambda one: {name: measured.areas(one, name) for name in one.all_test})
    others = measured.by_seed(lambda one: one.best_alternative)
    best = measured.best_confidences(proposed)
    content = {
        "confidence": 0.95,
        "samples": SAMPLES,
        "intervals": intervals,
        f"minus {baseline}": differences,
        "thresholds": measured.by_seed(lambda one: dict(one.thresholds)),
        "f1 by source and target": measured.transfer,
        "at the threshold": at_threshold,
        "aurc by confidence": areas,
        "best other confidence": others,
        f"aurc by the best confidence, minus {proposed} by its score": best,
    }
    return StudyAnalysis(
        measured.results(),
        {
            "95 % intervals over resampled questions": _interval_table(intervals),
            f"Difference from {baseline}, with 95 % intervals over resampled questions": _difference_table(differences),
            "F1 on test questions, by the dev questions that chose the threshold": _transfer_table(measured.transfer),
            "At the threshold of all data sets": _threshold_table(at_threshold),
            "AURC by confidence, all data sets in one pool": _confidence_table(areas, others),
            f"AURC by the confidence that is best on dev, and its difference from {proposed} by its score": _best_table(
                best
            ),
        },
        _finite(content),
        lambda folder: _draw(folder, measured, drawn),
    )


@dataclass(frozen=True)
class _Measured:
    """Measures of all rows by seed, on data sets without the pool."""

    systems: Mapping[str, Mapping[int | None, SystemMeasures]]
    datasets: Sequence[str]

    def results(self) -> SeededResults:
        """Return the metrics of all rows, with pseudo-values of each question."""
        cells: dict[Cell, list[SeedMetrics]] = {}
        for row, seeds in self.systems.items():
            for name in (*self.datasets, POOLED):
                for seed, one in seeds.items():
                    statistics, count = one.statistics[name], len(one.all_test[name].right)
                    metrics = {metric: one.value(name, metric) for metric in statistics if metric in _SHOWN}
                    values = {metric: pseudo_values(statistics[metric], count) for metric in metrics.keys() & _SMOOTH}
                    cells.setdefault((row, name), []).append(SeedMetrics(seed, metrics, values))
        return SeededResults(cells)

    @cached_property
    def samples(self) -> dict[str, dict[str, dict[str, Float64[ndarray, " samples"]]]]:
        """Metrics of resampled questions by row, data set and metric: means over the seeds of a row."""
        samples: dict[str, dict[str, dict[str, ndarray]]] = {row: {} for row in self.systems}
        for name in (*self.datasets, POOLED):
            weights = self._weights(name)
            for row, seeds in self.systems.items():
                by_seed = [one.statistics[name] for one in seeds.values()]
                samples[row][name] = {
                    metric: np.mean([statistics[metric](weights) for statistics in by_seed], axis=0)
                    for metric in by_seed[0]
                }
        return samples

    def _weights(self, dataset: str) -> Float64[ndarray, "samples questions"]:
        """Return how often each sample has each question of a data set; the same for all rows."""
        first = next(iter(next(iter(self.systems.values())).values()))
        return resampling_weights(first.all_test[dataset].counts, SAMPLES, SEED)

    def intervals(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Return value and bounds by row, data set and metric."""
        return {
            row: {
                name: {
                    metric: [self._value(row, name, metric), *bootstrap_interval(values)]
                    for metric, values in by_metric.items()
                }
                for name, by_metric in by_dataset.items()
            }
            for row, by_dataset in self.samples.items()
        }

    def differences(self, baseline: str) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Return difference from a row and bounds, by row, data set and metric."""
        return {
            row: {
                name: {
                    metric: [
                        self._value(row, name, metric) - self._value(baseline, name, metric),
                        *bootstrap_interval(values - self.samples[baseline][name][metric]),
                    ]
                    for metric, values in by_metric.items()
                }
                for name, by_metric in by_dataset.items()
            }
            for row, by_dataset in self.samples.items()
            if row != baseline
        }

    def best_confidences(self, proposed: str) -> dict[str, dict[str, Any]]:
        """Return the AURC of each row by its best confidence, and the difference from a row's score; one pool."""
        weights = self._weights(POOLED)
        whole = np.ones((1, weights.shape[1]))
        reference, resampled = self._value(proposed, POOLED, "aurc"), self.samples[proposed][POOLED]["aurc"]
        best: dict[str, dict[str, Any]] = {}
        for row, seeds in self.systems.items():
            areas = [one.area(POOLED, one.best_confidence) for one in seeds.values()]
            value = float(np.mean([area(whole)[0] for area in areas]))
            samples = np.mean([area(weights) for area in areas], axis=0)
            best[row] = {
                "confidence": [one.best_confidence for one in seeds.values()],
                "aurc": [value, *bootstrap_interval(samples)],
                "difference": [value - reference, *bootstrap_interval(samples - resampled)],
            }
        return best

    def _value(self, row: str, dataset: str, metric: str) -> float:
        """Return a metric of all questions, the mean over the seeds."""
        return float(np.mean([one.value(dataset, metric) for one in self.systems[row].values()]))

    @cached_property
    def transfer(self) -> dict[str, dict[str, dict[str, float]]]:
        """F1 by row, the data set whose dev questions chose the threshold, and the data set of the test questions."""
        every = (*self.datasets, POOLED)

        def matrix(one: SystemMeasures) -> dict[str, dict[str, float]]:
            return {
                source: {
                    target: float(one.f1(target, source)(np.ones((1, len(one.all_test[target].right))))[0])
                    for target in every
                }
                for source in every
            }

        return self.means(matrix)

    @staticmethod
    def areas(one: SystemMeasures, dataset: str) -> dict[str, float]:
        """Return the AURC of each confidence on a data set."""
        whole = np.ones((1, len(one.all_test[dataset].right)))
        return {name: float(one.area(dataset, name)(whole)[0]) for name in one.all_test[dataset].confidence}

    def by_seed(self, of: Callable[[SystemMeasures], Any]) -> dict[str, list[Any]]:
        """Return a value of each seed, by row."""
        return {row: [of(one) for one in seeds.values()] for row, seeds in self.systems.items()}

    def means(self, of: Callable[[SystemMeasures], Any]) -> dict[str, Any]:
        """Return values in mappings of mappings by row, each the mean over the seeds."""
        return {row: _mean(values) for row, values in self.by_seed(of).items()}


_SHOWN = (
    "aurc",
    "excess_aurc",
    "f1",
    "precision_at_coverage_25",
    "precision_at_coverage_50",
    "squared_ece_platt",
    "squared_ece_isotonic",
    "nauc",
    "transfer_loss",
    "advantage",
)
# The others jump where a threshold passes a question, so pseudo-values do not estimate their variance
# (Efron, 1979): they are tested over seeds.
_SMOOTH = {"aurc", "excess_aurc", "f1", "squared_ece_platt", "squared_ece_isotonic", "transfer_loss", "advantage"}


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, or of each entry of mappings."""
    if isinstance(values[0], Mapping):
        return {key: _mean([value[key] for value in values]) for key in values[0]}
    return float(np.mean(values))


def _finite(content: Any) -> Any:
    """Return JSON values with null in place of numbers that are not finite."""
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _interval_table(intervals: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> Rows:
    table = [["metric", "data set", *intervals]]
    for metric, dataset in _cells(intervals):
        table.append(
            [title_of(metric), dataset, *(_bounds(metric, one[dataset][metric]) for one in intervals.values())]
        )
    return table


def _difference_table(differences: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> Rows:
    table = [["metric", "data set", *differences]]
    for metric, dataset in _cells(differences):
        values = [one[dataset][metric] for one in differences.values()]
        table.append(
            [title_of(metric), dataset, *(f"{value_text(metric, one[0])} ({_bounds(metric, one)})" for one in values)]
        )
    return table


def _cells(rows: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> Iterable[tuple[str, str]]:
    first = next(iter(rows.values()))
    return [(metric, dataset) for metric in _SHOWN for dataset in first if metric in first[dataset]]


def _bounds(metric: str, values: Sequence[float]) -> str:
    return f"{value_text(metric, values[1])} to {value_text(metric, values[2])}"


def _transfer_table(transfer: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Rows:
    names = list(next(iter(transfer.values())))
    table = [["row", "chosen on", *names]]
    for row, matrix in transfer.items():
        table += [[row, source, *(value_text("f1", matrix[source][name]) for name in names)] for source in names]
    return table


def _threshold_table(shares: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Rows:
    columns = list(next(iter(shares.values()))[POOLED])
    table = [["row", "data set", *(f"{column}, %" for column in columns)]]
    for row, by_dataset in shares.items():
        table += [
            [row, name, *(value_text("f1", one[column]) for column in columns)] for name, one in by_dataset.items()
        ]
    return table


def _confidence_table(areas: Mapping[str, Mapping[str, Mapping[str, float]]], best: Mapping[str, list[str]]) -> Rows:
    names = list(next(iter(areas.values()))[POOLED])
    table = [["row", *names, f"best on dev, without {SCORE}"]]
    for row, by_dataset in areas.items():
        values = [value_text("aurc", by_dataset[POOLED][name]) for name in names]
        table.append([row, *values, ", ".join(dict.fromkeys(best[row]))])
    return table


def _best_table(best: Mapping[str, Mapping[str, Any]]) -> Rows:
    table = [["row", "confidence", "AURC", "95 % interval", "difference", "95 % interval"]]
    for row, one in best.items():
        figures = [text for key in ("aurc", "difference") for text in _value_and_bounds(one[key])]
        table.append([row, ", ".join(dict.fromkeys(one["confidence"])), *figures])
    return table


def _value_and_bounds(values: Sequence[float]) -> tuple[str, str]:
    return value_text("aurc", values[0]), _bounds("aurc", values)


def _draw(folder: Path, measured: _Measured, drawn: Sequence[str]) -> dict[str, str]:
    rows = [row for row in drawn if row in measured.systems]
    captions = {}
    panels = {}
    for name in (*measured.datasets, POOLED):
        answers = {row: [one.all_test[name] for one in measured.systems[row].values()] for row in rows}
        panels[name] = {row: [(one.scores, one.right) for one in seeds] for row, seeds in answers.items()}
    save_risk_coverage(folder / "risk-coverage.png", panels)
    captions["risk-coverage.png"] = (
        "Share of wrong documents among those shown, by the share of questions shown, mean over seeds"
    )
    matrices = {row: measured.transfer[row] for row in rows}
    save_transfer(folder / "transfer.png", matrices)
    captions["transfer.png"] = "F1 by the dev questions that chose the threshold, mean over seeds"
    return captions
