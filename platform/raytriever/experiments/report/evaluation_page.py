"""Plots and page of an evaluation or a training run, made only from the files of its directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from raytriever.core.progress import activity
from raytriever.evaluation.evaluation_files import read_pools, read_queries, scores_file
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.report_document import document
from raytriever.evaluation.result_tables import Values
from raytriever.evaluation.results import (
    EVALUATION,
    Results,
    ThresholdRow,
    VariantRow,
    datasets_of,
    metrics_of,
    rows_of,
)
from raytriever.experiments.report.figures import (
    save_calibration,
    save_curves,
    save_gains,
    save_roc,
    save_score_histograms,
    save_sizes,
    save_thresholds,
    styles_of,
)
from raytriever.experiments.report.html_page import Page, Picture, write_page

REPORT, FIGURES = "report.html", "figures"
Curve = Sequence[tuple[int, float]]
GAIN_METRICS = ("auc", "mrr", "ndcg")  # metrics in Figure 4 of *Optimizing What Matters*; every cutoff is plotted


@activity("plotting the figures and the report")
def write_evaluation_report(folder: Path, title: str = "Evaluation") -> None:
    """Write `figures/*` and `report.html` into an evaluation's directory.

    The directory must have `results.json`, and may have `per_query/` and `scores/`."""
    _write_report(folder, folder, title)


@activity("plotting the figures and the report")
def write_training_report(
    folder: Path,
    title: str,
    losses: Curve,
    dev_losses: Curve,
    dev_metrics: Mapping[str, Curve],
    config_yaml: str,
    notes: Sequence[str],
) -> None:
    """Write `figures/*` (PNG and SVG) and `report.html` of a training run. Its evaluation directory must exist.

    The figures are the plots of the evaluation and the training curves. `notes` are lines above the tables."""
    curves = {"loss": ("Loss", {"train": losses, "dev": dev_losses})}
    if evaluated := {metric_title(name): points for name, points in dev_metrics.items() if points}:
        curves["dev"] = ("Metrics of checkpoints on dev data, evaluated during training", evaluated)
    _write_report(folder, folder / EVALUATION, title, curves, [f"{note}." for note in notes], config_yaml)


def _write_report(
    folder: Path,
    evaluation: Path,
    title: str,
    curves: Mapping[str, tuple[str, Mapping[str, Curve]]] | None = None,
    notes: Sequence[str] = (),
    settings: str = "",
) -> None:
    """Write the page of an evaluation. `curves` maps the name of a file to a caption and curves by step."""
    results, figures = Results.read(evaluation), folder / FIGURES
    models, datasets = results.models, datasets_of(results.models)
    baselines = [name for name in results.baselines if name in models] or list(models)[:1]
    pictures = []
    for name, (caption, values) in (curves or {}).items():
        save_curves(figures / f"{name}.png", values, "dev data" if name == "dev" else name)
        pictures.append(Picture(caption, figures / f"{name}.svg", "Training"))
    pictures += [
        picture for name in datasets for picture in variant_pictures(figures, name, rows_of(results.variants, name))
    ]
    pictures += gain_pictures(figures, models, baselines)
    for name in datasets:
        pictures += score_pictures(evaluation, figures, name, list(models))
        pictures += threshold_pictures(figures, name, rows_of(results.thresholds, name), list(models))
    sections = document(results)
    about = [*(line for section in sections for line in section.about), *notes]
    tables = [table for section in sections for table in section.tables]
    write_page(folder / REPORT, Page(title, about, tables, pictures, read_queries(evaluation), settings))


def gain_pictures(figures: Path, models: Values, baselines: Sequence[str]) -> list[Picture]:
    """Plot the gains over each baseline in AUC, MRR and nDCG (Figure 4), or in all metrics if these are missing."""
    evaluated = metrics_of(models)
    metrics = [name for name in evaluated if name.split("_")[0] in GAIN_METRICS] or evaluated
    pictures = []
    for baseline in baselines:
        for metric in metrics:
            gains = _gains(models, metric, baseline)
            if any(gains.values()):
                number = f"-{baselines.index(baseline) + 1}" if len(baselines) > 1 else ""
                path = figures / f"gain-{metric}{number}.png"
                save_gains(path, gains, metric_title(metric), baseline, styles_of(models))
                caption = f"Gain in {metric_title(metric)} over {baseline}"
                pictures.append(Picture(caption, path.with_suffix(".svg"), "Gains"))
    return pictures


def score_pictures(evaluation: Path, figures: Path, dataset: str, models: Sequence[str]) -> list[Picture]:
    """Plot ROC curves, histograms and calibration of one data set for the models with stored scores."""
    stored = [name for name in models if scores_file(evaluation, name, dataset).is_file()]
    pools = {name: read_pools(evaluation, name, dataset) for name in stored}
    if not pools:
        return []
    save_roc(figures / f"roc.{dataset}.png", pools, f"ROC curves, {dataset}", styles_of(models))
    save_score_histograms(figures / f"scores.{dataset}.png", pools)
    save_calibration(figures / f"calibration.{dataset}.png", pools)
    captions = {
        "roc": "ROC curves with 95 % bands",
        "scores": "Scores of positives and of the best non-positives",
        "calibration": "Fraction of relevant pairs by score",
    }
    return [
        Picture(f"{text}, {dataset}", figures / f"{name}.{dataset}.svg", dataset) for name, text in captions.items()
    ]


def threshold_pictures(
    figures: Path, dataset: str, rows: Sequence[ThresholdRow], models: Sequence[str]
) -> list[Picture]:
    """Plot the target and the tested value of each threshold of one data set."""
    checked = [row for row in rows if row.checked is not None and row.checked.total]
    if not checked:
        return []
    path = figures / f"thresholds.{dataset}.png"
    save_thresholds(path, checked, styles_of(models))
    return [Picture(f"Thresholds: target and tested value, {dataset}", path.with_suffix(".svg"), dataset)]


def variant_pictures(figures: Path, dataset: str, rows: Sequence[VariantRow]) -> list[Picture]:
    """Plot the first metric of the quantized and truncated variants over their bytes per document, for one data set."""
    metric = next((name for row in rows for name in row.metrics), "")
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in rows:
        if (value := row.metrics.get(metric)) is not None:
            curves.setdefault(row.model, {}).setdefault(row.dtype, []).append((row.bytes, value))
    if not curves:
        return []
    path = figures / f"variants.{dataset}.png"
    save_sizes(path, curves, metric_title(metric))
    caption = f"{metric_title(metric)} of quantized and truncated embeddings by bytes of a document, {dataset}"
    return [Picture(caption, path.with_suffix(".svg"), "Quantized and truncated embeddings")]


def _gains(models: Values, metric: str, baseline: str) -> dict[str, dict[str, float]]:
    gains: dict[str, dict[str, float]] = {}
    for model, sets in models.items():
        if model == baseline:
            continue
        gains[model] = {}
        for dataset, values in sets.items():
            ours, theirs = values.get(metric), models[baseline].get(dataset, {}).get(metric)
            if ours is not None and theirs is not None:
                gains[model][dataset] = ours - theirs
    return gains
