"""Claims of a paper, tested against the results of a study: `held`, `did not hold`, or `within noise`.

A claim is a function of the figures alone, so a page cannot say more than its table shows. A difference counts where
a test finds it at p < 0.05 and no seed has it the other way round (`studies.results`). A mean over data sets has the
error of a mean of independent means. A spread is tested over the seeds, so one seed decides nothing about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.metrics.significance import LEVEL, paired_t_test
from raytriever.studies.results import ABOVE, BELOW, NOISE, Comparison, StudyResults, sureness

HELD, DID_NOT, WITHIN_NOISE, NOT_MEASURED = "held", "did not hold", "within noise", "not measured"


@dataclass(frozen=True)
class Verdict:
    """What the figures say of a claim.

    Args:
        word: one of `HELD`, `DID_NOT`, `WITHIN_NOISE`, `NOT_MEASURED`.
        because: the figures, in a sentence.
    """

    word: str
    because: str


Judge = Callable[[StudyResults], Verdict]


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper.

    Args:
        text: as the paper says it, or shorter.
        source: where it stands there, as `section 5.2`.
        judge: a pure function of the figures; `above`, `alike`, `best` and `smallest` make most.
    """

    text: str
    source: str
    judge: Judge

    def verdict(self, results: StudyResults) -> Verdict:
        """What the figures say; `NOT_MEASURED` where a row, data set or metric it speaks of is not among them."""
        try:
            return self.judge(results)
        except KeyError as error:
            return Verdict(NOT_MEASURED, f"there is no figure of {error}")


def above(better: str, worse: str, metrics: Sequence[str], datasets: Sequence[str] = ()) -> Judge:
    """One row is above another in each metric on each data set (all that have both rows where none is named)."""

    def judge(results: StudyResults) -> Verdict:
        told, outcomes = [], []
        for dataset, metric in _cells(results, (better, worse), metrics, datasets):
            one = results.compare(better, worse, dataset, metric)
            outcomes.append(one.outcome)
            told.append(f"{dataset} {metric} {one.difference:+.4f} {sureness(one.p, one.outcome)}")
        return Verdict(
            _verdict_on_outcomes(outcomes, wanted=ABOVE, against=BELOW), f"{better} - {worse}: " + "; ".join(told)
        )

    return judge


def alike(row: str, other: str, metrics: Sequence[str], datasets: Sequence[str] = (), within: float = 0.01) -> Judge:
    """Two rows differ by at most `within` in each metric on each data set; not where more, and that is no noise."""

    def judge(results: StudyResults) -> Verdict:
        told, outcomes = [], []
        for dataset, metric in _cells(results, (row, other), metrics, datasets):
            one = results.compare(row, other, dataset, metric)
            near = abs(one.difference) <= within
            outcomes.append(ABOVE if near else NOISE if one.outcome == NOISE else BELOW)
            told.append(f"{dataset} {metric} {one.difference:+.4f} {sureness(one.p, one.outcome)}")
        because = f"{row} - {other}, alike where within {within:g}: " + "; ".join(told)
        return Verdict(_verdict_on_outcomes(outcomes, wanted=ABOVE, against=BELOW), because)

    return judge


def best(row: str, metrics: Sequence[str], datasets: Sequence[str] = (), among: Sequence[str] = ()) -> Judge:
    """A row is above every other one (or every one of `among`) in each metric on each data set."""
    return _first(row, metrics, datasets, among, ABOVE, BELOW)


def smallest(row: str, metrics: Sequence[str], datasets: Sequence[str] = (), among: Sequence[str] = ()) -> Judge:
    """A row is below every other one (or every one of `among`) in each metric on each data set."""
    return _first(row, metrics, datasets, among, BELOW, ABOVE)


def _first(
    row: str, metrics: Sequence[str], datasets: Sequence[str], among: Sequence[str], wanted: str, against: str
) -> Judge:
    def judge(results: StudyResults) -> Verdict:
        told, outcomes = [], []
        others = [one for one in among or results.rows if one != row]
        for dataset, metric in _cells(results, (row, *others), metrics, datasets):
            found = {one: results.compare(row, one, dataset, metric) for one in others}
            outcomes += [one.outcome for one in found.values()]
            by_difference = sorted(found, key=lambda one: found[one].difference)
            nearest = by_difference[0 if wanted == ABOVE else -1]
            one = found[nearest]
            told.append(f"{dataset} {metric} {one.difference:+.4f} to {nearest} {sureness(one.p, one.outcome)}")
        return Verdict(_verdict_on_outcomes(outcomes, wanted, against), f"{row} to the nearest: " + "; ".join(told))

    return judge


