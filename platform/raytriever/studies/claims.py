"""Claims of a paper, tested against the results of a study: `held`, `did not hold`, or `within noise`.

A claim is a function of the results alone, so a page cannot say more than its table shows. A difference counts if the
test over queries and seeds gives p < 0.05 (`evaluation.differences.seeds`). A spread is tested over the seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.evaluation.differences.seeds import ABOVE, BELOW, NOISE, SeedComparison, SeededResults, format_outcome
from raytriever.metrics.significance import LEVEL, paired_t_test

HELD, DID_NOT, WITHIN_NOISE, NOT_MEASURED = "held", "did not hold", "within noise", "not measured"


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim.

    Args:
        word: one of `HELD`, `DID_NOT`, `WITHIN_NOISE`, `NOT_MEASURED`.
        because: the compared values, in a sentence.
    """

    word: str
    because: str


Judge = Callable[[SeededResults], Verdict]


@dataclass(frozen=True)
class Claim:
    """Claim of a paper.

    Args:
        text: the sentence of the paper, or a shorter one.
        source: its section, table or figure, as `section 5.2`.
        judge: pure function of the results; `above`, `alike`, `best` and `smallest` return most of them.
    """

    text: str
    source: str
    judge: Judge

    def verdict(self, results: SeededResults) -> Verdict:
        """Return the verdict; `NOT_MEASURED` if a row, data set or metric of the claim is missing."""
        try:
            return self.judge(results)
        except KeyError as error:
            return Verdict(NOT_MEASURED, f"there is no result of {error}")


def above(better: str, worse: str, metrics: Sequence[str], datasets: Sequence[str] = ()) -> Judge:
    """Claim that one row is above another in each metric on each data set (by default all that have both rows)."""

    def judge(results: SeededResults) -> Verdict:
        comparisons, outcomes = [], []
        for dataset, metric in _cells(results, (better, worse), metrics, datasets):
            one = results.compare(better, worse, dataset, metric)
            outcomes.append(one.outcome)
            comparisons.append(f"{dataset} {metric} {one.difference:+.4f} {format_outcome(one.p, one.outcome)}")
        return Verdict(
            _verdict_on_outcomes(outcomes, expected=ABOVE, against=BELOW),
            f"{better} - {worse}: " + "; ".join(comparisons),
        )

    return judge


def alike(row: str, other: str, metrics: Sequence[str], datasets: Sequence[str] = (), within: float = 0.01) -> Judge:
    """Claim that two rows differ by at most `within` in each metric on each data set.

    It does not hold if a difference is larger and not noise.
    """

    def judge(results: SeededResults) -> Verdict:
        comparisons, outcomes = [], []
        for dataset, metric in _cells(results, (row, other), metrics, datasets):
            one = results.compare(row, other, dataset, metric)
            near = abs(one.difference) <= within
            outcomes.append(ABOVE if near else NOISE if one.outcome == NOISE else BELOW)
            comparisons.append(f"{dataset} {metric} {one.difference:+.4f} {format_outcome(one.p, one.outcome)}")
        because = f"{row} - {other}, alike where within {within:g}: " + "; ".join(comparisons)
        return Verdict(_verdict_on_outcomes(outcomes, expected=ABOVE, against=BELOW), because)

    return judge


def best(row: str, metrics: Sequence[str], datasets: Sequence[str] = (), among: Sequence[str] = ()) -> Judge:
    """Claim that a row is above every other row (or every row of `among`) in each metric on each data set."""
    return _first(row, metrics, datasets, among, ABOVE, BELOW)


def smallest(row: str, metrics: Sequence[str], datasets: Sequence[str] = (), among: Sequence[str] = ()) -> Judge:
    """Claim that a row is below every other row (or every row of `among`) in each metric on each data set."""
    return _first(row, metrics, datasets, among, BELOW, ABOVE)


