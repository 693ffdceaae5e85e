"""Thresholds of an evaluation: chosen on one split for a wanted precision or recall, checked on the judged one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.activity import activity
from raytriever.errors import ConfigError
from raytriever.metrics.calibration import calibrate, expected_calibration_error
from raytriever.metrics.threshold import Aim
from raytriever.retrieval.measured import MeasuredSet
from raytriever.tracking.tracker import Point

CALIBRATE = "--calibrate"
AIMS: tuple[Aim, ...] = ("precision", "recall")


def read_aims(words: Sequence[str]) -> list[tuple[Aim, float]]:
    """`precision=0.9`, `recall=0.8` and the like; raises `ConfigError` for what is no share of these."""
    found: list[tuple[Aim, float]] = []
    for word in words:
        name, _, number = word.partition("=")
        try:
            wanted = float(number)
        except ValueError:
            wanted = float("nan")
        aim = next((one for one in AIMS if one == name.strip().lower()), None)
        if aim is None or not 0 < wanted <= 1:
            raise ConfigError(f"{word!r}", CALIBRATE, "write precision=0.9 or recall=0.8, above 0 and at most 1")
        found.append((aim, wanted))
    return found


@activity("choosing the thresholds")
def calibration_rows(measured: MeasuredSet, split: str, aims: Sequence[tuple[Aim, float]]) -> list[dict[str, Any]]:
    """A row for each model and aim.

    Args:
        measured: with evaluations of the choosing split.
        split: that split's name.
        aims: what is wanted.

    Returns:
        Rows of `dataset`, `model`, `aim`, `wanted`, `threshold` (a score; None where no score has the precision),
        `reached`, `precision` and `recall` (on the choosing split), `checked` (the wanted one on the judged split) with
        `low` and `high` (95 %, by drawing queries), `calibration_error` (of scores taken for chances), `chosen_on`.
    """
    rows = []
    for model in measured.parts[0].evaluations if aims else ():
        choosing, checking = measured.choosing_pools(model), measured.pools(model)
        error = expected_calibration_error(choosing, checking)
        for row in calibrate(choosing, checking, aims):
            threshold = row.threshold
            rows.append(
                {
                    "dataset": measured.about.name,
                    "model": model,
                    "aim": threshold.aim,
                    "wanted": threshold.wanted,
                    "threshold": threshold.score if threshold.reached else None,
                    "reached": threshold.reached,
                    "precision": threshold.precision,
                    "recall": threshold.recall,
                    "checked": row.checked,
                    "low": row.low,
                    "high": row.high,
                    "calibration_error": error,
                    "chosen_on": split,
                }
            )
    return rows


def calibration_points(rows: Sequence[Mapping[str, Any]], step: int, milliseconds: int) -> list[Point]:
    """Return the figures of each row for the tracker, as `calibration/MODEL/DATASET/precision-0.9/threshold`.

    Args:
        rows: from `calibration_rows`; a figure without a value is left out.
        step: the step of the points.
        milliseconds: their time.
    """
    points = []
    for row in rows:
        name = f"calibration/{row['model']}/{row['dataset']}/{row['aim']}-{row['wanted']:g}"
        for figure, value in row.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if figure != "wanted" and is_number and math.isfinite(value):
                points.append(Point(f"{name}/{figure}", float(value), step, milliseconds))
    return points


def calibration_table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table; nothing where there are none."""
    if not rows:
        return ""
    head = ("data set", "model", "wanted", "threshold", f"on {rows[0]['chosen_on']}", "checked", "95 %", "ECE")
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for row in rows:
        if row["reached"]:
            checked = f"{row['checked']:.3f} | {row['low']:.3f} to {row['high']:.3f}"
            threshold, here = f"{row['threshold']:.6g}", f"{row[row['aim']]:.3f}"
        else:
            checked, threshold, here = "- | -", "out of reach", f"{row[row['aim']]:.3f} at best"
        wanted = f"{row['aim']} {row['wanted']:g}"
        cells = [row["dataset"], row["model"], wanted, threshold, here, checked, f"{row['calibration_error']:.3f}"]
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)