def _cells(
    results: StudyResults, rows: Sequence[str], metrics: Sequence[str], datasets: Sequence[str]
) -> list[tuple[str, str]]:
    """Data sets and metrics to be looked at; raises `KeyError` where a named one, or all of them, lack a row."""
    found = [
        (dataset, metric)
        for dataset in datasets or results.datasets
        for metric in metrics
        if datasets or all(results.has(row, dataset, metric) for row in rows)
    ]
    if not found:
        raise KeyError(f"{' and '.join(rows)} on one data set")
    return found


def _verdict_on_outcomes(outcomes: Sequence[str], wanted: str, against: str) -> str:
    if against in outcomes:
        return DID_NOT
    return HELD if all(one == wanted for one in outcomes) else WITHIN_NOISE


def mean_difference(
    results: StudyResults, row: str, other: str, metric: str, datasets: Sequence[str] = ()
) -> Comparison:
    """`row` - `other`, averaged over data sets of equal weight.

    Args:
        results: what was measured.
        row, other: labels.
        metric: that is averaged.
        datasets: all that have both rows where none is named.

    Raises:
        KeyError: a data set lacks a row, or none has both.
    """
    used = list(datasets) or [one for one in results.datasets if all(results.has(r, one, metric) for r in (row, other))]
    if not used:
        raise KeyError(f"{row} and {other} by {metric} on one data set")
    by_seed = np.mean([_by_seed(results, row, other, one, metric) for one in used], axis=0)
    difference = float(by_seed.mean())
    errors = [_squared_error(results, row, other, one, metric) for one in used]
    error = math.sqrt(sum(errors)) / len(used)
    p = math.erfc(abs(difference) / error / math.sqrt(2)) if error > 0 else float("nan")
    if not p < LEVEL or (np.sign(by_seed) != np.sign(difference)).any():
        return Comparison(difference, p, NOISE)
    return Comparison(difference, p, ABOVE if difference > 0 else BELOW)


def above_on_average(better: str, worse: str, metrics: Sequence[str], datasets: Sequence[str] = ()) -> Judge:
    """One row's mean over data sets is above another's, in each metric."""

    def judge(results: StudyResults) -> Verdict:
        found = {metric: mean_difference(results, better, worse, metric, datasets) for metric in metrics}
        told = "; ".join(
            f"{metric} {one.difference:+.4f} {sureness(one.p, one.outcome)}" for metric, one in found.items()
        )
        return Verdict(
            _verdict_on_increase([one.outcome for one in found.values()]),
            f"{better} - {worse}, mean over data sets: {told}",
        )

    return judge


def no_worse_on_average(row: str, other: str, metrics: Sequence[str], within: float = 0.01) -> Judge:
    """A row's mean over data sets is at most `within` below another's in each metric; not where it is surely lower."""

    def judge(results: StudyResults) -> Verdict:
        outcomes, told = [], []
        for metric in metrics:
            one = mean_difference(results, row, other, metric)
            outcomes.append(ABOVE if one.difference >= -within else NOISE if one.outcome == NOISE else BELOW)
            told.append(f"{metric} {one.difference:+.4f} {sureness(one.p, one.outcome)}")
        because = f"{row} - {other}, mean over data sets, at par down to {-within:g}: {'; '.join(told)}"
        return Verdict(_verdict_on_increase(outcomes), because)

    return judge


def mostly_above(better: Sequence[str], worse: str, metrics: Sequence[str]) -> Judge:
    """Rows are above another one in more than half of all cells (row, data set, metric); not where below in so many."""

    def judge(results: StudyResults) -> Verdict:
        both = [
            results.compare(row, worse, dataset, metric)
            for row in better
            for dataset in results.datasets
            for metric in metrics
            if all(results.has(one, dataset, metric) for one in (row, worse))
        ]
        if not both:
            raise KeyError(f"{' and '.join((*better, worse))} on one data set")
        up, down = (sum(one.outcome == outcome for one in both) for outcome in (ABOVE, BELOW))
        higher = sum(one.difference > 0 for one in both)
        word = HELD if 2 * up > len(both) else DID_NOT if 2 * down > len(both) else WITHIN_NOISE
        because = (
            f"{', '.join(better)} against {worse}: higher in {higher} of {len(both)} cells, significantly in {up}; "
            f"significantly lower in {down}"
        )
        return Verdict(word, because)

    return judge


