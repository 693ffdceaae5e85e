"""Claims, tested against the results of a study: `held`, `did not hold`, or `within noise`.

A claim is judged only from the results, so a page cannot say more than its table shows. A difference is significant if
the test over queries and seeds gives p < 0.05 (`differences.differences_by_seed`). Spreads are tested over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.evaluation.differences.differences_by_seed import (
    ABOVE,
    BELOW,
    NOISE,
    UNTESTED,
    SeedComparison,
    SeededResults,
    format_outcome,
)
from raytriever.metrics.significance_tests import LEVEL, paired_t_test

HELD, DID_NOT, WITHIN_NOISE, NOT_EVALUATED = "held", "did not hold", "within noise", "not evaluated"
NOT_TESTED = "not tested"  # the rows have only one seed


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim: `HELD`, `DID_NOT`, `WITHIN_NOISE`, `NOT_TESTED` or `NOT_EVALUATED`, and its reason."""

    word: str
    because: str


Judge = Callable[[SeededResults], Verdict]
# Outcome of each comparison (`ABOVE` agrees with the claim, `BELOW` shows the opposite), and a text with its values.
Comparisons = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Claim:
    """Claim of a paper or a file, with its source (such as `section 5.2`) and the function that judges it."""

    text: str
    source: str
    judge: Judge

    def verdict(self, results: SeededResults) -> Verdict:
        """Return the verdict. It is `NOT_EVALUATED` if a row, data set or metric of the claim is missing."""
        try:
            return self.judge(results)
        except KeyError as error:
            return Verdict(NOT_EVALUATED, f"there is no result of {error}")


def _judge(about: str, compare: Callable[[SeededResults], Comparisons]) -> Judge:
    """Return a judge: a claim holds if every comparison agrees; it does not hold if a comparison shows the opposite."""

    def judge(results: SeededResults) -> Verdict:
        outcomes, texts = zip(*compare(results), strict=True)
        words = {BELOW: DID_NOT, UNTESTED: NOT_TESTED, NOISE: WITHIN_NOISE}
        word = next((words[outcome] for outcome in words if outcome in outcomes), HELD)
        return Verdict(word, f"{about}: {'; '.join(texts)}")

    return judge


def _text(name: str, comparison: SeedComparison, to: str = "") -> str:
    return f"{name} {comparison.difference:+.4f} {to}{format_outcome(comparison.p, comparison.outcome)}"


def above(better: str, worse: str, metrics: Sequence[str], datasets: Sequence[str] = ()) -> Judge:
    """Claim that one row is above another in each metric on each data set (by default, those that have both rows)."""
    return _judge(f"{better} - {worse}", _differences(better, worse, metrics, datasets))


def alike(row: str, other: str, metrics: Sequence[str], datasets: Sequence[str] = (), within: float = 0.01) -> Judge:
    """Claim that two rows differ by at most `within` in each metric on each data set.

    The claim does not hold if a difference is larger and also significant."""
    compare = _differences(row, other, metrics, datasets, lambda difference: abs(difference) <= within)
    return _judge(f"{row} - {other}, alike if within {within:g}", compare)


def above_on_average(
    better: str, worse: str, metrics: Sequence[str], datasets: Sequence[str] = (), by: float = 0.0
) -> Judge:
    """Claim that the mean of a row over the data sets exceeds that of another row by more than `by` in each metric."""
    compare = _differences(better, worse, metrics, datasets, on_average=True, by=by)
    return _judge(f"{better} - {worse}, mean over data sets{f', against {by:g}' if by else ''}", compare)


def no_worse_on_average(
    row: str, other: str, metrics: Sequence[str], datasets: Sequence[str] = (), within: float = 0.01
) -> Judge:
    """Claim that the mean of a row over the data sets is at most `within` below that of another, in each metric.

    The claim does not hold if the mean is even lower and the difference is significant."""
    compare = _differences(row, other, metrics, datasets, lambda difference: difference >= -within, on_average=True)
    return _judge(f"{row} - {other}, mean over data sets, not worse down to {-within:g}", compare)


def _differences(
    row: str,
    other: str,
    metrics: Sequence[str],
    datasets: Sequence[str],
    agrees: Callable[[float], bool] | None = None,
    on_average: bool = False,
    by: float = 0.0,
) -> Callable[[SeededResults], Comparisons]:
    """Compare `row` with `other` in each metric, on each data set or on average over all data sets.

    The test compares a difference with `by`. Without `agrees`, the test alone decides. With it, a difference agrees
    with the claim if `agrees` is True for it. Any other difference is noise or, if significant, the opposite."""

    def compare(results: SeededResults) -> Comparisons:
        cells = _cells(results, (row, other), metrics, datasets)
        groups = {
            metric if on_average else f"{dataset} {metric}": (
                metric,
                [name for name, evaluated in cells if evaluated == metric] if on_average else [dataset],
            )
            for dataset, metric in cells
        }
        for name, (metric, on) in groups.items():
            one = results.contrast({row: 1, other: -1}, on, metric, by)
            outcome = one.outcome
            if agrees is not None and outcome != UNTESTED:
                outcome = ABOVE if agrees(one.difference) else NOISE if outcome == NOISE else BELOW
            yield outcome, _text(name, one)

    return compare


def best(row: str, metrics: Sequence[str], datasets: Sequence[str] = (), among: Sequence[str] = ()) -> Judge:
    """Claim that a row is above every other row (or every row of `among`) in each metric on each data set."""
    return _first(row, metrics, datasets, among, 1)


