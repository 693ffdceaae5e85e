"""Statistics of an evaluation's pooled scores: the interval of each AUC, and thresholds.

Thresholds are chosen on one split for wanted values, and checked on the evaluated split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.activity import activity
from raytriever.errors import ConfigError, setting
from raytriever.evaluation.measurements import DatasetMeasurement
from raytriever.evaluation.protocol import AUC
from raytriever.metrics.auc import auc_interval
from raytriever.metrics.calibration import (
    FEWEST_ANSWERED,
    Achieved,
    Aim,
    CalibrationRow,
    WantedAim,
    calibrate,
)
from raytriever.metrics.probability import calibration_error_of_scores
from raytriever.terminal import markdown_cell, markdown_table
from raytriever.tracking.tracker import Point

CALIBRATE = setting("calibrate")
AIMS: tuple[Aim, ...] = ("top_precision", "answered", "f1", "precision", "recall")
# Shares on the evaluated split: keys of the counted cases and of all cases.
SHARES = {
    "coverage": ("answered_queries", "queries"),
    "top_precision": ("relevant_answers", "answered_queries"),
    "checked_precision": ("relevant_pairs_above", "pairs_above"),
    "checked_recall": ("relevant_pairs_above", "relevant_pairs"),
}
SHARE_TITLES = {
    "coverage": "queries answered",
    "top_precision": "top answer relevant",
    "checked_precision": "precision of pairs",
    "checked_recall": "recall of pairs",
}


def auc_rows(measured: DatasetMeasurement) -> list[dict[str, Any]]:
    """Return a row for each model whose AUC was measured.

    A divided data set has no rows, because its AUC is a mean over parts and has no interval.

    Returns:
        Rows of `dataset`, `model`, `auc`, `low`, `high` (95 %, queries as clusters; NaN if there is no interval),
        `misordered_queries` and `note` (a sentence if the interval is uncertain or missing, otherwise None).
    """
    if measured.source.is_divided:
        return []
    rows = []
    for model, evaluation in measured.parts[0].evaluations.items():
        pools = measured.pools(model)
        if AUC in evaluation.metrics and len(pools.positives) and len(pools.negatives):
            interval = auc_interval(pools.positives, pools.negatives, pools.positive_queries, pools.negative_queries)
            rows.append(
                {
                    "dataset": measured.source.name,
                    "model": model,
                    "auc": interval.auc,
                    "low": interval.low,
                    "high": interval.high,
                    "misordered_queries": interval.misordered,
                    "note": interval.note,
                }
            )
    return rows


def auc_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format a line for each row: data set, model, AUC, interval and note."""
    lines = [f"{row['dataset']}, {row['model']}: AUC {row['auc']:.4f}{_bounds(row)}" for row in rows]
    return [f"{line}. {row['note']}" if row["note"] else line for line, row in zip(lines, rows, strict=True)]


def auc_points(rows: Sequence[Mapping[str, Any]], step: int, milliseconds: int) -> list[Point]:
    """Return the bounds as points for the tracker, `MODEL/DATASET/auc_low` and `MODEL/DATASET/auc_high`."""
    return [
        Point(f"{row['model']}/{row['dataset']}/auc_{end}", row[end], step, milliseconds)
        for row in rows
        for end in ("low", "high")
        if row[end] == row[end]
    ]


def parse_aims(words: Sequence[str]) -> list[WantedAim]:
    """Read aims such as `top-precision=0.9`, `answered=0.8`, `f1`, `precision=0.9` and `recall=0.8`."""
    aims: list[WantedAim] = []
    for word in words:
        name, _, number = word.strip().lower().replace("-", "_").partition("=")
        aim = next((one for one in AIMS if one == name.strip()), None)
        try:
            wanted = float(number)
        except ValueError:
            wanted = float("nan")
        if aim is None or (number if aim == "f1" else not 0 < wanted <= 1):
            remedy = "write top-precision=0.9, answered=0.8, f1, precision=0.9 or recall=0.8, above 0 and at most 1"
            raise ConfigError(f"{word!r} is no aim", CALIBRATE, remedy)
        aims.append((aim, None if aim == "f1" else wanted))
    return aims


def aim_text(aim: str, wanted: float | None) -> str:
    """Return an aim as text, such as `top-precision 0.9`."""
    return aim.replace("_", "-") + ("" if wanted is None else f" {wanted:g}")


