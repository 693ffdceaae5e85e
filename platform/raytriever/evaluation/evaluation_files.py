"""Files of an evaluation directory: TREC runs, results per query, pooled scores and tables.

docs/reference/output-files.md lists them. `report` writes the plots and the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from urllib.parse import quote

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.core.errors import StorageError, disk_errors
from raytriever.core.progress import activity
from raytriever.core.reading.arrays import read_arrays
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import write_atomically
from raytriever.data.columns import texts_at
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.dataset_evaluation import DatasetEvaluation
from raytriever.evaluation.evaluate_split import Evaluation
from raytriever.evaluation.protocol import AUC
from raytriever.metrics.pair_threshold import ScoredPools

PER_QUERY, LATEX = "per_query", "table.tex"
# Limits of `per_query/`: numbers of ranked documents, of relevant documents, and of characters of a text.
TOP, RELEVANT, CHARACTERS = 5, 3, 300
_MOST_BYTES = 4 << 30  # enough for a million queries of ten models
# Types and shapes of pooled scores, and of their queries.
_SCORES, _QUERIES = (["float32", "float64"], (None,)), (["int64"], (None,))
_RUN_QUERIES = 64  # queries whose lines of the run file are in memory at once


class QueryMetrics(TypedDict):
    """Results of a model in `per_query/DATASET.json`: values of each metric and the best documents, by query.

    `auc` has the pseudo-values of the pooled AUC, for its significance test."""

    metrics: dict[str, list[Any]]
    top: list[list[Any]]
    auc: NotRequired[list[Any]]


def values_of(model: QueryMetrics) -> dict[str, Float64[ndarray, " queries"]]:
    """Return the values of each query for every metric that can be tested. A missing value is NaN."""
    auc = {AUC: model["auc"]} if "auc" in model else {}
    return {name: np.array(values, np.float64) for name, values in {**model["metrics"], **auc}.items()}


class QueryValues(TypedDict):
    """Content of `per_query/DATASET.json`; see `per_query_content`. The file name is `dataset` with safe characters."""

    dataset: str
    queries: list[str]
    texts: list[str]
    models: dict[str, QueryMetrics]
    relevant: list[list[Any]]


@activity("writing the rankings")
def write_evaluated_files(folder: Path, evaluated: DatasetEvaluation) -> None:
    """Write the results on one data set: TREC runs, pooled scores and results per query."""
    name = evaluated.source.name
    for model in evaluated.models:
        for part in evaluated.parts:
            run = folder / "runs" / model / f"{evaluated.label(part)}.trec"
            write_run(run, part.evaluations[model], part.dataset, model)
        pools = evaluated.pools(model)
        scores = scores_file(folder, model, name)
        with disk_errors(scores):
            scores.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(scores, **{name: values for name, values in vars(pools).items() if values is not None})
    write_atomically(folder / PER_QUERY / f"{name}.json", per_query_content(evaluated))


def write_run(path: Path, evaluation: Evaluation, dataset: RetrievalDataset, tag: str) -> None:
    """Write rankings as a TREC run, with one result per line: `query Q0 document rank score tag`.

    The format allows no white space inside an id, so such ids are percent-encoded."""
    write_atomically(path, _run_pieces(evaluation, dataset, tag))


def _run_pieces(evaluation: Evaluation, dataset: RetrievalDataset, tag: str) -> Iterator[str]:
    """Yield the lines of a run for a few queries at a time, because lines take more memory than the arrays."""
    for start in range(0, len(evaluation.queries), _RUN_QUERIES):
        rows = slice(start, start + _RUN_QUERIES)
        queries, ranking = evaluation.queries[rows], evaluation.ranking[rows]
        ranked = np.unique(ranking[ranking >= 0])
        documents = dict(zip(ranked.tolist(), map(_column, texts_at(dataset.documents.ids, ranked)), strict=True))
        names = map(_column, texts_at(dataset.queries.ids, queries))
        yield "".join(
            f"{name} Q0 {documents[document]} {rank} {score:.9g} {tag}\n"
            for name, found, scores in zip(names, ranking.tolist(), evaluation.scores[rows].tolist(), strict=True)
            for rank, (document, score) in enumerate(zip(found, scores, strict=True), start=1)
            if document >= 0
        )


def per_query_content(evaluated: DatasetEvaluation) -> str:
    """Return the text of `per_query/DATASET.json`: every model's results for every query, with texts.

        {"dataset": NAME, "queries": [id], "texts": [text],
         "models": {NAME: {"metrics": {metric: [value of each query]},
                           "auc": [pseudo-value of the pooled AUC of each query],
                           "top": [[[document id, title, first 300 characters, score, grade or null], ... 5], ...]}},
         "relevant": [[[document id, title, first 300 characters, grade], ... 3], ...]}

    `top` and `relevant` have one entry for each query. Queries of a divided data set are in the order of its parts,
    with ids `PART/ID`."""
    content: dict[str, Any] = {"dataset": evaluated.source.name, "queries": [], "texts": [], "relevant": []}
    content["models"] = {model: {"metrics": {}, "top": []} for model in evaluated.models}
    for part in evaluated.parts:
        dataset, queries, relevance = part.dataset, part.judged.queries, part.judged.relevance
        prefix = f"{part.name}/" if evaluated.source.is_divided else ""
        content["queries"] += [prefix + dataset.queries.ids[query] for query in queries.tolist()]
        content["texts"] += [str(dataset.queries.texts[query]) for query in queries.tolist()]
        judgements = zip(relevance.queries, relevance.documents, relevance.scores, strict=True)
        grades = {(int(query), int(document)): int(grade) for query, document, grade in judgements}
        grades = {pair: grade for pair, grade in grades.items() if pair[1] < len(dataset.documents)}
        content["relevant"] += _relevant_documents(dataset, grades, len(queries), part.judged.level)
        for model, evaluation in part.evaluations.items():
            entry = content["models"][model]
            entry["top"] += _top_documents(dataset, evaluation, grades)
            for name, values in evaluation.per_query.items():
                entry["metrics"].setdefault(name, []).extend(
                    value if np.isfinite(value) else None for value in values.tolist()
                )
    for model, entry in content["models"].items():
        auc = evaluated.testable_values(model).get(AUC)
        if auc is not None:
            entry["auc"] = [value if np.isfinite(value) else None for value in auc.tolist()]
    return json.dumps(content, ensure_ascii=False) + "\n"


def read_per_query(file: Path, remedy: str = "evaluate again") -> QueryValues:
    """Read a file that `per_query_content` wrote."""
    content = read_json(file, QueryValues, remedy, most=_MOST_BYTES)
    models = content["models"].items()
    lists: dict[str, list[Any]] = {"texts": content["texts"], "relevant": content["relevant"]}
    lists |= {f"models.{name}.top": model["top"] for name, model in models}
    lists |= {f"models.{name}.metrics.{key}": row for name, model in models for key, row in model["metrics"].items()}
    lists |= {f"models.{name}.metrics.{AUC}": model["auc"] for name, model in models if "auc" in model}
    for name, entries in lists.items():
        if len(entries) != len(content["queries"]):
            reason = f"{name!r} has {len(entries)} entries for {len(content['queries'])} queries"
            raise StorageError(f"is damaged or changed: {reason}", str(file), remedy)
        if not _is_valid(name, entries):
            raise StorageError(f"is damaged or changed: {name!r} has values of a wrong type", str(file), remedy)
    return content


def scores_file(folder: Path, model: str, dataset: str) -> Path:
    """Return the path of the pooled scores of a model in an evaluation directory."""
    return folder / "scores" / model / f"{dataset}.npz"


def read_pools(folder: Path, model: str, dataset: str, remedy: str = "evaluate again") -> ScoredPools:
    """Read pooled scores. Raises `StorageError` if the file was damaged or changed."""
    path, sides = scores_file(folder, model, dataset), ("positives", "negatives")
    kinds = dict.fromkeys(sides, _SCORES) | {f"{side[:-1]}_queries": _QUERIES for side in sides}
    arrays = read_arrays(path, kinds, remedy)
    for side in sides:
        if len(arrays[side]) != len(arrays[f"{side[:-1]}_queries"]):
            raise StorageError(f"is damaged or changed: some of its {side} have no query", str(path), remedy)
    return ScoredPools(**arrays)


def read_queries(folder: Path) -> dict[str, QueryValues]:
    """Return the content of `per_query/` in a directory, by data set."""
    contents = (read_per_query(path) for path in sorted((folder / PER_QUERY).glob("*.json")))
    return {content["dataset"]: content for content in contents}


def _column(name: str) -> str:
    return name if name.split() == [name] else quote(name, safe="")


def _relevant_documents(
    dataset: RetrievalDataset, grades: dict[tuple[int, int], int], queries: int, level: int
) -> list[list[list[Any]]]:
    relevant: list[list[tuple[int, int]]] = [[] for _ in range(queries)]
    for (query, document), grade in grades.items():
        if grade >= level:
            relevant[query].append((-grade, document))
    return [
        [[*_excerpt(dataset, document), -grade] for grade, document in sorted(rows)[:RELEVANT]] for rows in relevant
    ]


def _top_documents(
    dataset: RetrievalDataset, evaluation: Evaluation, grades: dict[tuple[int, int], int]
) -> list[list[list[Any]]]:
    rankings, scores = evaluation.ranking[:, :TOP].tolist(), evaluation.scores[:, :TOP].tolist()
    return [
        [
            [*_excerpt(dataset, document), score, grades.get((query, document))]
            for document, score in zip(*results, strict=True)
            if document >= 0
        ]
        for query, results in enumerate(zip(rankings, scores, strict=True))
    ]


def _excerpt(dataset: RetrievalDataset, document: int) -> Sequence[str]:
    documents = dataset.documents
    return str(documents.ids[document]), str(documents.titles[document]), str(documents.texts[document])[:CHARACTERS]


def _is_valid(name: str, entries: list[Any]) -> bool:
    if name == "texts":
        return True
    if ".metrics." in name:
        return all(map(_is_number, entries))
    length = 4 if name == "relevant" else 5  # three texts, then numbers
    return all(
        type(row) is list
        and len(row) == length
        and all(type(text) in (str, type(None)) for text in row[:3])
        and all(map(_is_number, row[3:]))
        for rows in entries
        for row in rows
    )


def _is_number(value: object) -> bool:
    return value is None or type(value) is float or (type(value) is int and abs(value) < 1 << 63)
