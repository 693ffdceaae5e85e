"""Statistics of an evaluation's pooled scores: the interval of each AUC, and thresholds.

Thresholds are chosen on one split for a wanted precision or recall, and checked on the judged split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.activity import activity
from raytriever.errors import ConfigError
from raytriever.evaluation.measurements import DatasetMeasurement
from raytriever.evaluation.protocol import AUC
from raytriever.evaluation.tables import markdown_cell
from raytriever.metrics.auc import auc_interval
from raytriever.metrics.calibration import Achieved, Aim, CalibrationRow, calibrate, expected_calibration_error
from raytriever.tracking.tracker import Point


def auc_rows(measured: DatasetMeasurement) -> list[dict[str, Any]]:
    """Return a row for each model, where the AUC was measured; none for a data set of several parts.

    The AUC of several parts is a mean over them and has no interval.

    Returns:
        Rows of `dataset`, `model`, `auc`, `low`, `high` (95 %, queries as clusters; NaN where there is none),
        `misordered_queries` and `note` (a sentence where the interval is uncertain or missing, else None).
    """
    if measured.about.is_divided:
        return []
    rows = []
    for model, evaluation in measured.parts[0].evaluations.items():
        pools = measured.pools(model)
        if AUC in evaluation.metrics and len(pools.positives) and len(pools.negatives):
            found = auc_interval(pools.positives, pools.negatives, pools.positive_queries, pools.negative_queries)
            rows.append(
                {
                    "dataset": measured.about.name,
                    "model": model,
                    "auc": found.auc,
                    "low": found.low,
                    "high": found.high,
                    "misordered_queries": found.misordered,
                    "note": found.note,
                }
            )
    return rows


def auc_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each row: the model, its AUC, the interval and the note."""
    lines = [f"{row['dataset']}, {row['model']}: AUC {row['auc']:.4f}{_bounds(row)}" for row in rows]
    return [f"{line}. {row['note']}" if row["note"] else line for line, row in zip(lines, rows, strict=True)]


def auc_points(rows: Sequence[Mapping[str, Any]], step: int, milliseconds: int) -> list[Point]:
    """Return the bounds for the tracker, as `MODEL/DATASET/auc_low` and `auc_high`.

    Args:
        rows: from `auc_rows`.
        step: the step of the points.
        milliseconds: their time.
    """
    return [
        Point(f"{row['model']}/{row['dataset']}/auc_{end}", row[end], step, milliseconds)
        for row in rows
        for end in ("low", "high")
        if row[end] == row[end]
    ]


def _bounds(row: Mapping[str, Any]) -> str:
    low, high = row["low"], row["high"]
    return "" if low is None or low != low else f" (95 %: {low:.4f} to {high:.4f})"


CALIBRATE = "--calibrate"
AIMS: tuple[Aim, ...] = ("precision", "recall")
# The shares of the judged split, and the keys of the cases that count and of all cases.
SHARES = {
    "coverage": ("answered_queries", "queries"),
    "top_precision": ("relevant_answers", "answered_queries"),
    "checked_precision": ("relevant_pairs_above", "pairs_above"),
    "checked_recall": ("relevant_pairs_above", "relevant_pairs"),
}
# Below so many answered queries a precision is said to be uncertain: Wilson's interval of 27 of 30 is 0.74 to 0.97.
FEW_QUERIES = 30


