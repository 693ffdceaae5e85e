"""The figures of the study of the query-document gap as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from typing import Any

from raytriever.index.approximate.measure import OperatingPoint, format_columns, format_count
from raytriever.studies.ood.gap import Gap, IndexFigures, K, verdict

# Shares of the documents that an index may score for a query.
BUDGETS = (0.01, 0.02, 0.05)


def recall_within(points: list[OperatingPoint], budget: float) -> float:
    """The highest recall of settings that score at most so many candidates; NaN where none does or none tells."""
    return max((point.recall for point in points if point.candidates <= budget), default=float("nan"))


def tables(figures: dict[str, IndexFigures], gap: Gap, documents: int) -> str:
    """What indexes cost and found, what queries made them look at, and what the clouds say."""
    built = [
        [
            kind,
            f"{found.build_seconds:,.1f}",
            f"{found.bytes / 1e6:,.1f}",
            *(_share(recall_within(found.curves[K], share * documents)) for share in BUDGETS),
        ]
        for kind, found in figures.items()
    ]
    shifts = [
        [
            kind,
            _share(found.queries.recall),
            format_count(found.held_out.candidates),
            format_count(found.queries.candidates),
            _ratio(found.ratio),
        ]
        for kind, found in figures.items()
        if kind != "flat"
    ]
    heads = [f"recall@{K}, {share:.0%} scored" for share in BUDGETS]
    return "\n\n".join(
        [
            format_columns(["index", "build s", "MB beside embeddings", *heads], built),
            format_columns(
                [f"candidates at recall@{K} of", "", "passages held out", "queries", "queries / passages"], shifts
            ),
            f"MMD² of queries {gap.queries:.4f}, of passages held out {gap.held_out:.4f}; a query's score is above a "
            f"passage's in {gap.beyond:.1%} of pairs",
            verdict(figures),
        ]
    )


def record(figures: dict[str, IndexFigures], gap: Gap) -> dict[str, Any]:
    """All figures, as JSON holds them: what is not told is null."""
    found = {
        kind: {
            **asdict(one),
            "curves": {str(k): [asdict(point) for point in points] for k, points in one.curves.items()},
        }
        | {"ratio": one.ratio}
        for kind, one in figures.items()
    }
    told = {"indexes": found, "mmd2": {"queries": gap.queries, "held_out": gap.held_out}, "beyond": gap.beyond}
    cleaned: dict[str, Any] = _without_nan(told | {"verdict": verdict(figures)})
    return cleaned


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and isnan(value) else value


def _share(value: float) -> str:
    return "-" if isnan(value) else f"{value:.3f}"


def _ratio(value: float) -> str:
    return "-" if isnan(value) else f"{value:.2f}"
