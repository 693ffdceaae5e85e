"""One page over several finished runs: figures, differing settings, curves, significance, queries.

A training run is one row of the tables under its own name; BM25 and the untrained encoder, with which it was measured,
are rows of their own, once where runs agree on them. The models of an evaluation keep their names where no other run
has one of the same name. Gains and tests are against the run given first: its trained encoder, or its first model.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.activity import activity
from raytriever.evaluation.names import distinct_names, unique_names
from raytriever.evaluation.significance import best_models, significance_rows
from raytriever.report.evaluation import gain_pictures
from raytriever.report.figures import save_curves
from raytriever.report.finished_runs import Figures, FinishedRun, MlflowRuns, read_directory
from raytriever.report.page import Page, Picture, Table, write_page
from raytriever.report.queries import chosen_queries
from raytriever.report.request import RUN_ID
from raytriever.report.tables import result_tables

CURVES = {"loss": "Loss of every step", "dev_loss": "Loss on the dev split"}


def compare_runs(runs: Sequence[str], output: Path) -> None:
    """Read finished runs and write one page that compares them.

    Args:
        runs: directories, ids of MLflow, or filters of its search, see `report.request.check_comparison`.
        output: the HTML file.

    Raises:
        ConfigError: one is no finished run.
        StorageError: a run is damaged, or the page cannot be written.
    """
    write_comparison(output, _with_distinct_names(_read(runs)))


def _read(runs: Sequence[str]) -> Iterator[FinishedRun]:
    """Read every run, in the order given; a filter may find several."""
    names = iter(distinct_names([word for word in runs if Path(word).is_dir()]))
    for word in runs:
        if Path(word).is_dir():
            yield read_directory(Path(word), next(names))
        elif RUN_ID.fullmatch(word):
            yield MlflowRuns().by_id(word)
        else:
            yield from MlflowRuns().by_filter(word)


def _with_distinct_names(runs: Iterable[FinishedRun]) -> list[FinishedRun]:
    """Number the runs whose name an earlier one has."""
    distinct: list[FinishedRun] = []
    for run in runs:
        names = {one.name for one in distinct}
        name, number = run.name, 2
        while name in names:
            name, number = f"{run.name} {number}", number + 1
        distinct.append(dataclasses.replace(run, name=name))
    return distinct


@activity("writing the page")
def write_comparison(path: Path, runs: Sequence[FinishedRun]) -> None:
    """Write the page.

    Args:
        path: of the HTML file.
        runs: at least one, of different names.

    Raises:
        StorageError: the disk is full or forbidden.
    """
    names = row_names(runs)
    labels, others = dataset_labels(runs)
    figures = _figures(runs, names, labels)
    baseline = names[0, "after" if runs[0].trained else next(iter(runs[0].figures))]
    queries = _queries(runs, names, labels)
    significance = _significance(queries, baseline, [name for name in figures if name != baseline])
    tables = [*result_tables(figures, significance, best_models(figures, _values(queries))), *_settings(runs)]
    about = [f"{len(runs)} runs: {', '.join(run.name for run in runs)}.", *others]
    with TemporaryDirectory() as folder:
        pictures = gain_pictures(Path(folder), figures, [baseline])
        for name, caption in CURVES.items():
            curves = {run.name: run.curves[name] for run in runs if run.curves.get(name)}
            if curves:
                save_curves(Path(folder) / f"{name}.png", curves, name)
                pictures.append(Picture(caption, Path(folder) / f"{name}.svg", "Curves"))
        write_page(path, Page("Comparison of runs", about, tables, pictures, _shown(queries, baseline)))


def row_names(runs: Sequence[FinishedRun]) -> dict[tuple[int, str], str]:
    """Return the name of each run's model in tables, by the run's index and the model's own name."""
    names: dict[tuple[int, str], str] = {}
    seen: dict[str, Any] = {}
    own = Counter(name for run in runs for name in ([run.name] if run.trained else run.figures))
    # What was trained comes before what it is compared with.
    for place, run in enumerate(runs):
        for model in run.figures:
            if run.trained and model == "after":
                names[place, model] = run.name
            elif not run.trained:
                names[place, model] = model if own[model] == 1 else f"{run.name}: {model}"
    for place, run in enumerate(runs):
        for model, figures in run.figures.items():
            if run.trained and model != "after":
                same = seen.setdefault(model, figures) == figures and model not in own
                names[place, model] = model if same else f"{run.name}: {model}"
    return names