def parse_aims(words: Sequence[str]) -> list[tuple[Aim, float]]:
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
def calibration_rows(
    measured: DatasetMeasurement, split: str, aims: Sequence[tuple[Aim, float]]
) -> list[dict[str, Any]]:
    """A row for each model and aim.

    Args:
        measured: with evaluations of the choosing split.
        split: that split's name.
        aims: what is wanted.

    Returns:
        Rows of `dataset`, `model`, `aim`, `wanted`, `threshold` (a score; None where no score has the precision),
        `reached`, `precision` and `recall` (on the choosing split), `checked` (the wanted one on the judged split) with
        `low` and `high`, `calibration_error` (of scores taken for chances), `chosen_on`. On the judged split:
        `queries`, `answered_queries` (with a document at or above the threshold) and their share `coverage`,
        `relevant_answers` (whose best document is relevant) and their share `top_precision`, `pairs_above`,
        `relevant_pairs_above`, `relevant_pairs`, `checked_precision` and `checked_recall` of pairs. Each share has its
        95 % interval as `NAME_low` and `NAME_high`, and is None where it is of nothing. `notes` are sentences on what
        is missing or uncertain.
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
                    **_achieved_keys(row.achieved),
                    "notes": _notes(row, split, measured.about.split),
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


def calibration_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table, and their notes below it; nothing where there are none."""
    if not rows:
        return ""
    head = (
        "data set",
        "model",
        "wanted",
        "threshold",
        f"on {markdown_cell(rows[0]['chosen_on'])}",
        "queries answered",
        "top answer relevant",
        "precision of pairs",
        "recall of pairs",
        "ECE",
    )
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for row in rows:
        reached = bool(row["reached"])
        here = f"{row[row['aim']]:.3f}" + ("" if reached else " at best")
        cells = [
            markdown_cell(row["dataset"]),
            markdown_cell(row["model"]),
            f"{row['aim']} {row['wanted']:g}",
            f"{row['threshold']:.6g}" if reached else "out of reach",
            here,
            *(share_text(row, name) for name in SHARES),
            f"{row['calibration_error']:.3f}",
        ]
        lines.append(" | ".join(cells))
    table = "".join(f"| {line} |\n" for line in lines)
    notes = [f"- {markdown_cell(line)}\n" for line in calibration_notes(rows)]
    return table + ("\n" + "".join(notes) if notes else "")


def calibration_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The notes of all rows, each behind the names of its row."""
    found = [
        f"{row['dataset']}, {row['model']}, {row['aim']} {row['wanted']:g}: {note}"
        for row in rows
        for note in row.get("notes") or ()
    ]
    if any("coverage" not in row for row in rows):
        found.append("An earlier version wrote these results without coverage; evaluate again to measure it.")
    return found


def share_text(row: Mapping[str, Any], name: str) -> str:
    """A share of the judged split with its interval, `1 of 30 = 0.033 (0.006 to 0.167)`; `none` of nothing."""
    value, low, high = share_of(row, name)
    if value is None or low is None or high is None:
        return "none" if row["reached"] and "coverage" in row else "-"
    part, whole = (row.get(key) for key in SHARES[name])
    counts = "" if part is None or whole is None else f"{part:,} of {whole:,} = "
    return f"{counts}{value:.3f} ({low:.3f} to {high:.3f})"


def share_of(row: Mapping[str, Any], name: str) -> tuple[float | None, float | None, float | None]:
    """A share of the judged split and its bounds; of rows without it, what they have of the wanted share."""
    if name not in row and name == f"checked_{row['aim']}":
        return row["checked"], row["low"], row["high"]
    return row.get(name), row.get(f"{name}_low"), row.get(f"{name}_high")


def _achieved_keys(achieved: Achieved | None) -> dict[str, Any]:
    """What a threshold achieves on the judged split, as keys of a row; None where there is no such share."""
    bounds = [f"{name}{end}" for name in SHARES for end in ("", "_low", "_high")]
    counts = [key for keys in SHARES.values() for key in keys]
    found: dict[str, Any] = dict.fromkeys([*counts, *bounds])
    if achieved is None:
        return found
    assert achieved.coverage is not None
    assert achieved.top_precision is not None
    found |= {
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
            found |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}
    return found


def _notes(row: CalibrationRow, split: str, judged: str) -> list[str]:
    """Sentences on a row whose figures are missing or uncertain."""
    threshold, achieved = row.threshold, row.achieved
    if achieved is None or achieved.coverage is None:
        return [
            f"There is no threshold, because no score on {split} has a precision of {threshold.wanted:g}; "
            f"the best there is {threshold.precision:.3f}."
        ]
    answered, queries = achieved.coverage.part, achieved.coverage.whole
    if not answered:
        return [
            f"No document of {judged} scores at or above the threshold. So none of the {queries:,} queries is "
            "answered, and there is no precision."
        ]
    if answered < FEW_QUERIES:
        return [
            f"Few answers: {answered:,} of {queries:,} queries of {judged} have one. Below {FEW_QUERIES} answered "
            "queries a precision says little; see its interval."
        ]
    return []