def _first(
    row: str, metrics: Sequence[str], datasets: Sequence[str], among: Sequence[str], expected: str, against: str
) -> Judge:
    def judge(results: SeededResults) -> Verdict:
        comparisons, outcomes = [], []
        others = [one for one in among or results.rows if one != row]
        for dataset, metric in _cells(results, (row, *others), metrics, datasets):
            by_row = {one: results.compare(row, one, dataset, metric) for one in others}
            outcomes += [one.outcome for one in by_row.values()]
            by_difference = sorted(by_row, key=lambda one: by_row[one].difference)
            nearest = by_difference[0 if expected == ABOVE else -1]
            one = by_row[nearest]
            comparisons.append(
                f"{dataset} {metric} {one.difference:+.4f} to {nearest} {format_outcome(one.p, one.outcome)}"
            )
        return Verdict(
            _verdict_on_outcomes(outcomes, expected, against), f"{row} to the nearest: " + "; ".join(comparisons)
        )

    return judge


def _cells(
    results: SeededResults, rows: Sequence[str], metrics: Sequence[str], datasets: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the data sets and metrics to compare; raises `KeyError` if a named one, or each one, lacks a row."""
    cells = [
        (dataset, metric)
        for dataset in datasets or results.datasets
        for metric in metrics
        if datasets or all(results.has(row, dataset, metric) for row in rows)
    ]
    if not cells:
        raise KeyError(f"{' and '.join(rows)} on one data set")
    return cells


def _verdict_on_outcomes(outcomes: Sequence[str], expected: str, against: str) -> str:
    if against in outcomes:
        return DID_NOT
    return HELD if all(one == expected for one in outcomes) else WITHIN_NOISE


def mean_difference(
    results: SeededResults, row: str, other: str, metric: str, datasets: Sequence[str] = (), by: float = 0.0
) -> SeedComparison:
    """Compare `row` - `other` with a number, on average over data sets of equal weight.

    Args:
        results: results of the study.
        row, other: labels of the rows.
        metric: metric to average.
        datasets: names of the data sets; empty for all that have both rows.
        by: the difference is tested against this number.

    Raises:
        KeyError: a data set lacks a row, or no data set has both.
    """
    used = list(datasets) or [one for one in results.datasets if all(results.has(r, one, metric) for r in (row, other))]
    if not used:
        raise KeyError(f"{row} and {other} by {metric} on one data set")
    return results.contrast({row: 1, other: -1}, used, metric, by)


def above_on_average(
    better: str, worse: str, metrics: Sequence[str], datasets: Sequence[str] = (), by: float = 0.0
) -> Judge:
    """Claim that the mean of a row over the data sets exceeds that of another row by more than `by` in each metric."""

    def judge(results: SeededResults) -> Verdict:
        by_metric = {metric: mean_difference(results, better, worse, metric, datasets, by) for metric in metrics}
        comparisons = "; ".join(
            f"{metric} {one.difference:+.4f} {format_outcome(one.p, one.outcome)}" for metric, one in by_metric.items()
        )
        return Verdict(
            _verdict_on_increase([one.outcome for one in by_metric.values()]),
            f"{better} - {worse}, mean over data sets{f', against {by:g}' if by else ''}: {comparisons}",
        )

    return judge


def no_worse_on_average(row: str, other: str, metrics: Sequence[str], within: float = 0.01) -> Judge:
    """Claim that the mean of a row over the data sets is at most `within` below that of another, in each metric.

    It does not hold if the mean is lower by more and not by noise.
    """

    def judge(results: SeededResults) -> Verdict:
        outcomes, comparisons = [], []
        for metric in metrics:
            one = mean_difference(results, row, other, metric)
            outcomes.append(ABOVE if one.difference >= -within else NOISE if one.outcome == NOISE else BELOW)
            comparisons.append(f"{metric} {one.difference:+.4f} {format_outcome(one.p, one.outcome)}")
        because = f"{row} - {other}, mean over data sets, not worse down to {-within:g}: {'; '.join(comparisons)}"
        return Verdict(_verdict_on_increase(outcomes), because)

    return judge


def mostly_above(better: Sequence[str], worse: str, metrics: Sequence[str]) -> Judge:
    """Claim that rows are above another one in more than half of all cells (row, data set, metric).

    It does not hold if they are below in more than half of the cells.
    """

    def judge(results: SeededResults) -> Verdict:
        cells = [
            results.compare(row, worse, dataset, metric)
            for row in better
            for dataset in results.datasets
            for metric in metrics
            if all(results.has(one, dataset, metric) for one in (row, worse))
        ]
        if not cells:
            raise KeyError(f"{' and '.join((*better, worse))} on one data set")
        up, down = (sum(one.outcome == outcome for one in cells) for outcome in (ABOVE, BELOW))
        higher = sum(one.difference > 0 for one in cells)
        word = HELD if 2 * up > len(cells) else DID_NOT if 2 * down > len(cells) else WITHIN_NOISE
        because = (
            f"{', '.join(better)} against {worse}: higher in {higher} of {len(cells)} cells, significantly in {up}; "
            f"significantly lower in {down}"
        )
        return Verdict(word, because)

    return judge


def second_at_worst(row: str, among: Sequence[str], metrics: Sequence[str]) -> Judge:
    """Claim that at most one other row is above a row, in each metric on each data set.

    It does not hold if two others are above by more than noise.
    """

    def judge(results: SeededResults) -> Verdict:
        outcomes, comparisons = [], []
        others = [one for one in among if one != row]
        for dataset in results.datasets:
            for metric in metrics:
                if not all(results.has(one, dataset, metric) for one in (row, *others)):
                    continue
                against = [results.compare(row, one, dataset, metric) for one in others]
                higher = sum(one.difference < 0 for one in against)
                significant = sum(one.outcome == BELOW for one in against)
                outcomes.append(ABOVE if higher <= 1 else BELOW if significant >= 2 else NOISE)
                comparisons.append(f"{dataset} {metric} rank {higher + 1}")
        if not outcomes:
            raise KeyError(f"{' and '.join(among)} on one data set")
        return Verdict(_verdict_on_increase(outcomes), f"{row}: {'; '.join(comparisons)}")

    return judge


def steadier(rows: Sequence[str], others: Sequence[str], metric: str, datasets: Sequence[str] = ()) -> Judge:
    """Claim that a metric varies less among `rows` than among `others` (largest minus smallest value).

    Each row is one setting.
    """

    def judge(results: SeededResults) -> Verdict:
        compared = (*rows, *others)
        used = list(datasets) or [one for one in results.datasets if all(results.has(r, one, metric) for r in compared)]
        if not used:
            raise KeyError(f"{' and '.join(compared)} by {metric} on one data set")
        outcomes, comparisons = [], []
        for dataset in used:
            narrow, wide = (_spread(results, some, dataset, metric) for some in (rows, others))
            p = paired_t_test(wide, narrow).p_value if len(wide) > 1 else float("nan")
            outcomes.append(NOISE if not p < LEVEL else ABOVE if wide.mean() > narrow.mean() else BELOW)
            comparisons.append(
                f"{dataset} {narrow.mean():.4f} against {wide.mean():.4f} {format_outcome(p, outcomes[-1])}"
            )
        return Verdict(_verdict_on_increase(outcomes), f"spread of {metric}: {'; '.join(comparisons)}")

    return judge


def larger_gain(pair: tuple[str, str], other: tuple[str, str], metric: str, dataset: str) -> Judge:
    """Claim that the first row of a pair is further above the second one than in another pair, on one data set."""

    def judge(results: SeededResults) -> Verdict:
        weights: Counter[str] = Counter()
        for row, weight in zip((*pair, *other), (1, -1, -1, 1), strict=True):
            weights[row] += weight
        one = results.contrast(weights, [dataset], metric)
        gained = ", ".join(
            f"{to} - {start} {results.compare(to, start, dataset, metric).difference:+.4f}"
            for to, start in (pair, other)
        )
        return Verdict(
            _verdict_on_increase([one.outcome]), f"{dataset} {metric}: {gained} {format_outcome(one.p, one.outcome)}"
        )

    return judge


def every(*judges: Judge) -> Judge:
    """Claim that all of several claims hold."""

    def judge(results: SeededResults) -> Verdict:
        verdicts = [one(results) for one in judges]
        words = {one.word for one in verdicts}
        word = DID_NOT if DID_NOT in words else HELD if words == {HELD} else WITHIN_NOISE
        return Verdict(word, " | ".join(one.because for one in verdicts))

    return judge


def _spread(results: SeededResults, rows: Sequence[str], dataset: str, metric: str) -> Float64[ndarray, " seeds"]:
    by_row = np.stack([results.values(row, dataset, metric) for row in rows])
    return np.asarray(by_row.max(axis=0) - by_row.min(axis=0))


def _verdict_on_increase(outcomes: Sequence[str]) -> str:
    if BELOW in outcomes:
        return DID_NOT
    return HELD if all(one == ABOVE for one in outcomes) else WITHIN_NOISE
