"""Choice of the queries on a page: the worst of each metric and model, and the largest differences of two models.

A browser cannot open a page with all queries of a large data set. Each list contributes its first query, then its
second, and so on until `MAX_QUERIES` are chosen. Every list is therefore complete to the depth that the page shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.evaluation.protocol import metric_title

MAX_QUERIES = 200  # of one data set on a page
MAX_DEPTH = 25  # queries of one list


def choose_queries(content: Mapping[str, Any]) -> dict[str, Any]:
    """Select the queries of one data set for the script of a page, from `per_query/DATASET.json`.

    Args:
        content: `{"queries", "texts", "models": {NAME: {"metrics": {metric: [value]}, "top": [[[id, title, text, score,
            grade or null]]]}}, "relevant": [[[id, title, text, grade]]]}`; a value may be null.

    Returns:
        `{"models", "metrics", "of", "depth", "documents": [[id, title, text]], "queries": [{"id", "text",
        "values": [[value per metric] per model], "top": [[[document, grade, score]] per model],
        "relevant": [[document, grade]]}]}`. A document is its index in `documents`, which has each document once.
    """
    models = list(content["models"])
    metrics = list(dict.fromkeys(name for model in content["models"].values() for name in model["metrics"]))
    count = len(content["queries"])
    values = np.full((len(models), len(metrics), count), np.nan)
    for row, model in enumerate(content["models"].values()):
        for column, metric in enumerate(metrics):
            if metric in model["metrics"]:
                values[row, column] = np.array(model["metrics"][metric], dtype=np.float64)  # null becomes NaN
    chosen, depth = _choose(values)
    documents: dict[tuple[str, str, str], int] = {}

    def index_of(document: Sequence[Any]) -> int:
        return documents.setdefault((str(document[0]), str(document[1] or ""), str(document[2])), len(documents))

    queries = [
        {
            "id": content["queries"][query],
            "text": content["texts"][query],
            "values": [[_value(value) for value in row] for row in values[:, :, query]],
            "top": [
                [[index_of(document), document[4], _value(document[3])] for document in model["top"][query]]
                for model in content["models"].values()
            ],
            "relevant": [[index_of(document), document[3]] for document in content["relevant"][query]],
        }
        for query in chosen
    ]
    return {
        "models": models,
        "metrics": [metric_title(name) for name in metrics],
        "of": count,
        "depth": min(depth, MAX_DEPTH),
        "documents": list(documents),
        "queries": queries,
    }


def _choose(values: Float64[ndarray, "models metrics queries"]) -> tuple[list[int], int]:
    """Return the indices of the chosen queries, ascending, and the depth to which each list is complete."""
    models, metrics, count = values.shape
    if count <= MAX_QUERIES:
        return list(range(count)), count
    keys = [values[model, metric] for model in range(models) for metric in range(metrics)]
    keys += [
        np.where(difference < 0, difference, np.nan)
        for one, other in permutations(range(models), 2)
        for difference in values[one] - values[other]
    ]
    lists = [np.argsort(key, kind="stable")[: np.count_nonzero(~np.isnan(key))] for key in keys]
    chosen: set[int] = set()
    for depth in range(MAX_DEPTH):
        more = chosen | {int(ordered[depth]) for ordered in lists if depth < len(ordered)}
        if len(more) > MAX_QUERIES and depth:
            return sorted(chosen), depth
        chosen = more
    return sorted(chosen), MAX_DEPTH


def _value(value: float) -> float | None:
    return None if value != value else round(float(value), 6)
