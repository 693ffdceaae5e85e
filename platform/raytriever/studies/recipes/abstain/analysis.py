"""Analysis of the study `abstain`: metrics of every row, intervals over resampled questions, transfer of thresholds.

Its figures are risk-coverage curves, and the F1 of thresholds from other data sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import ndarray

from raytriever.evaluation.differences.seeds import Cell, SeededResults, SeedMetrics
from raytriever.evaluation.results import without_nan
from raytriever.metrics.confidence import SCORE
from raytriever.metrics.selective import (
    Statistic,
    bootstrap_interval,
    pseudo_values,
    resampling_weights,
    risk_coverage,
)
from raytriever.report.figures import PANEL, label, lines, picture
from raytriever.studies.definition import Evaluated, StudyAnalysis
from raytriever.studies.page import title_of, value_text
from raytriever.studies.recipes.abstain.measures import POOLED, SystemAnswers, SystemMeasures, read_answers

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
    intervals, differences = measured.intervals(), measured.intervals(baseline)
    at_threshold = measured.means(lambda one: {name: one.at_threshold(name) for name in one.all_test})
    areas = measured.means(
        lambda one: {
            name: {confidence: _of_all(one.area(name, confidence), answers) for confidence in answers.confidence}
            for name, answers in one.all_test.items()
        }
    )
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
            "95 % intervals over resampled questions": _interval_table(intervals, with_value=False),
            f"Difference from {baseline}, with 95 % intervals over resampled questions": _interval_table(
                differences, with_value=True
            ),
            "F1 on test questions, by the dev questions that chose the threshold": _nested_table(
                "chosen on", "", measured.transfer
            ),
            "At the threshold of all data sets": _nested_table("data set", ", %", at_threshold),
            "AURC by confidence, all data sets in one pool": _confidence_table(areas, others),
            f"AURC by the confidence that is best on dev, and its difference from {proposed} by its score": _best_table(
                best
            ),
        },
        without_nan(content),
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

    def intervals(self, baseline: str = "") -> dict[str, dict[str, dict[str, list[float]]]]:
        """Return value and bounds by row, data set and metric; with a baseline those of the difference from it."""

        def interval(row: str, name: str, metric: str) -> list[float]:
            value, samples = self._value(row, name, metric), self.samples[row][name][metric]
            if baseline:
                value = value - self._value(baseline, name, metric)
                samples = samples - self.samples[baseline][name][metric]
            return [value, *bootstrap_interval(samples)]

        return {
            row: {
                name: {metric: interval(row, name, metric) for metric in by_metric}
                for name, by_metric in by_dataset.items()
            }
            for row, by_dataset in self.samples.items()
            if row != baseline
        }

    def best_confidences(self, proposed: str) -> dict[str, dict[str, Any]]:
        """Return the AURC of each row by its best confidence, and the difference from a row's score; one pool."""
        weights = self._weights(POOLED)
        reference, resampled = self._value(proposed, POOLED, "aurc"), self.samples[proposed][POOLED]["aurc"]
        best: dict[str, dict[str, Any]] = {}
        for row, seeds in self.systems.items():
            areas = [one.area(POOLED, one.best_confidence) for one in seeds.values()]
            answers = [one.all_test[POOLED] for one in seeds.values()]
            value = float(np.mean([_of_all(*one) for one in zip(areas, answers, strict=True)]))
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
        return self.means(
            lambda one: {
                source: {target: _of_all(one.f1(target, source), answers) for target, answers in one.all_test.items()}
                for source in one.all_dev
            }
        )

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


