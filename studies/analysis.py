"""Analysis of the study `abstain`: dev chooses a variant of each loss, test measures it; intervals over questions.

Its figure shows risk-coverage curves by the best confidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from cuts import figures
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.differences.differences_by_seed import Cell, SeededResults, SeedMetrics
from raytriever.evaluation.evaluated_datasets import EvaluationDataset
from raytriever.evaluation.results import without_nan
from raytriever.experiments.report.figures import label, lines, picture
from raytriever.metrics.answer_confidence import NAMES, SCORE
from raytriever.metrics.selective_retrieval import bootstrap_interval, resampling_weights
from selection import pseudo_values, risk_coverage
from system_metrics import GAINS, POOLED, QuestionReader, SystemMetrics, of_all

SAMPLES, SEED = 1_000, 0
PANEL = 3.4  # dimension of a panel in inches
_COLUMNS = 3
# Decimals and title of each metric.
_TITLES = {
    "f1": (3, "F1 at the threshold of all data sets"),
    "answered": (3, "Answered rightly, of those with an answer"),
    "aurc": (4, "AURC by the score, lower is better"),
    "aurc_best": (4, "AURC by the best confidence, lower is better"),
    "combined_gain": (4, "AURC by the score minus AURC by `combined`"),
    "shown_removed": (3, "Share shown, answer removed, lower is better"),
    "shown_foreign": (3, "Share shown, of another domain, lower is better"),
    "shown_hard": (3, "Share shown, entity replaced, lower is better"),
    "passages_f1": (3, "F1 of all passages whose score reaches one threshold"),
    **{metric: (3, f"this F1 minus that of {rule}") for metric, rule in GAINS.items()},
    "transfer_loss": (4, "F1 by the score lost at thresholds of other data sets, lower is better"),
}

Rows = list[list[str]]
BySeed = Mapping[int | None, SystemMetrics]
Nested = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Analysis:
    """Results computed from the evaluations of all variants.

    Args:
        results: metrics of the rows, with pseudo-values of each question, for the claims.
        tables: tables of the page by title: a row of titles, then the other rows.
        content: all numbers of these tables and of the figure, as JSON values.
        plot: plots the figure into a folder, and returns its caption by file name.
    """

    results: SeededResults
    tables: Mapping[str, Rows]
    content: Mapping[str, Any]
    plot: Callable[[Path], Mapping[str, str]]


def title_of(metric: str) -> str:
    """Return the printed name of a metric."""
    return _TITLES[metric][1]


def value_text(metric: str, value: float) -> str:
    """Return the printed value of a metric; `-` if it is not finite."""
    return f"{value:.{_TITLES[metric][0]}f}" if math.isfinite(value) else "-"


def read_variants(
    datasets: Mapping[str, tuple[EvaluationDataset, EvaluationDataset]],
    evaluations: Mapping[str, Mapping[int | None, Path]],
) -> dict[str, BySeed]:
    """Read the measures of variants by row and seed.

    Args:
        datasets: test and dev questions of each data set.
        evaluations: directories by row and seed.
    """
    parts: dict[str, dict[int | None, tuple[dict[str, Any], ...]]] = {}
    for name, (test, dev) in datasets.items():
        reader = QuestionReader(open_dataset(test.sources[0], [test.split], max_bad_rows=1.0))
        for row, seeds in evaluations.items():
            for seed, folder in seeds.items():
                four = parts.setdefault(row, {}).setdefault(seed, ({}, {}, {}, {}))
                four[0][name], four[2][name] = reader.read(folder, dev.name)
                four[1][name], four[3][name] = reader.read(folder, test.name)
    return {row: {seed: SystemMetrics(*four) for seed, four in seeds.items()} for row, seeds in parts.items()}


def analyse(variants: Mapping[str, BySeed], candidates: Mapping[str, Sequence[str]], baseline: str) -> Analysis:
    """Analyze the measures of all variants.

    Args:
        candidates: rows of the variants of each loss, of which `choose_variant` chooses the row of the loss; the other
            rows are encoders as they are.
    """
    names = list(next(iter(next(iter(variants.values())).values())).test)
    chosen = {
        loss: choose_variant({variant: variants[variant] for variant in some}) for loss, some in candidates.items()
    }
    trained = {variant for some in candidates.values() for variant in some}
    rows = {row: seeds for row, seeds in variants.items() if row not in trained}
    rows |= {loss: variants[variant] for loss, variant in chosen.items()}
    evaluated = _Evaluated(rows, names)
    intervals, differences = evaluated.intervals(), evaluated.intervals(baseline)
    best = {row: [seed.best for seed in seeds.values()] for row, seeds in rows.items()}
    areas = evaluated.means(
        lambda choice: {name: of_all(choice.area(POOLED, name), sum(choice.counts[POOLED])) for name in NAMES}
    )
    transfer = evaluated.means(
        lambda choice: {
            source: {
                target: of_all(choice.score_f1(target, source), len(test)) for target, test in choice.all_test.items()
            }
            for source in choice.all_dev
        }
    )
    rules = evaluated.means(lambda choice: {rule: figures(kept) for rule, kept in choice.kept[POOLED].items()})
    of_variants = {row: _of_variant(seeds) for row, seeds in variants.items()}
    content = {
        "confidence": 0.95,
        "samples": SAMPLES,
        "intervals": intervals,
        f"minus {baseline}": differences,
        "variants": of_variants,
        "chosen variants": chosen,
        "best confidence": best,
        "aurc by confidence": areas,
        "f1 by source and target": transfer,
        "passages kept by rule": rules,
    }
    return Analysis(
        evaluated.results(),
        {
            "95 % intervals over resampled questions": _interval_table(intervals, with_value=False),
            f"Difference from {baseline}, with 95 % intervals over resampled questions": _interval_table(
                differences, with_value=True
            ),
            "Variants: dev questions choose one of each loss with the first seed": _variants_table(of_variants, chosen),
            "AURC by confidence, all data sets in one pool": [
                ["row", *NAMES, "best on dev"],
                *(
                    [row, *(value_text("aurc", area[name]) for name in NAMES), ", ".join(dict.fromkeys(best[row]))]
                    for row, area in areas.items()
                ),
            ],
            "Passages kept of each ranking, all data sets in one pool": [
                ["row", "rule", *next(iter(next(iter(rules.values())).values()))],
                *(
                    [row, rule, *(f"{value:.3f}" for value in item.values())]
                    for row, by_rule in rules.items()
                    for rule, item in by_rule.items()
                ),
            ],
            "F1 on test questions by the score, by the dev questions that chose the threshold": [
                ["row", "chosen on", *names, POOLED],
                *(
                    [row, source, *(value_text("f1", value) for value in values.values())]
                    for row, by_source in transfer.items()
                    for source, values in by_source.items()
                ),
            ],
        },
        without_nan(content),
        evaluated.plot,
    )


def choose_variant(variants: Mapping[str, BySeed]) -> str:
    """Return the variant whose first seed has the lowest AURC by its best confidence on dev; the first of equal
    ones."""
    return min(variants, key=lambda variant: next(iter(variants[variant].values())).dev_area)


def _of_variant(seeds: BySeed) -> dict[str, list[Any]]:
    """Return the figures of a variant by seed: on dev, and on the test questions of the pool."""
    return {
        "seed": list(seeds),
        "confidence": [seed.best for seed in seeds.values()],
        "dev": [seed.dev_area for seed in seeds.values()],
        **{name: [seed.value(POOLED, name) for seed in seeds.values()] for name in ("aurc", "aurc_best", "f1")},
    }


def _variants_table(variants: Mapping[str, Mapping[str, Sequence[Any]]], chosen: Mapping[str, str]) -> Rows:
    titles = ["variant", "seed", "chosen", "best confidence", "AURC on dev"]
    table = [[*titles, f"AURC by the {SCORE}", "AURC by the best confidence", "F1"]]
    for variant, seeds in variants.items():
        for seed, confidence, *values in zip(*seeds.values(), strict=True):
            texts = map(value_text, ("aurc", "aurc", "aurc", "f1"), values)
            mark = "yes" if variant in chosen.values() else ""
            table.append([variant, "-" if seed is None else str(seed), mark, confidence, *texts])
    return table


@dataclass(frozen=True)
class _Evaluated:
    """Measures of all rows by seed, on data sets without the pool."""

    systems: Mapping[str, BySeed]
    datasets: Sequence[str]

    def results(self) -> SeededResults:
        """Return the metrics of all rows, with pseudo-values of each question."""
        cells: dict[Cell, list[SeedMetrics]] = {}
        for row, seeds in self.systems.items():
            for name in (*self.datasets, POOLED):
                for seed, results in seeds.items():
                    statistics, count = results.statistics[name], len(results.all_test[name])
                    metrics = {metric: results.value(name, metric) for metric in statistics}
                    values = {metric: pseudo_values(statistics[metric], count) for metric in statistics}
                    cells.setdefault((row, name), []).append(SeedMetrics(seed, metrics, values))
        return SeededResults(cells)

    @cached_property
    def samples(self) -> dict[str, dict[str, dict[str, Float64[ndarray, " samples"]]]]:
        """Metrics of resampled questions by row, data set and metric: means over the seeds of a row."""
        samples: dict[str, dict[str, dict[str, ndarray]]] = {row: {} for row in self.systems}
        counts = next(iter(next(iter(self.systems.values())).values())).counts
        for name in (*self.datasets, POOLED):
            weights = resampling_weights(counts[name], SAMPLES, SEED)  # the same for all rows
            for row, seeds in self.systems.items():
                by_seed = [seed.statistics[name] for seed in seeds.values()]
                samples[row][name] = {
                    metric: np.mean([statistics[metric](weights) for statistics in by_seed], axis=0)
                    for metric in by_seed[0]
                }
        return samples

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

    def _value(self, row: str, dataset: str, metric: str) -> float:
        """Return a metric of all questions, the mean over the seeds."""
        return float(np.mean([system.value(dataset, metric) for system in self.systems[row].values()]))

    def means(self, of: Callable[[SystemMetrics], Any]) -> dict[str, Any]:
        """Return values in mappings of mappings by row, each the mean over the seeds."""
        return {row: _mean([of(seed) for seed in seeds.values()]) for row, seeds in self.systems.items()}

    def plot(self, folder: Path) -> dict[str, str]:
        """Plot a risk-coverage curve of each row, the mean over its seeds, in a panel for each data set."""
        names, file = [*self.datasets, POOLED], "risk-coverage.png"
        columns = min(_COLUMNS, len(names))
        rows = math.ceil(len(names) / columns)
        with picture(folder / file, PANEL * columns, 0.4 + 0.9 * PANEL * rows) as figure:
            for number, name in enumerate(names, 1):
                axes = figure.add_subplot(rows, columns, number, title=name)
                for (row, seeds), (color, dash) in zip(self.systems.items(), lines(), strict=False):
                    curves = [
                        risk_coverage(seed.values(name, seed.best), seed.all_test[name].right)
                        for seed in seeds.values()
                    ]
                    count = len(next(iter(seeds.values())).all_test[name])
                    coverage = np.arange(1, count + 1) / count
                    risk = np.mean([np.interp(coverage, curve.coverage, curve.risk) for curve in curves], axis=0)
                    axes.plot(coverage, risk, color=color, linestyle=dash, label=label(row))
                axes.set(xlabel="fraction of questions shown", xlim=(0, 1), ylim=(0, 1))
            figure.axes[0].set_ylabel("wrong, of those shown")
            figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        caption = (
            "Fraction of wrong documents among those shown, by the fraction of questions shown in the order of the "
            "best "
        )
        return {file: f"{caption}confidence, mean over seeds"}


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, or of each entry of mappings."""
    if isinstance(values[0], Mapping):
        return {key: _mean([value[key] for value in values]) for key in values[0]}
    return float(np.mean(values))


def _interval_table(intervals: Nested, with_value: bool) -> Rows:
    first = next(iter(intervals.values()))
    table = [["metric", "data set", *intervals]]
    for metric in dict.fromkeys(metric for by_metric in first.values() for metric in by_metric):
        for dataset in first:
            if metric in first[dataset]:
                cells = [
                    [value_text(metric, value) for value in interval[dataset][metric]]
                    for interval in intervals.values()
                ]
                texts = [
                    f"{value} ({low} to {high})" if with_value else f"{low} to {high}" for value, low, high in cells
                ]
                table.append([title_of(metric), dataset, *texts])
    return table
