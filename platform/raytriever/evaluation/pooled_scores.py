"""Interval of the AUC of each model's pooled scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.evaluation.measurements import DatasetMeasurement
from raytriever.evaluation.protocol import AUC
from raytriever.metrics.auc import auc_interval
from raytriever.tracking.tracker import Point


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


def _bounds(row: Mapping[str, Any]) -> str:
    low, high = row["low"], row["high"]
    return "" if low is None or low != low else f" (95 %: {low:.4f} to {high:.4f})"