def second_at_worst(row: str, among: Sequence[str], metrics: Sequence[str]) -> Judge:
    """At most one of the others is above a row, in each metric on each data set; not where two surely are."""

    def judge(results: StudyResults) -> Verdict:
        outcomes, told = [], []
        others = [one for one in among if one != row]
        for dataset in results.datasets:
            for metric in metrics:
                if not all(results.has(one, dataset, metric) for one in (row, *others)):
                    continue
                found = [results.compare(row, one, dataset, metric) for one in others]
                higher = sum(one.difference < 0 for one in found)
                surely = sum(one.outcome == BELOW for one in found)
                outcomes.append(ABOVE if higher <= 1 else BELOW if surely >= 2 else NOISE)
                told.append(f"{dataset} {metric} place {higher + 1}")
        if not outcomes:
            raise KeyError(f"{' and '.join(among)} on one data set")
        return Verdict(_verdict_on_increase(outcomes), f"{row}: {'; '.join(told)}")

    return judge


def steadier(rows: Sequence[str], others: Sequence[str], metric: str, datasets: Sequence[str] = ()) -> Judge:
    """Between its rows, one setting each, a metric spreads less (largest less smallest) than between the others'."""

    def judge(results: StudyResults) -> Verdict:
        everyone = (*rows, *others)
        used = list(datasets) or [one for one in results.datasets if all(results.has(r, one, metric) for r in everyone)]
        if not used:
            raise KeyError(f"{' and '.join(everyone)} by {metric} on one data set")
        outcomes, told = [], []
        for dataset in used:
            narrow, wide = (_spread(results, some, dataset, metric) for some in (rows, others))
            p = paired_t_test(wide, narrow).p_value if len(wide) > 1 else float("nan")
            sure = p < LEVEL and len(set(np.sign(wide - narrow).tolist())) == 1
            outcomes.append((ABOVE if (wide > narrow).all() else BELOW) if sure else NOISE)
            told.append(f"{dataset} {narrow.mean():.4f} against {wide.mean():.4f} {sureness(p, outcomes[-1])}")
        return Verdict(_verdict_on_increase(outcomes), f"spread of {metric}: {'; '.join(told)}")

    return judge


def every(*judges: Judge) -> Judge:
    """All of several claims at once."""

    def judge(results: StudyResults) -> Verdict:
        found = [one(results) for one in judges]
        words = {one.word for one in found}
        word = DID_NOT if DID_NOT in words else HELD if words == {HELD} else WITHIN_NOISE
        return Verdict(word, " | ".join(one.because for one in found))

    return judge


def _by_seed(results: StudyResults, row: str, other: str, dataset: str, metric: str) -> Float64[ndarray, " seeds"]:
    return results.values(row, dataset, metric) - results.values(other, dataset, metric)


def _squared_error(results: StudyResults, row: str, other: str, dataset: str, metric: str) -> float:
    """The squared standard error of a difference: over queries, of each one's mean over the seeds; over seeds where the
    metric has no value a query."""
    ours, theirs = (results.per_query(one, dataset, metric) for one in (row, other))
    if ours is None or theirs is None:
        values = _by_seed(results, row, other, dataset, metric)
    else:
        values = ours.mean(axis=0) - theirs.mean(axis=0)
        values = values[np.isfinite(values)]
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else float("nan")


def _spread(results: StudyResults, rows: Sequence[str], dataset: str, metric: str) -> Float64[ndarray, " seeds"]:
    by_row = np.stack([results.values(row, dataset, metric) for row in rows])
    return np.asarray(by_row.max(axis=0) - by_row.min(axis=0))


def _verdict_on_increase(outcomes: Sequence[str]) -> str:
    if BELOW in outcomes:
        return DID_NOT
    return HELD if all(one == ABOVE for one in outcomes) else WITHIN_NOISE
