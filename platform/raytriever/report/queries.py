"""Choice of the queries on a page: the worst of each metric and model, and those on which two models differ most.

A page that held all queries of a large data set would not open. Each of those lists gives its first queries in turn
until `MOST` are chosen, so that every list is right as far as the page shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.evaluation.protocol import metric_title

MOST = 200  # queries of a data set on a page
SHOWN = 25  # of a list


def chosen_queries(found: Mapping[str, Any]) -> dict[str, Any]:
    """Select the queries of one data set for the script of a page, from `per_query/DATASET.json`.

    Args:
        found: `{"queries", "texts", "models": {NAME: {"metrics": {metric: [value]}, "top": [[[id, title, text, score,
            grade or null]]]}}, "relevant": [[[id, title, text, grade]]]}`; a value may be null.

    Returns:
        `{"models", "metrics", "of", "depth", "documents": [[id, title, text]], "queries": [{"id", "text",
        "values": [[value a metric] a model], "top": [[[document, grade, score]] a model],
        "relevant": [[document, grade]]}]}`, documents by position, each once.
    """
    models = list(found["models"])
    metrics = list(dict.fromkeys(name for model in found["models"].values() for name in model["metrics"]))
    count = len(found["queries"])
    values = np.full((len(models), len(metrics), count), np.nan)
    for row, model in enumerate(found["models"].values()):
        for column, metric in enumerate(metrics):
            if metric in model["metrics"]:
                values[row, column] = np.array(model["metrics"][metric], dtype=np.float64)  # null becomes NaN
    chosen, depth = _choose(values)
    documents: dict[tuple[str, str, str], int] = {}

    def place(document: Sequence[Any]) -> int:
        return documents.setdefault((str(document[0]), str(document[1] or ""), str(document[2])), len(documents))

    queries = [
        {
            "id": found["queries"][query],
            "text": found["texts"][query],
            "values": [[_value(value) for value in of_model] for of_model in values[:, :, query]],
            "top": [
                [[place(document), document[4], _value(document[3])] for document in model["top"][query]]
                for model in found["models"].values()
            ],
            "relevant": [[place(document), document[3]] for document in found["relevant"][query]],
        }
        for query in chosen
    ]
    return {
        "models": models,
        "metrics": [metric_title(name) for name in metrics],
        "of": count,
        "depth": min(depth, SHOWN),
        "documents": list(documents),
        "queries": queries,
    }


def _choose(values: Float64[ndarray, "models metrics queries"]) -> tuple[list[int], int]:
    """Positions of queries, ascending, and how many of each list's first are among them."""
    models, metrics, count = values.shape
    if count <= MOST:
        return list(range(count)), count
    keys = [values[model, metric] for model in range(models) for metric in range(metrics)]
    keys += [
        np.where(difference < 0, difference, np.nan)
        for one, other in permutations(range(models), 2)
        for difference in values[one] - values[other]
    ]
    lists = [np.argsort(key, kind="stable")[: np.count_nonzero(~np.isnan(key))] for key in keys]
    chosen: set[int] = set()
    for depth in range(SHOWN):
        more = chosen | {int(ordered[depth]) for ordered in lists if depth < len(ordered)}
        if len(more) > MOST and depth:
            return sorted(chosen), depth
        chosen = more
    return sorted(chosen), SHOWN


def _value(value: float) -> float | None:
    return None if value != value else round(float(value), 6)