def smallest(row: str, metrics: Sequence[str], datasets: Sequence[str] = (), among: Sequence[str] = ()) -> Judge:
    """Claim that a row is below every other row (or every row of `among`) in each metric on each data set."""
    return _first(row, metrics, datasets, among, -1)


def _first(row: str, metrics: Sequence[str], datasets: Sequence[str], among: Sequence[str], sign: int) -> Judge:
    opposite = {ABOVE: BELOW, BELOW: ABOVE} if sign < 0 else {}

    def compare(results: SeededResults) -> Comparisons:
        others = [name for name in among or results.rows if name != row]
        for dataset, metric in _cells(results, (row, *others), metrics, datasets):
            by_row = {other: results.compare(row, other, dataset, metric) for other in others}
            outcomes = {opposite.get(comparison.outcome, comparison.outcome) for comparison in by_row.values()}
            nearest = min(by_row, key=lambda name: sign * by_row[name].difference)
            text = _text(f"{dataset} {metric}", by_row[nearest], f"to {nearest} ")
            yield next(outcome for outcome in (BELOW, UNTESTED, NOISE, ABOVE) if outcome in outcomes), text

    return _judge(f"{row} to the nearest", compare)


def _cells(
    results: SeededResults, rows: Sequence[str], metrics: Sequence[str], datasets: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the pairs (data set, metric) to compare. Raises `KeyError` if no data set has all rows."""
    cells = [
        (dataset, metric)
        for dataset in datasets or results.datasets
        for metric in metrics
        if datasets or all(results.has(row, dataset, metric) for row in rows)
    ]
    return _some(cells, rows)


T = TypeVar("T")


def _some(values: list[T], rows: Sequence[str]) -> list[T]:
    if not values:
        raise KeyError(f"{' and '.join(rows)} on one data set")
    return values


def mostly_above(better: Sequence[str], worse: str, metrics: Sequence[str], datasets: Sequence[str] = ()) -> Judge:
    """Claim that rows are significantly above another row in more than half of all cells (row, data set, metric).

    The claim does not hold if the rows are significantly below in more than half of the cells."""

    def judge(results: SeededResults) -> Verdict:
        cells = [
            results.compare(row, worse, dataset, metric)
            for row in better
            for dataset in datasets or results.datasets
            for metric in metrics
            if all(results.has(name, dataset, metric) for name in (row, worse))
        ]
        count = len(_some(cells, (*better, worse)))
        up, down = (sum(cell.outcome == outcome for cell in cells) for outcome in (ABOVE, BELOW))
        higher = sum(cell.difference > 0 for cell in cells)
        untested = all(cell.outcome == UNTESTED for cell in cells)
        word = HELD if 2 * up > count else DID_NOT if 2 * down > count else NOT_TESTED if untested else WITHIN_NOISE
        because = (
            f"{', '.join(better)} against {worse}: higher in {higher} of {count} cells, significantly in {up}; "
            f"significantly lower in {down}"
        )
        return Verdict(word, because)

    return judge


def steadier(rows: Sequence[str], others: Sequence[str], metrics: Sequence[str], datasets: Sequence[str] = ()) -> Judge:
    """Claim that each metric has a smaller spread (largest minus smallest value) among `rows` than among `others`.

    Each row is one setting. The spread over the rows is computed for each seed."""

    def compare(results: SeededResults) -> Comparisons:
        for dataset, metric in _cells(results, (*rows, *others), metrics, datasets):
            smaller, larger = (_spread(results, some, dataset, metric) for some in (rows, others))
            p = paired_t_test(larger, smaller).p_value if len(larger) > 1 else float("nan")
            outcome = ABOVE if larger.mean() > smaller.mean() else BELOW
            outcome = UNTESTED if len(larger) < 2 else outcome if p < LEVEL else NOISE
            values = f"{smaller.mean():.4f} against {larger.mean():.4f}"
            yield outcome, f"{dataset} {metric} {values} {format_outcome(p, outcome)}"

    return _judge("spreads", compare)


def _spread(results: SeededResults, rows: Sequence[str], dataset: str, metric: str) -> Float64[ndarray, " seeds"]:
    return np.asarray(np.ptp([results.values(row, dataset, metric) for row in rows], axis=0))


def larger_gain(
    pair: Sequence[str], other: Sequence[str], metrics: Sequence[str], datasets: Sequence[str] = ()
) -> Judge:
    """Claim that the difference between the two rows of one pair is larger than that of another pair."""

    def compare(results: SeededResults) -> Comparisons:
        weights: Counter[str] = Counter()
        for row, weight in zip((*pair, *other), (1, -1, -1, 1), strict=True):
            weights[row] += weight
        for dataset, metric in _cells(results, (*pair, *other), metrics, datasets):
            one = results.contrast(weights, [dataset], metric)
            gained = ", ".join(
                f"{to} - {start} {results.compare(to, start, dataset, metric).difference:+.4f}"
                for to, start in (pair, other)
            )
            yield one.outcome, f"{dataset} {metric} {gained} {format_outcome(one.p, one.outcome)}"

    return _judge("gains", compare)


def every(*judges: Judge) -> Judge:
    """Claim that all of several claims hold."""

    def judge(results: SeededResults) -> Verdict:
        verdicts = [judge(results) for judge in judges]
        words = [verdict.word for verdict in verdicts]
        word = next(candidate for candidate in (DID_NOT, NOT_TESTED, WITHIN_NOISE, HELD) if candidate in words)
        return Verdict(word, " | ".join(verdict.because for verdict in verdicts))

    return judge
