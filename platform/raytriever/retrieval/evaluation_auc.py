"""The interval of each pooled AUC of an evaluation, with a note where it is uncertain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.metrics.auc_interval import auc_interval
from raytriever.retrieval.measured import MeasuredSet
from raytriever.retrieval.protocol import AUC
from raytriever.tracking.tracker import Point


def auc_rows(measured: MeasuredSet) -> list[dict[str, Any]]:
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
