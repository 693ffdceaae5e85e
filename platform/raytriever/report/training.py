"""Report of a training run: TREC runs, per-query results, figures and the HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.datasets import EvaluationDataset
from raytriever.evaluation.differences.significance import best_models, pair_rows, significance_rows, testable_values
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.files import PER_QUERY, per_query_content, read_queries, write_run
from raytriever.evaluation.measurements import DatasetMeasurement, PartMeasurement, pool_scores
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.protocol import JudgedQueries, format_absent, metric_title
from raytriever.report.figures import save_curves
from raytriever.report.page import Page, Picture, write_page
from raytriever.report.score_figures import save_score_figures
from raytriever.report.tables import result_tables
from raytriever.store.commit import write_atomically

Curve = Sequence[tuple[int, float]]


@activity("drawing the figures and the report")
def write_training_report(
    folder: Path,
    title: str,
    split: str,
    judged: JudgedQueries,
    evaluations: Mapping[str, Evaluation],
    losses: Curve,
    dev_losses: Curve,
    dev_metrics: Mapping[str, Curve],
    config_yaml: str,
    tests: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
    notes: Sequence[str],
) -> None:
    """Write `runs/*.trec`, `per_query/DATASET.json`, `figures/*` (PNG and SVG) and `report.html`.

    The figures show the systems `before` and `after`, and the metrics of checkpoints on dev data if there are any.
    `tests` and `pairs` are rows of `training_tests`. `notes` are lines above the tables, at least one.
    """
    dataset = judged.dataset
    for name, evaluation in evaluations.items():
        write_run(folder / "runs" / f"{name}.trec", evaluation, dataset, name)
    dense = {name: pool_scores([evaluations[name]]) for name in ("before", "after")}
    figures = folder / "figures"
    captions = save_score_figures(figures, dense) | {figures / "loss.png": "Loss"}
    save_curves(figures / "loss.png", {"train": losses, "dev": dev_losses}, "loss")
    dev_curves = {metric_title(name): points for name, points in dev_metrics.items() if points}
    if dev_curves:
        save_curves(figures / "dev.png", dev_curves, "dev data")
        captions[figures / "dev.png"] = "Metrics of checkpoints on dev data, measured during training"
    measured = DatasetMeasurement(
        EvaluationDataset(dataset.name, {dataset.name: dataset.name}, split),
        [PartMeasurement(dataset.name, dataset, judged, dict(evaluations))],
    )
    per_query = per_query_content(measured)
    write_atomically(folder / PER_QUERY / f"{safe_name(dataset.name)}.json", per_query)
    figures_of = {name: {dataset.name: evaluation.metrics} for name, evaluation in evaluations.items()}
    queries, documents = len(evaluations["after"].queries), len(dataset.documents)
    page = Page(
        title=title,
        about=list(
            filter(
                None,
                [
                    f"Measured on the {queries:,} queries of split {split}, searched in all {documents:,} documents.",
                    format_absent(judged.count_absent()),
                    f"{'. '.join(notes).rstrip('.')}.",
                ],
            )
        ),
        tables=result_tables(figures_of, tests, best_models(figures_of, _values(dataset, evaluations)), pairs),
        pictures=[Picture(caption, path.with_suffix(".svg")) for path, caption in captions.items()],
        queries=read_queries(folder),
        settings=config_yaml,
    )
    write_page(folder / "report.html", page)


def training_tests(
    dataset: RetrievalDataset, evaluations: Mapping[str, Evaluation]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Test every system against `before`, as `significance_rows` does, and all pairs, as `pair_rows` does."""
    values = _values(dataset, evaluations)
    return significance_rows(values, ["before"]), pair_rows(values)


def _values(
    dataset: RetrievalDataset, evaluations: Mapping[str, Evaluation]
) -> dict[str, dict[str, dict[str, ndarray]]]:
    return {name: {dataset.name: testable_values(evaluation)} for name, evaluation in evaluations.items()}