def chosen_value(row: Mapping[str, Any]) -> float | None:
    """Return the value of a row's aim on the split on which its threshold was chosen, or the best there is."""
    value: float | None = row["chosen"] if "chosen" in row else row.get(row["aim"])  # earlier versions had pairs only
    return value


@activity("choosing the thresholds")
def calibration_rows(measured: DatasetMeasurement, split: str, aims: Sequence[WantedAim]) -> list[dict[str, Any]]:
    """Choose and check a threshold for each model and aim.

    Returns:
        One row for each model and aim:

        - `dataset`, `model`, `aim`, `wanted`, `chosen_on`.
        - On the calibration split: `threshold` (a score; None if no score has the precision), `reached`, `chosen` (the
          value of the aim), and `precision` and `recall` of pairs.
        - On the evaluated split: `checked` (the value of the aim) with `low` and `high`, `queries`,
          `answered_queries` (with a document at or above the threshold) and their share `coverage`,
          `relevant_answers` (queries whose best document is relevant) and their share `top_precision`, `pairs_above`,
          `relevant_pairs_above`, `relevant_pairs`, and `checked_precision` and `checked_recall` of pairs. Each share
          has its 95 % interval as `NAME_low` and `NAME_high`. A share of nothing is None.
        - `calibration_error`: error of scores as probabilities, between the splits, with its interval
          (`metrics.probability`).
        - `notes`: sentences on missing or uncertain figures.
    """
    rows = []
    for model in measured.parts[0].evaluations if aims else ():
        calibration, evaluated = measured.calibration_pools(model), measured.pools(model)
        error = calibration_error_of_scores(calibration, evaluated)
        for row in calibrate(calibration, evaluated, aims):
            threshold = row.threshold
            rows.append(
                {
                    "dataset": measured.source.name,
                    "model": model,
                    "aim": threshold.aim,
                    "wanted": threshold.wanted,
                    "threshold": threshold.score if threshold.reached else None,
                    "reached": threshold.reached,
                    "chosen": threshold.value,
                    "precision": threshold.precision,
                    "recall": threshold.recall,
                    "checked": row.checked,
                    "low": row.low,
                    "high": row.high,
                    "calibration_error": error.value,
                    "calibration_error_low": error.low,
                    "calibration_error_high": error.high,
                    "chosen_on": split,
                    **_achieved_keys(row.achieved),
                    "notes": _notes(row, split, measured.source.split),
                }
            )
    return rows


def calibration_points(rows: Sequence[Mapping[str, Any]], step: int, milliseconds: int) -> list[Point]:
    """Return the figures of each row as points for the tracker, `calibration/MODEL/DATASET/precision-0.9/threshold`.

    A figure without a value has no point.
    """
    points = []
    for row in rows:
        name = f"calibration/{row['model']}/{row['dataset']}/{aim_text(row['aim'], row['wanted']).replace(' ', '-')}"
        for figure, value in row.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if figure != "wanted" and is_number and math.isfinite(value):
                points.append(Point(f"{name}/{figure}", float(value), step, milliseconds))
    return points


def calibration_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows as a Markdown table with their notes below it; empty without rows."""
    if not rows:
        return ""
    titles = ["data set", "model", "wanted", "threshold", f"on {rows[0]['chosen_on']}", *SHARE_TITLES.values()]
    lines = [
        (
            row["dataset"],
            row["model"],
            aim_text(row["aim"], row["wanted"]),
            threshold_text(row),
            chosen_text(row, 3),
            *(share_text(row, name) for name in SHARES),
            calibration_error_text(row),
        )
        for row in rows
    ]
    notes = [f"- {markdown_cell(line)}\n" for line in calibration_notes(rows)]
    return markdown_table([[*titles, "calibration error"], *lines]) + ("\n" + "".join(notes) if notes else "")


def calibration_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the notes of all rows, each with its data set, model and aim."""
    notes = [
        f"{row['dataset']}, {row['model']}, {aim_text(row['aim'], row['wanted'])}: {note}"
        for row in rows
        for note in row.get("notes") or ()
    ]
    if any("coverage" not in row for row in rows):
        notes.append("An earlier version wrote these results without coverage; evaluate again to measure it.")
    elif any("calibration_error_low" not in row for row in rows):
        notes.append("An earlier version overstated the calibration error; evaluate again to measure it.")
    return notes


