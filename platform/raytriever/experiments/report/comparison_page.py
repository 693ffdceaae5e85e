"""Page that compares finished runs: metrics, differing settings, curves, significance and queries.

A training run has one row in the tables, under its own name. Its baselines (BM25 and the untrained encoder) have their
own rows; runs with equal baselines share them. A model of an evaluation keeps its name unless another run has a model
with this name. Gains and tests compare with the first run: its trained encoder, or its first model. Runs that differ
only in the seed are trainings with the same settings. A separate table compares such groups of runs.

The tests in the other tables show whether these encoders differ on queries of this kind. Another seed gives another
encoder, so only runs with several seeds show whether the settings give different results."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.core.progress import activity
from raytriever.evaluation.differences.differences_by_seed import SeededResults, SeedMetrics, seeded_pair_rows
from raytriever.evaluation.differences.system_significance import pair_rows
from raytriever.evaluation.evaluated_datasets import distinct_names, unique_names
from raytriever.evaluation.evaluation_files import QueryMetrics, values_of
from raytriever.evaluation.result_tables import MetricTables, ReportTable, pairs_table
from raytriever.experiments.report.comparison_request import RUN_ID, check_comparison
from raytriever.experiments.report.evaluation_page import gain_pictures
from raytriever.experiments.report.figures import save_curves, styles_of
from raytriever.experiments.report.finished_runs import NOT_SETTINGS, FinishedRun, Metrics, MlflowRuns, read_directory
from raytriever.experiments.report.html_page import Page, Picture, write_page
from raytriever.training.training_settings import MAY_CHANGE

CURVES = {"loss": "Loss of every step", "dev_loss": "Loss on the dev split"}
ONE_SEED = (
    "The tests say whether these encoders differ on queries of this kind. Another seed gives another encoder: to "
    "compare settings, train each of them with several seeds and give all runs."
)
_SEED = "seed"
_NO_SETTING = {_SEED, *MAY_CHANGE, *NOT_SETTINGS}


def compare_runs(runs: Sequence[str], output: Path) -> None:
    """Read finished runs and write one page that compares them.

    `runs` are directories, run ids of MLflow, or search filters of MLflow."""
    check_comparison(runs, output)
    found = list(_read(runs))
    names = unique_names([run.name for run in found])
    write_comparison(output, [dataclasses.replace(run, name=name) for run, name in zip(found, names, strict=True)])


def _read(runs: Sequence[str]) -> Iterator[FinishedRun]:
    names = iter(distinct_names([word for word in runs if Path(word).is_dir()]))
    for word in runs:
        if Path(word).is_dir():
            yield read_directory(Path(word), next(names))
        elif RUN_ID.fullmatch(word):
            yield MlflowRuns().by_id(word)
        else:
            yield from MlflowRuns().by_filter(word)


@activity("writing the page")
def write_comparison(path: Path, runs: Sequence[FinishedRun]) -> None:
    """Write the page that compares runs. The names of the runs must differ."""
    names = row_names(runs)
    labels, others = dataset_labels(runs)
    metrics = _metrics(runs, names, labels)
    baseline = names[0, "after" if runs[0].trained else next(iter(runs[0].metrics))]
    queries = _queries(runs, names, labels, baseline)
    values = _values(metrics, queries)
    over_seeds = seed_tables(runs, names, queries)
    tables = [*MetricTables(metrics, pair_rows(values), [baseline]).on_page(), *over_seeds, *_settings(runs)]
    about = [f"{len(runs)} runs: {', '.join(run.name for run in runs)}.", *others]
    if none := [model for model in metrics if model not in values]:
        about.append(f"{', '.join(none)}: no difference is tested, because there are no values by query.")
    if sum(run.trained for run in runs) > 1 and not over_seeds:
        about.append(ONE_SEED)
    with TemporaryDirectory() as folder:
        pictures = gain_pictures(Path(folder), metrics, [baseline])
        for name, caption in CURVES.items():
            curves = {run.name: run.curves[name] for run in runs if run.curves.get(name)}
            if curves:
                save_curves(Path(folder) / f"{name}.png", curves, name, styles_of(metrics))
                pictures.append(Picture(caption, Path(folder) / f"{name}.svg", "Curves"))
        write_page(path, Page("Comparison of runs", about, tables, pictures, queries))


def row_names(runs: Sequence[FinishedRun]) -> dict[tuple[int, str], str]:
    """Return the row names of the tables, by the index of the run and the name of the model in its run."""
    names: dict[tuple[int, str], str] = {}
    seen: dict[str, Any] = {}
    own = Counter(name for run in runs for name in ([run.name] if run.trained else run.metrics))
    # Trained encoders come before their baselines.
    for index, run in enumerate(runs):
        for model in run.metrics:
            if run.trained and model == "after":
                names[index, model] = run.name
            elif not run.trained:
                names[index, model] = model if own[model] == 1 else f"{run.name}: {model}"
    for index, run in enumerate(runs):
        for model, metrics in run.metrics.items():
            if run.trained and model != "after":
                same = seen.setdefault(model, metrics) == metrics and model not in own
                names[index, model] = model if same else f"{run.name}: {model}"
    return names


def dataset_labels(runs: Sequence[FinishedRun]) -> tuple[dict[tuple[int, str], str], list[str]]:
    """Choose the names of the data sets in the tables.

    A name includes the split if runs were evaluated on several splits. It gets a number if an earlier run has other
    queries under the same name, because these are two data sets. A run without stored queries gets no number.

    Returns:
        The names, by the index of the run and the name of the data set in its run; and one line per numbered name.
    """
    labels: dict[tuple[int, str], str] = {}
    lines = []
    query_sets: dict[str, list[set[str]]] = {}
    for index, run in enumerate(runs):
        for dataset in dict.fromkeys(name for sets in run.metrics.values() for name in sets):
            splits = {run.splits[dataset] for run in runs if dataset in run.splits}
            label = f"{dataset} ({run.splits.get(dataset, '')})" if len(splits) > 1 else dataset
            variants = query_sets.setdefault(label, [])
            queries = set(run.queries[dataset]["queries"]) if dataset in run.queries else None
            if queries is not None and queries not in variants:
                variants.append(queries)
            number = variants.index(queries) + 1 if queries is not None else 1
            labels[index, dataset] = label if number == 1 else f"{label}-{number}"
            if number > 1:
                name = labels[index, dataset]
                lines.append(
                    f"{run.name} was evaluated on other queries of {label}. They are called {name} here and have no"
                    f" significance test against {label}."
                )
    return labels, lines


def _metrics(
    runs: Sequence[FinishedRun], names: Mapping[tuple[int, str], str], labels: Mapping[tuple[int, str], str]
) -> Metrics:
    rows: Metrics = {}
    trained = {name for (index, model), name in names.items() if runs[index].trained and model == "after"}
    for (index, model), name in sorted(names.items(), key=lambda item: item[1] in trained):
        for dataset, values in runs[index].metrics[model].items():
            rows.setdefault(name, {})[labels[index, dataset]] = dict(values)
    return rows


def _queries(
    runs: Sequence[FinishedRun],
    names: Mapping[tuple[int, str], str],
    labels: Mapping[tuple[int, str], str],
    baseline: str,
) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for index, run in enumerate(runs):
        for dataset, content in run.queries.items():
            whole = merged.setdefault(labels.get((index, dataset), dataset), {**content, "models": {}})
            row = {query: number for number, query in enumerate(content["queries"])}
            order = [row[query] for query in whole["queries"]]
            for model, values in content["models"].items():
                name = names.get((index, model))
                # If the stored run has no AUC, another run that shares the row may have it.
                if name is not None and "auc" not in whole["models"].get(name, {}):
                    auc = values.get("auc")
                    whole["models"][name] = {
                        "metrics": {metric: [value[i] for i in order] for metric, value in values["metrics"].items()},
                        "top": [values["top"][i] for i in order],
                        **({"auc": [auc[i] for i in order]} if auc else {}),
                    }
    for whole in merged.values():
        # By default, the page compares other models with the first one.
        whole["models"] = dict(sorted(whole["models"].items(), key=lambda item: item[0] != baseline))
    return {label: whole for label, whole in merged.items() if whole["models"]}


def _values(metrics: Metrics, queries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, ndarray]]]:
    values: dict[str, dict[str, dict[str, ndarray]]] = {model: {} for model in metrics}
    for dataset, whole in queries.items():
        for model, content in whole["models"].items():
            values.setdefault(model, {})[dataset] = values_of(content)
    return {model: sets for model, sets in values.items() if sets}


def _settings(runs: Sequence[FinishedRun]) -> list[ReportTable]:
    tables = []
    for trained, kind in ((True, "training"), (False, "evaluation")):
        members = [run for run in runs if run.trained == trained]
        if len(members) < 2:
            continue
        every = list(dict.fromkeys(name for run in members for name in run.settings))
        differ = [name for name in every if len({run.settings.get(name) for run in members}) > 1]
        rows = [[name, *(run.settings.get(name, "") for run in members)] for name in differ]
        note = "" if rows else "All runs have the same settings."
        columns = unique_names(["setting", *(run.name for run in members)])
        tables.append(ReportTable(f"Settings of {kind} that differ", columns, rows, note))
    return tables


def seed_tables(
    runs: Sequence[FinishedRun], names: Mapping[tuple[int, str], str], queries: Mapping[str, Mapping[str, Any]]
) -> list[ReportTable]:
    """Return the table that compares settings over queries and seeds, if any settings were trained with two seeds.

    `names` is the result of `row_names`."""
    trained = {
        f"{label} ({len(seeds)} seeds)" if len(seeds) > 1 else label: [names[index, "after"] for index in seeds]
        for label, seeds in _settings_of_seeds(runs).items()
    }
    if all(len(seeds) < 2 for seeds in trained.values()):
        return []
    # Rows that all training runs share, such as BM25 and the encoder before training.
    shared = [{name for (index, _), name in names.items() if index == number} for number in _trained(runs)]
    rows = trained | {name: [name] for name in sorted(set.intersection(*shared))}
    results = SeededResults(
        {
            (label, dataset): [
                _seed_metrics(whole["models"][name], number if label in trained else None)
                for number, name in enumerate(members)
            ]
            for dataset, whole in queries.items()
            for label, members in rows.items()
            if all(name in whole["models"] for name in members)
        }
    )
    pairs = seeded_pair_rows(results, lambda row, other: max(len(rows[row]), len(rows[other])) > 1)
    note = (
        "Runs that differ only in the seed are one row. The error of a difference comes partly from the queries and "
        "partly from the seeds. A row with one seed is not tested."
    )
    return pairs_table(pairs, "Settings over seeds", note)


def _trained(runs: Sequence[FinishedRun]) -> list[int]:
    return [index for index, run in enumerate(runs) if run.trained]


def _settings_of_seeds(runs: Sequence[FinishedRun]) -> dict[str, list[int]]:
    """Group training runs by equal settings. Return each group as run indices, one per seed, by its settings."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, int]] = {}
    for index in _trained(runs):
        settings = runs[index].settings
        kept = tuple(sorted((k, v) for k, v in settings.items() if k.rpartition(".")[2] not in _NO_SETTING))
        seed = " ".join(value for key, value in settings.items() if key.rpartition(".")[2] == _SEED)
        groups.setdefault(kept, {}).setdefault(seed, index)
    every = [dict(kept) for kept in groups]
    differing = [
        key
        for key in dict.fromkeys(key for settings in every for key in settings)
        if len({o.get(key) for o in every}) > 1
    ]
    named = (", ".join(f"{key} {dict(kept).get(key, 'unset')}" for key in differing) or "trained" for kept in groups)
    return {name: list(seeds.values()) for name, seeds in zip(named, groups.values(), strict=True)}


def _seed_metrics(content: QueryMetrics, seed: int | None) -> SeedMetrics:
    values = values_of(content)
    return SeedMetrics(seed, {metric: float(np.nanmean(value)) for metric, value in values.items()}, values)
