"""Coverage of confidence intervals, and false differences of the test over queries and seeds, by simulation.

Run: `python benchmarks/interval_coverage.py [--sets N] [--json PATH] [--markdown PATH]`. Each query of a data set has a
level and a difficulty, so that the scores of a query are correlated: a positive scores `gap + level + difficulty +
noise`, a negative `level + noise`, all normal. The true AUC is the mean of Obuchowski's estimator; the true value at a
threshold is that of a very large number of queries. All intervals are 95 % intervals. The old methods are those of
version 0.1.

Calibration error: the score of a query is normal with deviation 1.5, its probability is its logistic function, and the
true probability that of a steeper, flatter or shifted score. The true error is that of the same bins.

False differences: two equal systems, each trained with some seeds. A value is the sum of the query's difficulty, of the
query for this system (deviation 0.3), of the seed, and of the query for this seed (0.2). The old rule is: p < 0.05 by
the paired t-test over queries, and the same sign in every seed.

(This file is not `coverage.py`, because numba imports a package of that name.)"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray
from scipy.special import expit, logit, ndtr, ndtri

from ends import machine, parser
from raytriever.evaluation.differences.differences_by_seed import NOISE, SeededResults, SeedMetrics
from raytriever.metrics.answer_confidence import RankedQuestions
from raytriever.metrics.answer_threshold import achieve_answers
from raytriever.metrics.auc import FEW_MISORDERED, auc_interval
from raytriever.metrics.intervals import Proportion
from raytriever.metrics.pair_threshold import ScoredPools, achieve_pairs, ranked_relevance
from raytriever.metrics.score_to_probability import calibration_error
from raytriever.metrics.significance_tests import LEVEL, paired_t_test

AUCS = (0.6, 0.9, 0.99, 0.9992, 0.9995)
QUERIES = (10, 30, 100, 1000)
NEGATIVES = 20
DIFFICULTY = 0.7
# Queries from which the truth of a threshold is counted.
ENDLESS = 400_000
# Slope and shift of the true probability's log-odds against those of the given probability.
WRONG_PROBABILITIES = {"none": (1.0, 0.0), "small": (1.0, 0.2), "middle": (0.6, 0.3), "large": (0.5, 1.0)}
CALIBRATED_QUERIES = (50, 124, 300, 1000)
# Deviation over seeds, as large as the error of 300 queries in the middle.
SPREADS = {"none": 0.0, "small": 0.01, "as of queries": 0.03, "large": 0.1}
SEEDS, COMPARED_QUERIES = (2, 3, 5, 10), (50, 300, 1500)
THRESHOLDS = {"high": 0.995, "middle": 0.9}  # the fraction of negatives below


@dataclass(frozen=True)
class Population:
    """Distribution of the data sets.

    Args:
        gap: mean difference between the scores of positives and negatives.
        level: standard deviation of the level, which all scores of a query share.
        several: True for one to seven positives per query instead of one.
    """

    gap: float
    level: float
    several: bool

    def sample(self, rng: np.random.Generator, queries: int) -> ScoredPools:
        """Sample a data set with this number of queries."""
        level, difficulty = rng.normal(0, self.level, queries), rng.normal(0, DIFFICULTY, queries)
        counts = rng.integers(1, 8, queries) if self.several else np.ones(queries, np.int64)
        of_positives, of_negatives = np.repeat(np.arange(queries), counts), np.repeat(np.arange(queries), NEGATIVES)
        positives = self.gap + (level + difficulty)[of_positives] + rng.normal(size=len(of_positives))
        return ScoredPools(
            positives, level[of_negatives] + rng.normal(size=len(of_negatives)), of_positives, of_negatives
        )

    def auc(self, queries: int) -> float:
        """Return the mean AUC of data sets with this number of queries; one pair in `queries` is of a single query."""
        two, one = 2 + 2 * self.level**2 + DIFFICULTY**2, 2 + DIFFICULTY**2
        return float((1 - 1 / queries) * ndtr(self.gap / np.sqrt(two)) + ndtr(self.gap / np.sqrt(one)) / queries)


def population(auc: float, queries: int, level: float, several: bool) -> Population:
    """Return the population with this true AUC, by bisection."""
    low, high = 0.0, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if Population(middle, level, several).auc(queries) < auc else (low, middle)
    return Population(low, level, several)


def auc_cell(auc: float, queries: int, level: float, several: bool, sets: int, seed: int) -> dict[str, object]:
    """Return the coverage of the AUC intervals, new and old, over the data sets of one population."""
    sampled, rng = population(auc, queries, level, several), np.random.default_rng(seed)
    new, old, few, apart = [], [], [], 0
    for _ in range(sets):
        pools = sampled.sample(rng, queries)
        interval = auc_interval(pools.positives, pools.negatives, pools.positive_queries, pools.negative_queries)
        apart += interval.standard_error != interval.standard_error
        new.append(interval.low <= auc <= interval.high)
        few.append(interval.misordered < FEW_MISORDERED)
        # NaN bounds contain nothing.
        reach = ndtri(0.975) * interval.standard_error / max(interval.auc * (1 - interval.auc), 1e-300)
        old.append(
            expit(logit(interval.auc) - reach) <= auc <= expit(logit(interval.auc) + reach) if reach == reach else False
        )
    covered, warned = np.array(new), np.array(few)
    return {
        "figure": "AUC",
        "auc": auc,
        "queries": queries,
        "positives": "1 to 7" if several else "1",
        "level": level,
        "sets": sets,
        "new": float(covered.mean()),
        "old": float(np.mean(old)),
        "warned": float(warned.mean()),
        "new_without_warning": float(covered[~warned].mean()) if (~warned).any() else None,
        "sets_without_warning": int((~warned).sum()),
        "apart": apart / sets,
    }


def bootstrap(parts: ndarray, wholes: ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Return the old interval of pairs: percentiles of 400 resamples of whole queries."""
    sampled = rng.integers(0, len(parts), (400, len(parts)))
    whole = wholes[sampled].sum(1)
    fractions = parts[sampled].sum(1)[whole > 0] / whole[whole > 0]
    return tuple(np.quantile(fractions, [0.025, 0.975])) if len(fractions) else (np.nan, np.nan)