def dataset_labels(runs: Sequence[FinishedRun]) -> tuple[dict[tuple[int, str], str], list[str]]:
    """Name the data set of each run for the tables.

    The name has the split where runs were measured on several, and a number where another run has other queries under
    it: these are two data sets. A run that kept no queries counts with the first one.

    Returns:
        The names by the run's place and the data set's own name, and a line on each that has a number.
    """
    labels: dict[tuple[int, str], str] = {}
    lines = []
    found: dict[str, list[set[str]]] = {}
    for place, run in enumerate(runs):
        for dataset in dict.fromkeys(name for sets in run.figures.values() for name in sets):
            splits = {one.splits[dataset] for one in runs if dataset in one.splits}
            label = f"{dataset} ({run.splits.get(dataset, '')})" if len(splits) > 1 else dataset
            known = found.setdefault(label, [])
            queries = set(run.queries[dataset]["queries"]) if dataset in run.queries else None
            if queries is not None and queries not in known:
                known.append(queries)
            number = known.index(queries) + 1 if queries is not None else 1
            labels[place, dataset] = label if number == 1 else f"{label}-{number}"
            if number > 1:
                other = f"which is called {labels[place, dataset]} here"
                lines.append(f"{run.name} was measured on other queries of {label}, {other} and not tested against it.")
    return labels, lines


def _figures(
    runs: Sequence[FinishedRun], names: Mapping[tuple[int, str], str], labels: Mapping[tuple[int, str], str]
) -> Figures:
    """The rows, baselines first."""
    rows: Figures = {}
    trained = {name for (place, model), name in names.items() if runs[place].trained and model == "after"}
    for (place, model), name in sorted(names.items(), key=lambda item: item[1] in trained):
        for dataset, values in runs[place].figures[model].items():
            rows.setdefault(name, {})[labels[place, dataset]] = dict(values)
    return rows


def _queries(
    runs: Sequence[FinishedRun], names: Mapping[tuple[int, str], str], labels: Mapping[tuple[int, str], str]
) -> dict[str, dict[str, Any]]:
    """Per-query values of all runs together by data set."""
    merged: dict[str, dict[str, Any]] = {}
    for place, run in enumerate(runs):
        for dataset, found in run.queries.items():
            whole = merged.setdefault(labels.get((place, dataset), dataset), {**found, "models": {}})
            row = {query: number for number, query in enumerate(found["queries"])}
            order = [row[query] for query in whole["queries"]]
            for model, values in found["models"].items():
                name = names.get((place, model))
                if name is not None:
                    whole["models"][name] = {
                        "metrics": {metric: [one[i] for i in order] for metric, one in values["metrics"].items()},
                        "top": [values["top"][i] for i in order],
                    }
    return {label: whole for label, whole in merged.items() if whole["models"]}


def _significance(
    queries: Mapping[str, Mapping[str, Any]], baseline: str, others: Sequence[str]
) -> list[dict[str, Any]]:
    """Every other model against the baseline, over the data sets and metrics that both have per query."""
    rows: list[dict[str, Any]] = []
    for model in others:
        pair: dict[str, dict[str, dict[str, Any]]] = {baseline: {}, model: {}}
        for dataset, whole in queries.items():
            if not {baseline, model} <= whole["models"].keys():
                continue
            shared = [n for n in whole["models"][model]["metrics"] if n in whole["models"][baseline]["metrics"]]
            for name in (baseline, model):
                values = whole["models"][name]["metrics"]
                pair[name][dataset] = {metric: np.array(values[metric], dtype=np.float64) for metric in shared}
        common = set.intersection(*(set(one) for one in pair[model].values())) if pair[model] else set()
        if common:
            kept = {n: {d: {m: v[m] for m in v if m in common} for d, v in sets.items()} for n, sets in pair.items()}
            rows += significance_rows(kept, [baseline])
    return rows


def _values(queries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, ndarray]]]:
    """The values a query by model, data set and metric."""
    values: dict[str, dict[str, dict[str, ndarray]]] = {}
    for dataset, whole in queries.items():
        for model, found in whole["models"].items():
            arrays = {metric: np.array(one, dtype=np.float64) for metric, one in found["metrics"].items()}
            values.setdefault(model, {})[dataset] = arrays
    return values


def _shown(queries: Mapping[str, Mapping[str, Any]], baseline: str) -> dict[str, dict[str, Any]]:
    """Choose the queries of each data set, with the baseline as first model: the page compares with it by default."""
    shown = {}
    for dataset, whole in queries.items():
        models = dict(sorted(whole["models"].items(), key=lambda item: item[0] != baseline))
        shown[dataset] = chosen_queries({**whole, "models": models})
    return shown


def _settings(runs: Sequence[FinishedRun]) -> list[Table]:
    """The settings in which runs of one kind differ; what one has not stays empty."""
    tables = []
    for trained, kind in ((True, "training"), (False, "evaluation")):
        members = [run for run in runs if run.trained == trained]
        if len(members) < 2:
            continue
        every = list(dict.fromkeys(name for run in members for name in run.settings))
        differ = [name for name in every if len({run.settings.get(name) for run in members}) > 1]
        rows = [[name, *(run.settings.get(name, "") for run in members)] for name in differ]
        note = "" if rows else "They have the same settings."
        columns = unique_names(["setting", *(run.name for run in members)])
        tables.append(Table(f"Settings of {kind} that differ", columns, rows, note))
    return tables
