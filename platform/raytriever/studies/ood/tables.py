"""Results of the query-document gap as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from typing import Any

from raytriever.index.approximate.measure import OperatingPoint, format_count
from raytriever.studies.ood.gap import Gap, IndexMeasurement, K, describe_gap
from raytriever.terminal import text_table

# Shares of the documents that an index may score for a query, 0 to 1.
BUDGETS = (0.01, 0.02, 0.05)


def recall_within(points: list[OperatingPoint], budget: float) -> float:
    """Return the highest recall of settings that score at most `budget` candidates.

    NaN if no setting scores so few, or if candidates are not counted.
    """
    return max((point.recall for point in points if point.candidates <= budget), default=float("nan"))


def format_tables(indexes: dict[str, IndexMeasurement], gap: Gap, documents: int) -> str:
    """Return the tables of costs, recalls and candidates of the indexes, and the distances.

    Args:
        indexes: measurements by kind of index.
        gap: distances of queries and held-out passages.
        documents: number of indexed documents.
    """
    costs = [
        [
            kind,
            f"{one.build_seconds:,.1f}",
            f"{one.bytes / 1e6:,.1f}",
            *(_format_share(recall_within(one.curves[K], share * documents)) for share in BUDGETS),
        ]
        for kind, one in indexes.items()
    ]
    shifts = [
        [
            kind,
            _format_share(one.queries.recall),
            format_count(one.held_out.candidates),
            format_count(one.queries.candidates),
            _format_ratio(one.ratio),
        ]
        for kind, one in indexes.items()
        if kind != "flat"
    ]
    heads = [f"recall@{K}, {share:.0%} scored" for share in BUDGETS]
    return "\n\n".join(
        [
            text_table([["index", "build s", "MB without embeddings", *heads], *costs], left=0),
            text_table(
                [[f"candidates at recall@{K} of", "", "held-out passages", "queries", "queries / passages"], *shifts],
                left=0,
            ),
            f"MMD² of queries {gap.queries:.4f}, of held-out passages {gap.held_out:.4f}; a query's score is above a "
            f"passage's in {gap.beyond:.1%} of pairs",
            describe_gap(indexes),
        ]
    )


def to_json(indexes: dict[str, IndexMeasurement], gap: Gap) -> dict[str, Any]:
    """Return all results with null in place of NaN."""
    measurements = {
        kind: {
            **asdict(one),
            "curves": {str(k): [asdict(point) for point in points] for k, points in one.curves.items()},
        }
        | {"ratio": one.ratio}
        for kind, one in indexes.items()
    }
    results: dict[str, Any] = _without_nan(
        {
            "indexes": measurements,
            "mmd2": {"queries": gap.queries, "held_out": gap.held_out},
            "beyond": gap.beyond,
            "verdict": describe_gap(indexes),
        }
    )
    return results


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and isnan(value) else value


def _format_share(value: float) -> str:
    return "-" if isnan(value) else f"{value:.3f}"


def _format_ratio(value: float) -> str:
    return "-" if isnan(value) else f"{value:.2f}"