def achieve(pools: ScoredPools, score: float, queries: int) -> dict[str, Proportion]:
    """Return the fractions that a threshold of the score achieves, of queries and of pairs."""
    best = np.full(queries, -np.inf)
    np.maximum.at(best, pools.positive_queries, pools.positives)
    np.maximum.at(best, pools.negative_queries, pools.negatives)
    asked = RankedQuestions(best[:, None], ranked_relevance(pools, queries, 1), np.full(queries, ""))
    of_answers, of_pairs = achieve_answers(best >= score, asked), achieve_pairs(pools, score)
    fractions = (of_answers.answered, of_answers.top_precision, of_pairs.precision, of_pairs.recall)
    return dict(zip(("coverage", "top_precision", "precision", "recall"), fractions, strict=True))


def threshold_cells(
    queries: int, level: float, several: bool, where: str, sets: int, seed: int
) -> list[dict[str, object]]:
    """Return the coverage of each interval of the calibration table at one threshold."""
    sampled, rng = population(0.95, 1000, level, several), np.random.default_rng(seed)
    score = float(ndtri(THRESHOLDS[where]) * np.sqrt(1 + level**2))
    endless = achieve(sampled.sample(rng, ENDLESS), score, ENDLESS)
    covered: dict[str, list[bool]] = {name: [] for name in endless}
    old: dict[str, list[bool]] = {"precision": [], "recall": []}
    for _ in range(sets):
        pools = sampled.sample(rng, queries)
        for name, fraction in achieve(pools, score, queries).items():
            if fraction.total:
                covered[name].append(fraction.low <= endless[name].value <= fraction.high)
        relevant = np.bincount(pools.positive_queries[pools.positives >= score], minlength=queries)
        returned = relevant + np.bincount(pools.negative_queries[pools.negatives >= score], minlength=queries)
        for name, wholes in (
            ("precision", returned),
            ("recall", np.bincount(pools.positive_queries, minlength=queries)),
        ):
            if wholes.sum():
                low, high = bootstrap(relevant, wholes, rng)
                old[name].append(low <= endless[name].value <= high)
    return [
        {
            "figure": name,
            "truth": endless[name].value,
            "threshold": where,
            "queries": queries,
            "positives": "1 to 7" if several else "1",
            "level": level,
            "sets": len(of_sets),
            "new": float(np.mean(of_sets)),
            "old": float(np.mean(old[name])) if name in old else None,
        }
        for name, of_sets in covered.items()
    ]


