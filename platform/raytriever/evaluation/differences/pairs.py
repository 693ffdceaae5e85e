"""All pairs of three or more systems: which is the best, and which differences are more than chance.

Every pair is tested by the two-sided paired t-test over queries. Holm's correction counts all pairs on all data sets of
a metric, so the probability of any false difference of the metric stays at 5 %.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raytriever.activity import activity
from raytriever.evaluation.differences.significance import Values
from raytriever.evaluation.protocol import metric_title
from raytriever.metrics.significance import LEVEL, difference_interval, effect_size, holm, paired_t_test

LEAST_SYSTEMS = 3
MOST_LINES = 40  # of all pairs on a terminal


@activity("testing all pairs")
def pair_rows(values: Values) -> list[dict[str, Any]]:
    """Test every pair of systems, on every metric that has a value for each query.

    Args:
        values: Values of each query by model, data set and metric; on a data set all models have the same queries.

    Returns:
        Rows of `dataset`, `metric`, `model` (the better one), `against`, `difference` (at least 0), `low` and `high`
        (its 95 % interval), `p`, `p_holm`, `effect` (Cohen's d_z) and `queries`; no rows for fewer than three systems.
    """
    if len(values) < LEAST_SYSTEMS:
        return []
    rows = []
    for metric in dict.fromkeys(name for sets in values.values() for one in sets.values() for name in one):
        tested = [
            row
            for first, second in itertools.combinations(values, 2)
            for dataset in values[first]
            if (row := _row(values, dataset, metric, first, second)) is not None
        ]
        for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
            rows.append(row | {"p_holm": float(p)})
    return rows


def _row(values: Values, dataset: str, metric: str, first: str, second: str) -> dict[str, Any] | None:
    columns = [values[model].get(dataset, {}).get(metric) for model in (first, second)]
    ours, theirs = columns
    if ours is None or theirs is None or len(ours) != len(theirs):  # runs that are compared may have other queries
        return None
    has_values = np.isfinite(ours) & np.isfinite(theirs)
    if has_values.sum() < 2:
        return None
    ours, theirs = ours[has_values], theirs[has_values]
    if ours.mean() < theirs.mean():
        first, second, ours, theirs = second, first, theirs, ours
    low, high = difference_interval(ours, theirs)
    return {
        "dataset": dataset,
        "metric": metric,
        "model": first,
        "against": second,
        "difference": float((ours - theirs).mean()),
        "low": low,
        "high": high,
        "p": paired_t_test(ours, theirs).p_value,
        "effect": cohen if np.isfinite(cohen := effect_size(ours, theirs).cohen) else None,
        "queries": len(ours),
    }


def best_sentences(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str] | None = None) -> list[str]:
    """Name the best system of each metric on each data set, and those that are not significantly below it.

    Args:
        rows: Rows of `pair_rows`.
        names: Names of systems in print, if they have others.
    """
    several = len({row["dataset"] for row in rows}) > 1
    return [
        _best_sentence(own, names or {}) + (f" on {own[0]['dataset']}" if several else "") for own in _by_column(rows)
    ]


def _by_column(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    columns: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        columns.setdefault((row["dataset"], row["metric"]), []).append(row)
    return list(columns.values())


def _best_sentence(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    wins = Counter(row["model"] for row in rows)
    best = wins.most_common(1)[0][0]
    near = [row for row in rows if row["model"] == best and row["p_holm"] >= LEVEL]
    title, name = metric_title(rows[0]["metric"]), names.get(best, best)
    if not near:
        return f"{title}: {name} is the best, significantly above every other"
    others = " and ".join(f"{names.get(row['against'], row['against'])} ({format_p(row['p_holm'])})" for row in near)
    return f"{title}: {name} has the highest mean, not significantly above {others}"


def format_p(p: float) -> str:
    """Format a p-value."""
    return "p < 0.0001" if p < 1e-4 else f"p {p:.4f}"


def pair_lines(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, str] | None = None, most: int | None = MOST_LINES
) -> list[str]:
    """Describe all pairs: for each metric the best system, then a line for each pair, the largest difference first.

    Args:
        rows: Rows of `pair_rows`.
        names: Names of systems in print, if they have others.
        most: Lines of pairs at most; above it, the sentences on the best systems alone. None for no limit.
    """
    if not rows:
        return []
    shown = dict(names or {})
    several = len({row["dataset"] for row in rows}) > 1
    lines = [f"All pairs: paired t-test, p after Holm's correction over the pairs{' and data sets' * several}"]
    for own, sentence in zip(_by_column(rows), best_sentences(rows, names), strict=True):
        lines.append(f"  {sentence}")
        if most is not None and len(rows) > most:
            continue
        pairs = [" - ".join(shown.get(row[side], row[side]) for side in ("model", "against")) for row in own]
        width = max(map(len, pairs))
        for pair, row in sorted(zip(pairs, own, strict=True), key=lambda item: -item[1]["difference"]):
            interval = f"95 % {row['low']:+.4f} to {row['high']:+.4f}"
            outcome = "significant" if row["p_holm"] < LEVEL else "not significant"
            p = format_p(row["p_holm"])
            lines.append(f"    {pair:<{width}}  {row['difference']:+.4f}  {interval}  {p}  {outcome}")
    return lines