def _of_all(statistic: Statistic, answers: SystemAnswers) -> float:
    """Return a statistic of all questions of a data set."""
    return float(statistic(np.ones((1, len(answers.right))))[0])


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, or of each entry of mappings."""
    if isinstance(values[0], Mapping):
        return {key: _mean([value[key] for value in values]) for key in values[0]}
    return float(np.mean(values))


Nested = Mapping[str, Mapping[str, Mapping[str, Any]]]


def _interval_table(intervals: Nested, with_value: bool) -> Rows:
    first = next(iter(intervals.values()))
    table = [["metric", "data set", *intervals]]
    for metric in _SHOWN:
        for dataset in first:
            if metric in first[dataset]:
                cells = [_value_and_bounds(metric, one[dataset][metric]) for one in intervals.values()]
                texts = [f"{value} ({bounds})" if with_value else bounds for value, bounds in cells]
                table.append([title_of(metric), dataset, *texts])
    return table


def _nested_table(title: str, unit: str, values: Nested) -> Rows:
    """Return a table of shares by row, by the name under a title, and by column."""
    columns = list(next(iter(next(iter(values.values())).values())))
    table = [["row", title, *(f"{column}{unit}" for column in columns)]]
    for row, by_name in values.items():
        table += [[row, name, *(value_text("f1", one[column]) for column in columns)] for name, one in by_name.items()]
    return table


def _confidence_table(areas: Nested, best: Mapping[str, list[str]]) -> Rows:
    names = list(next(iter(areas.values()))[POOLED])
    table = [["row", *names, f"best on dev, without {SCORE}"]]
    for row, by_dataset in areas.items():
        values = [value_text("aurc", by_dataset[POOLED][name]) for name in names]
        table.append([row, *values, ", ".join(dict.fromkeys(best[row]))])
    return table


def _best_table(best: Mapping[str, Mapping[str, Any]]) -> Rows:
    table = [["row", "confidence", "AURC", "95 % interval", "difference", "95 % interval"]]
    for row, one in best.items():
        figures = [text for key in ("aurc", "difference") for text in _value_and_bounds("aurc", one[key])]
        table.append([row, ", ".join(dict.fromkeys(one["confidence"])), *figures])
    return table


def _value_and_bounds(metric: str, values: Sequence[float]) -> tuple[str, str]:
    value, low, high = (value_text(metric, one) for one in values)
    return value, f"{low} to {high}"


def _draw(folder: Path, measured: _Measured, drawn: Sequence[str]) -> dict[str, str]:
    rows = [row for row in drawn if row in measured.systems]
    panels = {}
    for name in (*measured.datasets, POOLED):
        answers = {row: [one.all_test[name] for one in measured.systems[row].values()] for row in rows}
        panels[name] = {row: [(one.scores, one.right) for one in seeds] for row, seeds in answers.items()}
    _save_risk_coverage(folder / "risk-coverage.png", panels)
    _save_transfer(folder / "transfer.png", {row: measured.transfer[row] for row in rows})
    return {
        "risk-coverage.png": (
            "Share of wrong documents among those shown, by the share of questions shown, mean over seeds"
        ),
        "transfer.png": "F1 by the dev questions that chose the threshold, mean over seeds",
    }


_COLUMNS = 3
Answers = tuple[Float64[ndarray, " questions"], Bool[ndarray, " questions"]]  # scores, and whether they are right


@contextmanager
def _panels(path: Path, titles: Iterable[str]) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure with a panel for each title, and write it to `path`, a PNG with the SVG next to it."""
    names = list(titles)
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    with picture(path, PANEL * columns, 0.4 + 0.9 * PANEL * rows) as figure:
        panels = [figure.add_subplot(rows, columns, number, title=name) for number, name in enumerate(names, 1)]
        yield figure, panels


def _save_risk_coverage(path: Path, panels: Mapping[str, Mapping[str, Sequence[Answers]]]) -> None:
    """Draw a risk-coverage curve of each row, the mean over its seeds, a panel for each data set."""
    with _panels(path, panels) as (figure, drawn):
        for axes, systems in zip(drawn, panels.values(), strict=True):
            for (name, seeds), (colour, dash) in zip(systems.items(), lines(), strict=False):
                curves = [risk_coverage(scores, right) for scores, right in seeds]
                coverage = np.arange(1, len(seeds[0][1]) + 1) / len(seeds[0][1])
                risk = np.mean([np.interp(coverage, curve.coverage, curve.risk) for curve in curves], axis=0)
                axes.plot(coverage, risk, color=colour, linestyle=dash, label=label(name))
            axes.set(xlabel="share of questions shown", xlim=(0, 1), ylim=(0, 1))
        figure.axes[0].set_ylabel("wrong, of those shown")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _save_transfer(path: Path, matrices: Nested) -> None:
    """Draw the F1 of each row, by where the threshold was chosen (from top to bottom) and used (from left to right)."""
    values = [value for matrix in matrices.values() for one in matrix.values() for value in one.values()]
    with _panels(path, map(label, matrices)) as (figure, drawn):
        for axes, matrix in zip(drawn, matrices.values(), strict=True):
            table = np.array([list(one.values()) for one in matrix.values()])
            axes.imshow(table, vmin=min(values), vmax=max(values), cmap="viridis")
            middle = (min(values) + max(values)) / 2
            for (y, x), value in np.ndenumerate(table):
                colour = "black" if value > middle else "white"
                axes.text(x, y, f"{100 * value:.0f}", ha="center", va="center", color=colour, fontsize=8)
            names = list(matrix)
            axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
            axes.set_yticks(range(len(names)), names)
            axes.grid(False)
        figure.supxlabel("test questions")
        figure.supylabel("threshold chosen on dev questions of")
