"""`per_query/DATASET.json`: what every model found for every query, with texts, for whoever looks into the figures.

{"queries": [id], "texts": [text], "models": {NAME: {"metrics": {metric: [value a query]},
 "top": [[[document id, title, first 300 characters, score, grade or null], ... 5], ... a query]}},
 "relevant": [[[id, title, 300 characters, grade], ... 3], ... a query]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.retrieval.evaluate import Evaluation
from raytriever.retrieval.measured import MeasuredPart, MeasuredSet
from raytriever.retrieval.protocol import Protocol, judged_queries

TOP, RELEVANT, CHARACTERS = 5, 3, 300


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
