"""A paper's sentences held against what a study found: `held`, `did not hold`, or `within noise`.

A claim is a function of the figures alone, so a page cannot say more than its table shows. Those that compare rows on
several data sets or metrics come apart into comparisons (`StudyResults.compare`): the claim held where all of them came
out as it says; it did not where any came out the other way; anything between is noise, or too little to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raytriever.retrieval.study_results import ABOVE, BELOW, NOISE, StudyResults, sureness

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
        return Verdict(_word(outcomes, wanted=ABOVE, against=BELOW), f"{better} - {worse}: " + "; ".join(told))

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
        return Verdict(_word(outcomes, wanted=ABOVE, against=BELOW), because)

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
        return Verdict(_word(outcomes, wanted, against), f"{row} to the nearest: " + "; ".join(told))

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


def _word(outcomes: Sequence[str], wanted: str, against: str) -> str:
    if against in outcomes:
        return DID_NOT
    return HELD if all(one == wanted for one in outcomes) else WITHIN_NOISE
