"""The models of an evaluation against its baselines: rows of tests, Holm's correction over the data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.activity import activity
from raytriever.metrics.comparison import FIRST_MARKS, SECOND_MARKS, compare, mark

# Values by model, data set and metric.
Values = Mapping[str, Mapping[str, Mapping[str, ndarray]]]


@activity("testing the differences")
def significance_rows(values: Values, baselines: Sequence[str]) -> list[dict[str, Any]]:
    """Every model against every baseline, on every metric that has a value a query.

    Queries without a value (the AUC of one query, where nothing is irrelevant) are left out of both; so are data sets
    with fewer than two queries, on which nothing can be tested.

    Args:
        values: by model, data set and metric; in a data set all models have the same queries.
        baselines: one model or two; marks are `+` and `-` against the first, `◆` and `◇` against the second.

    Returns:
        Rows of `dataset`, `metric`, `model`, `against`, `difference` (mean of model - baseline), `p` (two-sided paired
        t-test), `p_holm`, `p_randomisation`, `p_randomisation_holm`, `effect` (Cohen's d_z), `queries`, `mark`.
    """
    rows = []
    for baseline, marks in zip(baselines, (FIRST_MARKS, SECOND_MARKS), strict=False):
        for model in values:
            if model == baseline:
                continue
            for metric in next(iter(values[model].values())):
                pairs = _pairs(values[model], values[baseline], metric)
                ours, theirs = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
                found = compare(ours, theirs)
                for dataset, one in found.items():
                    rows.append(
                        {
                            "dataset": dataset,
                            "metric": metric,
                            "model": model,
                            "against": baseline,
                            "difference": one.difference,
                            "p": one.t_test.p_value,
                            "p_holm": one.corrected_t,
                            "p_randomisation": one.randomisation.p_value,
                            "p_randomisation_holm": one.corrected_randomisation,
                            "effect": one.effect.cohen,
                            "queries": one.queries,
                            "mark": mark(one, marks),
                        }
                    )
    return rows


def marks_of(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], str]:
    """The marks of (data set, model, metric), those of the first baseline first."""
    found: dict[tuple[str, str, str], str] = {}
    for row in rows:
        key = (row["dataset"], row["model"], row["metric"])
        found[key] = found.get(key, "") + row["mark"]
    return found


def _pairs(
    model: Mapping[str, Mapping[str, ndarray]], baseline: Mapping[str, Mapping[str, ndarray]], metric: str
) -> dict[str, tuple[ndarray, ndarray]]:
    pairs = {}
    for dataset in model:
        ours, theirs = model[dataset][metric], baseline[dataset][metric]
        valued = np.isfinite(ours) & np.isfinite(theirs)
        if valued.sum() >= 2:
            pairs[dataset] = ours[valued], theirs[valued]
    return pairs