def threshold_text(row: Mapping[str, Any]) -> str:
    """Format the threshold of a row."""
    return f"{row['threshold']:.6g}" if row["reached"] else "out of reach"


def calibration_error_text(row: Mapping[str, Any]) -> str:
    """Format the calibration error of a row with its interval; rows of earlier versions have none."""
    value, low, high = (row.get(f"calibration_error{bound}") for bound in ("", "_low", "_high"))
    if value is None or value != value:
        return "-"
    return f"{value:.3f}" + ("" if low is None or high is None else f" ({low:.3f} to {high:.3f})")


def chosen_text(row: Mapping[str, Any], places: int) -> str:
    """Format the value of a row's aim on the choosing split with a number of decimal places."""
    value = chosen_value(row)
    if value is None or value != value:
        return "-"
    return f"{value:.{places}f}" + ("" if row["reached"] else " at best")


def share_text(row: Mapping[str, Any], name: str) -> str:
    """Format a share with its interval, `1 of 30 = 0.033 (0.006 to 0.167)`; a share of nothing is `none`."""
    value, low, high = share_of(row, name)
    if value is None or low is None or high is None:
        return "none" if row["reached"] and "coverage" in row else "-"
    part, whole = (row.get(key) for key in SHARES[name])
    counts = "" if part is None or whole is None else f"{part:,} of {whole:,} = "
    return f"{counts}{value:.3f} ({low:.3f} to {high:.3f})"


def share_of(row: Mapping[str, Any], name: str) -> tuple[float | None, float | None, float | None]:
    """Return a share on the evaluated split and its bounds; rows of earlier versions have only the wanted share."""
    if name not in row and name == f"checked_{row['aim']}":
        return row["checked"], row["low"], row["high"]
    return row.get(name), row.get(f"{name}_low"), row.get(f"{name}_high")


def _bounds(row: Mapping[str, Any]) -> str:
    low, high = row["low"], row["high"]
    return "" if low is None or low != low else f" (95 %: {low:.4f} to {high:.4f})"


def _achieved_keys(achieved: Achieved | None) -> dict[str, Any]:
    """Return the shares that a threshold achieves on the evaluated split, as keys of a row; a missing one is None."""
    bounds = [f"{name}{end}" for name in SHARES for end in ("", "_low", "_high")]
    counts = [key for keys in SHARES.values() for key in keys]
    keys: dict[str, Any] = dict.fromkeys([*counts, *bounds])
    if achieved is None:
        return keys
    keys |= {
        "queries": achieved.coverage.whole,
        "answered_queries": achieved.coverage.part,
        "relevant_answers": achieved.top_precision.part,
        "pairs_above": achieved.precision.whole,
        "relevant_pairs_above": achieved.precision.part,
        "relevant_pairs": achieved.recall.whole,
    }
    shares = (achieved.coverage, achieved.top_precision, achieved.precision, achieved.recall)
    for name, share in zip(SHARES, shares, strict=True):
        if share.whole:
            keys |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}
    return keys


def _notes(row: CalibrationRow, split: str, judged: str) -> list[str]:
    """Return sentences on the missing or uncertain figures of a row."""
    threshold, achieved = row.threshold, row.achieved
    if achieved is None:
        among, best = f"no score on {split} has", f"the best there is {threshold.value:.3f}"
        if threshold.aim == "top_precision":
            among = f"no {FEWEST_ANSWERED} or more of the top answers on {split} above one score have"
            best = (
                f"the best there is {threshold.value:.3f}" if threshold.value == threshold.value else "there are fewer"
            )
        wanted = "a precision" if threshold.wanted is None else f"a precision of {threshold.wanted:g}"
        return [f"There is no threshold, because {among} {wanted}; {best}."]
    answered, queries = achieved.coverage.part, achieved.coverage.whole
    if not answered:
        return [
            f"No document of {judged} scores at or above the threshold. So none of the {queries:,} queries is "
            "answered, and there is no precision."
        ]
    if answered < FEWEST_ANSWERED:
        return [
            f"Few answers: {answered:,} of {queries:,} queries of {judged} have one. Below {FEWEST_ANSWERED} answered "
            "queries a precision says little; see its interval."
        ]
    return []
