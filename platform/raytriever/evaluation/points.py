"""Points of an evaluation for the tracker. A value that does not exist has no point."""

from __future__ import annotations

import time

from raytriever.evaluation.differences.significance import pairs_with
from raytriever.evaluation.protocol import aim_text
from raytriever.evaluation.results import Results, ThresholdRow
from raytriever.metrics.intervals import Proportion
from raytriever.tracking.tracker import Point

Values = dict[str, float | None]


def points_of(results: Results) -> list[Point]:
    """Return all numbers of an evaluation by their names in the tracker.

    Metrics are `MODEL/DATASET/METRIC`. Others begin with their kind: `auc/MODEL/DATASET/low`,
    `calibration/MODEL/DATASET/top-precision-0.9/threshold`, `confidence/MODEL/DATASET/entropy/area`,
    `significance/MODEL-BASELINE/DATASET/METRIC_p` and `absent_relevant/DATASET`.
    """
    values: Values = {}
    for model, sets in results.models.items():
        for dataset, metrics in sets.items():
            values |= _named(f"{model}/{dataset}", metrics)
    values |= _significance(results)
    for auc in results.auc:
        values |= _named(f"auc/{auc.model}/{auc.dataset}", {"low": auc.low, "high": auc.high})
    for row in results.thresholds:
        aim = aim_text(row.aim, row.wanted).replace(" ", "-")
        values |= _named(f"calibration/{row.model}/{row.dataset}/{aim}", _threshold(row))
    for area in results.confidences:
        name = f"confidence/{area.model}/{area.dataset}/{area.confidence}"
        values |= _named(name, {"area": area.area, "low": area.low, "high": area.high})
    values |= {f"absent_relevant/{dataset}": float(about.absent_relevant) for dataset, about in results.about.items()}
    return _points(values)


def points_of_training(results: Results) -> list[Point]:
    """Return the numbers of the evaluation of a training run, on one data set.

    Their names are without it: `after/METRIC`, `significance/after-before/METRIC_p` and `judged/absent_relevant`.
    """
    [about] = results.about.values()
    values = _significance(results, several=False)
    for model, sets in results.models.items():
        values |= _named(model, next(iter(sets.values())))
    counts = about.absent_relevant, about.relevant, about.unanswerable_queries
    names = ("absent_relevant", "relevant", "unanswerable_queries")
    return _points(values | _named("judged", dict(zip(names, map(float, counts), strict=True))))


def _significance(results: Results, several: bool = True) -> Values:
    """Return the tests against the baselines. Their names have the data set if there are several."""
    values: Values = {}
    for row in [row for baseline in results.baselines for row in pairs_with(results.pairs, baseline)]:
        if row.dataset is None:
            continue
        name = "/".join([f"{row.model}-{row.against}", *([row.dataset] if several else []), row.metric])
        numbers = {"difference": row.difference, "low": row.low, "high": row.high, "p": row.p_holm}
        values |= {f"significance/{name}_{part}": value for part, value in numbers.items()}
    return values


def _points(values: Values) -> list[Point]:
    """Return the values as points of step 0, which MLflow draws as bars."""
    now = time.time_ns() // 1_000_000
    return [Point(name, float(value), 0, now) for name, value in values.items() if value is not None]


def _threshold(row: ThresholdRow) -> Values:
    error = row.calibration_error
    values: Values = {"threshold": row.threshold, "chosen": row.chosen}
    shares = {**row.shares, **{f"unanswerable_{kind}": share for kind, share in row.unanswerable.items()}}
    if row.checked is not None:
        shares["checked"] = row.checked
    for name, share in shares.items():
        values |= _share(name, share)
    return values | {
        "calibration_error": error.value,
        "calibration_error_low": error.low,
        "calibration_error_high": error.high,
    }


def _share(name: str, share: Proportion) -> Values:
    counts: Values = {f"{name}_part": share.part, f"{name}_whole": share.whole}
    return (
        {**counts, name: share.value, f"{name}_low": share.low, f"{name}_high": share.high} if share.whole else counts
    )


def _named(prefix: str, values: Values) -> Values:
    return {f"{prefix}/{name}": value for name, value in values.items()}
