"""Files of an evaluation directory: TREC runs, MTEB results, results per query, pooled scores and tables.

docs/reference/output-files.md lists them. Figures and the page are written by `report`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import StorageError
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.measurements import DatasetMeasurement, PartMeasurement
from raytriever.evaluation.paper_table import latex, markdown, paper_tables
from raytriever.evaluation.pooled_scores import calibration_table
from raytriever.evaluation.protocol import Protocol, format_absent, select_judged_queries
from raytriever.evaluation.results import RESULTS, Results, bm25_warnings
from raytriever.evaluation.significance import collect_marks, read_best_rows
from raytriever.metrics.ranking import mean, measure_ranking
from raytriever.reading.structured import read_json
from raytriever.storage import disk_errors, write_atomically


def write_run(path: Path, evaluation: Evaluation, dataset: RetrievalDataset, tag: str) -> None:
    """Write an evaluation's rankings; white space inside an id, which the format cannot hold, is percent-encoded."""
    ranked = np.unique(evaluation.ranking[evaluation.ranking >= 0])
    queries = {query: _column(dataset.queries.ids[query]) for query in evaluation.queries.tolist()}
    documents = {document: _column(dataset.documents.ids[document]) for document in ranked.tolist()}
    lines = []
    for query, ranking, scores in zip(evaluation.queries, evaluation.ranking, evaluation.scores, strict=True):
        for rank, (document, score) in enumerate(zip(ranking, scores, strict=True), start=1):
            if document >= 0:
                lines.append(f"{queries[query]} Q0 {documents[document]} {rank} {score:.9g} {tag}\n")
    write_atomically(path, "".join(lines))


def _column(name: str) -> str:
    return name if name.split() == [name] else quote(name, safe="")


CUTOFFS = (1, 3, 5, 10, 20, 100, 1000)
FAMILIES = ("ndcg", "map", "recall", "precision", "mrr")
MAIN = "ndcg_at_10"
# Of MTEB's tasks of BEIR, and the code of ISO 639-3 and ISO 15924 for a text whose language and script are not known.
ENGLISH, UNDETERMINED = "eng-Latn", "und-Zyyy"


def mteb_content(measured: DatasetMeasurement, model: str, protocol: Protocol, seconds: float | None = None) -> str:
    """The text of `mteb/NAME/DATASET.json`, at every cutoff of MTEB that the ranking reaches.

    Args:
        measured: the data set; of a divided one the means over its parts are written.
        model: whose figures.
        protocol: by which it was measured.
        seconds: how long the model took, where that is known.
    """
    rows = [_scores(part, model, measured.about.split, protocol) for part in measured.parts]
    scores: dict[str, Any] = {name: round(float(np.mean([row[name] for row in rows])), 5) for name in rows[0]}
    scores |= {"main_score": scores[MAIN], "hf_subset": "default"}
    scores["languages"] = [ENGLISH if measured.about.task else UNDETERMINED]
    content = {
        "dataset_revision": measured.parts[0].dataset.digest[:40],
        "task_name": measured.about.task or measured.about.name,
        "mteb_version": None,
        "scores": {measured.about.split: [scores]},
        "evaluation_time": seconds,
        "kg_co2_emissions": None,
    }
    return json.dumps(content, indent=2) + "\n"


def _scores(part: PartMeasurement, model: str, split: str, protocol: Protocol) -> dict[str, float]:
    evaluation = part.evaluations[model]
    _, relevance = select_judged_queries(part.dataset, split, protocol)
    names = [f"{family}_at_{k}" for family in FAMILIES for k in CUTOFFS if k <= protocol.kept]
    values = measure_ranking(evaluation.ranking, relevance, names, protocol.level)
    return {name: mean(values[name], relevance, protocol.level) for name in names}


TOP, RELEVANT, CHARACTERS = 5, 3, 300
_MOST_BYTES = 4 << 30  # a million queries of ten models


def per_query_content(measured: DatasetMeasurement, protocol: Protocol) -> str:
    """The text of the file; queries of a divided data set stand part by part, their ids as `PART/ID`."""
    models = list(measured.parts[0].evaluations)
    whole: dict[str, Any] = {"queries": [], "texts": [], "relevant": []}
    whole["models"] = {model: {"metrics": {}, "top": []} for model in models}
    for part in measured.parts:
        dataset = part.dataset
        queries, relevance = select_judged_queries(dataset, measured.about.split, protocol)
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


def _top(part: PartMeasurement, evaluation: Evaluation, grades: dict[tuple[int, int], int]) -> list[list[list[Any]]]:
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


def write_dataset_files(
    folder: Path, measured: DatasetMeasurement, protocol: Protocol, seconds: Mapping[str, float]
) -> None:
    """Write what belongs to one data set: TREC runs, queries, pooled scores, MTEB's form.

    Args:
        folder: of the evaluation.
        measured: the data set.
        protocol: by which.
        seconds: each model took, encoding included.
    """
    name = measured.about.name
    for model in measured.parts[0].evaluations:
        for part in measured.parts:
            run = folder / "runs" / f"{model}.{measured.label(part)}.trec"
            write_run(run, part.evaluations[model], part.dataset, model)
        pools = measured.pools(model)
        scores = folder / "scores" / f"{name}.{model}.npz"
        with disk_errors(scores):
            scores.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(scores, **{name: values for name, values in vars(pools).items() if values is not None})
        write_atomically(
            folder / "mteb" / model / f"{name}.json", mteb_content(measured, model, protocol, seconds[model])
        )
    write_atomically(folder / "per_query" / f"{name}.json", per_query_content(measured, protocol))


def write_summary_files(
    folder: Path, results: Results, asked: Mapping[str, Any], split: str, baselines: Sequence[str]
) -> None:
    """Write what is over all data sets: `results.json`, `table.md`, `table.tex`."""
    marks, best = collect_marks(results.significance), read_best_rows(results.best)
    tables = paper_tables(results.models, marks, split, baselines, best)
    text = markdown(tables)
    for name, about in results.about.items():
        text += "".join(f"\n{name}: {line}\n" for line in [format_absent(about), *bm25_warnings(about)] if line)
    if results.calibration:
        text += f"\nThresholds\n\n{calibration_table(results.calibration)}"
    if results.missing:
        text += "\nMissing: " + "; ".join(results.missing) + "\n"
    write_atomically(folder / "table.md", text)
    write_atomically(folder / "table.tex", latex(tables))
    write_atomically(folder / RESULTS, results.content(asked))
