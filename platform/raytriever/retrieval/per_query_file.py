"""`per_query/DATASET.json`: what every model found for every query, with texts, for whoever looks into the figures.

{"queries": [id], "texts": [text], "models": {NAME: {"metrics": {metric: [value a query]},
 "top": [[[document id, title, first 300 characters, score, grade or null], ... 5], ... a query]}},
 "relevant": [[[id, title, 300 characters, grade], ... 3], ... a query]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import StorageError
from raytriever.reading.structured import read_json
from raytriever.retrieval.evaluate import Evaluation
from raytriever.retrieval.measured import MeasuredPart, MeasuredSet
from raytriever.retrieval.protocol import Protocol, judged_queries
from raytriever.storage import disk_errors

TOP, RELEVANT, CHARACTERS = 5, 3, 300
_MOST_BYTES = 4 << 30  # a million queries of ten models


def per_query_content(measured: MeasuredSet, protocol: Protocol) -> str:
    """The text of the file; queries of a divided data set stand part by part, their ids as `PART/ID`."""
    models = list(measured.parts[0].evaluations)
    whole: dict[str, Any] = {"queries": [], "texts": [], "relevant": []}
    whole["models"] = {model: {"metrics": {}, "top": []} for model in models}
    for part in measured.parts:
        dataset = part.dataset
        queries, relevance = judged_queries(dataset, measured.about.split, protocol)
        prefix = f"{part.name}/" if measured.about.is_divided else ""
        whole["queries"] += [prefix + dataset.queries.ids[query] for query in queries.tolist()]
        whole["texts"] += [str(dataset.queries.texts[query]) for query in queries.tolist()]
        judged = zip(relevance.queries, relevance.documents, relevance.scores, strict=True)
        grades = {(int(query), int(document)): int(grade) for query, document, grade in judged}
        grades = {pair: grade for pair, grade in grades.items() if pair[1] < len(dataset.documents)}
        whole["relevant"] += _relevant(dataset, grades, len(queries), protocol.level)
        for model in models:
            found = whole["models"][model]
            found["top"] += _top(part, part.evaluations[model], grades)
            for name, values in part.evaluations[model].per_query.items():
                found["metrics"].setdefault(name, []).extend(_numbers(values))
    return json.dumps(whole, ensure_ascii=False) + "\n"


class QueryMetrics(TypedDict):
    """The values a query of one model by metric, and its best documents."""

    metrics: dict[str, list[Any]]
    top: list[list[Any]]


class QueryValues(TypedDict):
    """The content of the file."""

    queries: list[str]
    texts: list[str]
    models: dict[str, QueryMetrics]
    relevant: list[list[Any]]


def read_per_query(file: Path, remedy: str = "evaluate again") -> QueryValues:
    """Read what `per_query_content` made.

    Raises:
        StorageError: it is not as it was written, or its lists have not one entry a query.
    """
    with disk_errors(file, reading=True):
        found = read_json(file, QueryValues, remedy, most=_MOST_BYTES)
    models = found["models"].items()
    lists: dict[str, list[Any]] = {"texts": found["texts"], "relevant": found["relevant"]}
    lists |= {f"models.{name}.top": model["top"] for name, model in models}
    lists |= {f"models.{name}.metrics.{key}": held for name, model in models for key, held in model["metrics"].items()}
    for name, held in lists.items():
        if len(held) != len(found["queries"]):
            reason = f"{name!r} has {len(held)} entries for {len(found['queries'])} queries"
            raise StorageError(f"is torn or changed: {reason}", str(file), remedy)
    documents = {"relevant": (4, 3, 4), "top": (5, 3, 5)}
    for name, held in lists.items():
        if ".metrics." in name:
            whole = all(map(_is_number, held))
        elif name == "texts":
            continue
        else:
            length, first, last = documents["relevant" if name == "relevant" else "top"]
            whole = all(
                type(row) is list
                and len(row) == length
                and all(type(text) in (str, type(None)) for text in row[:first])
                and all(map(_is_number, row[first:last]))
                for rows in held
                for row in rows
            )
        if not whole:
            raise StorageError(f"is torn or changed: {name!r} holds other values", str(file), remedy)
    return found


def _is_number(value: object) -> bool:
    """Whether a value is null or a number that a float holds."""
    return value is None or type(value) is float or (type(value) is int and abs(value) < 1 << 63)


def _relevant(
    dataset: RetrievalDataset, grades: dict[tuple[int, int], int], queries: int, level: int
) -> list[list[list[Any]]]:
    """The documents of the highest grades of each query, of equal ones those that stand first in the corpus."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(queries)]
    for (query, document), grade in grades.items():
        if grade >= level:
            found[query].append((-grade, document))
    return [[[*_excerpt(dataset, document), -grade] for grade, document in sorted(rows)[:RELEVANT]] for rows in found]


def _top(part: MeasuredPart, evaluation: Evaluation, grades: dict[tuple[int, int], int]) -> list[list[list[Any]]]:
    rows = []
    for query, (ranking, scores) in enumerate(
        zip(evaluation.ranking[:, :TOP].tolist(), evaluation.scores[:, :TOP].tolist(), strict=True)
    ):
        rows.append(
            [
                [*_excerpt(part.dataset, document), score, grades.get((query, document))]
                for document, score in zip(ranking, scores, strict=True)
                if document >= 0
            ]
        )
    return rows


def _excerpt(dataset: RetrievalDataset, document: int) -> Sequence[str]:
    documents = dataset.documents
    return str(documents.ids[document]), str(documents.titles[document]), str(documents.texts[document])[:CHARACTERS]


def _numbers(values: ndarray) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