def calibration_cell(wrong: str, queries: int, sets: int, seed: int) -> dict[str, object]:
    """Return how often the interval of the calibration error contains the true error, and the old estimate's mean."""
    (slope, shift), rng = WRONG_PROBABILITIES[wrong], np.random.default_rng(seed)
    covered, certain, truths, old = [], [], [], []
    for _ in range(sets):
        scores = rng.normal(0, 1.5, queries)
        probabilities, true = expit(scores), expit(slope * scores + shift)
        relevant = rng.random(queries) < true
        error = calibration_error(probabilities, relevant)
        bins = max(1, min(15, queries // 10))
        edges = np.sort(probabilities)[np.arange(1, bins) * queries // bins]
        bin_of = np.searchsorted(edges, probabilities, "right")
        truth = np.sqrt((np.bincount(bin_of, probabilities - true) ** 2 / np.bincount(bin_of)).sum() / queries)
        narrow = np.searchsorted(np.sort(probabilities)[np.arange(1, 15) * queries // 15], probabilities, "right")
        old.append(np.abs(np.bincount(narrow, probabilities - relevant)).sum() / queries)
        covered.append(error.low <= truth <= error.high)
        certain.append(error.low > 0)
        truths.append(truth)
    return {
        "figure": "calibration error",
        "wrong": wrong,
        "queries": queries,
        "sets": sets,
        "truth": float(np.mean(truths)),
        "old": float(np.mean(old)),
        "new": float(np.mean(covered)),
        "above_zero": float(np.mean(certain)),
    }


def false_difference_cell(spread: str, seeds: int, queries: int, sets: int, seed: int) -> dict[str, object]:
    """Return how often two equal systems differ by the old and the new rule."""
    rng, old, new = np.random.default_rng(seed), 0, 0
    for _ in range(sets):
        hard, cells, values = rng.normal(size=queries), {}, []
        for row in ("ours", "theirs"):
            own = hard + rng.normal(0, 0.3, queries)
            shifts = rng.normal(0, SPREADS[spread], (seeds, 1))
            values.append(own + shifts + rng.normal(0, 0.2, (seeds, queries)))
            cells[row, ""] = [
                SeedMetrics(n, {"": float(value.mean())}, {"": value}) for n, value in enumerate(values[-1])
            ]
        new += SeededResults(cells).compare("ours", "theirs", "", "").outcome != NOISE
        signs = np.sign((values[0] - values[1]).mean(axis=1))
        p = paired_t_test(values[0].mean(axis=0), values[1].mean(axis=0)).p_value
        old += bool(p < LEVEL and len(set(signs.tolist())) == 1)
    return {
        "figure": "false differences",
        "spread": spread,
        "seeds": seeds,
        "queries": queries,
        "sets": sets,
        "old": old / sets,
        "new": new / sets,
    }


def percent(value: object) -> str:
    """Format a fraction in percent; None is a dash."""
    return "–" if value is None else f"{100 * float(str(value)):.1f}"


def markdown(cells: list[dict[str, object]]) -> str:
    """Return three tables with a column for each number of queries: AUC, AUC without a warning, and thresholds."""
    areas = [cell for cell in cells if cell["figure"] == "AUC"]
    errors = [cell for cell in cells if cell["figure"] == "calibration error"]
    false = [cell for cell in cells if cell["figure"] == "false differences"]
    fractions = [cell for cell in cells if cell not in (*areas, *errors, *false)]
    return "\n".join(
        [
            "Pooled AUC, old → new:\n",
            *_table(areas, ("auc", "positives"), lambda cell: f"{percent(cell['old'])} → {percent(cell['new'])}"),
            "\nPooled AUC, new: data sets warned of, and coverage of the others:\n",
            *_table(areas, ("auc", "positives"), _without_warning),
            "\nCalibration table at a threshold that few (`high`) or many (`middle`) negatives pass, old → new:\n",
            *_table(fractions, ("figure", "threshold", "positives"), _old_and_new),
            "\nCalibration error: mean of the old estimate / true error: coverage of the new interval:\n",
            *_table(errors, ("wrong",), _calibration_text, CALIBRATED_QUERIES),
            "\nFalse differences between equal systems, in percent, old → new:\n",
            *_table(false, ("spread", "seeds"), _old_and_new, COMPARED_QUERIES),
            "",
        ]
    )


def _table(
    cells: list[dict[str, object]],
    keys: tuple[str, ...],
    text: Callable[[dict[str, object]], str],
    queries: tuple[int, ...] = QUERIES,
) -> list[str]:
    rows: dict[tuple[object, ...], dict[object, str]] = {}
    for cell in cells:
        rows.setdefault(tuple(cell[key] for key in keys), {})[cell["queries"]] = text(cell)
    heads = [*(key.replace("positives", "positives a query") for key in keys), *(f"{n} queries" for n in queries)]
    lines = [heads, ["---"] * len(heads)]
    lines += [[*map(str, row), *(values.get(n, "") for n in queries)] for row, values in rows.items()]
    return [f"| {' | '.join(line)} |" for line in lines]


def _without_warning(cell: dict[str, object]) -> str:
    coverage = cell["new_without_warning"] if int(str(cell["sets_without_warning"])) >= 100 else None
    return f"{percent(cell['warned'])}, {percent(coverage)}"


def _calibration_text(cell: dict[str, object]) -> str:
    return f"{cell['old']:.3f} / {cell['truth']:.3f}: {percent(cell['new'])}"


def _old_and_new(cell: dict[str, object]) -> str:
    return percent(cell["new"]) if cell["old"] is None else f"{percent(cell['old'])} → {percent(cell['new'])}"


def main() -> None:
    """Simulate and report."""
    line = parser(__doc__.splitlines()[0])
    line.add_argument("--sets", type=int, default=2_000, help="data sets of each cell")
    line.add_argument("--seed", type=int, default=0)
    line.add_argument("--markdown", type=Path, metavar="PATH", help="write the tables there")
    options = line.parse_args()
    cells: list[dict[str, object]] = []
    for several in (False, True):
        for queries in QUERIES:
            for auc in AUCS:
                cells.append(auc_cell(auc, queries, 0.7, several, options.sets, options.seed + len(cells)))
                print(cells[-1], flush=True)
            for where in THRESHOLDS:
                cells += threshold_cells(queries, 0.7, several, where, options.sets, options.seed + len(cells))
                print(*cells[-4:], sep="\n", flush=True)
    for queries in CALIBRATED_QUERIES:
        for wrong in WRONG_PROBABILITIES:
            cells.append(calibration_cell(wrong, queries, options.sets, options.seed + len(cells)))
            print(cells[-1], flush=True)
    for seeds in SEEDS:
        for spread in SPREADS:
            for queries in COMPARED_QUERIES:
                cells.append(false_difference_cell(spread, seeds, queries, options.sets, options.seed + len(cells)))
                print(cells[-1], flush=True)
    print(f"{machine()}\n\n{markdown(cells)}")
    if options.json:
        options.json.write_text(
            json.dumps({"sets": options.sets, "seed": options.seed, "cells": cells}, indent=1) + "\n"
        )
    if options.markdown:
        options.markdown.write_text(markdown(cells))


if __name__ == "__main__":
    main()
