"""Outcome of a study: `results.json`, `table.md`, `table.tex`, `study.md` and the figures.

All files are computed from the variants' directories and the study file, so they can be written again at any time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from raytriever.core.errors import StorageError
from raytriever.core.progress import activity
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import committed_directory, write_atomically
from raytriever.evaluation.differences.differences_by_seed import Cell, SeededResults, SeedMetrics, seeded_pair_rows
from raytriever.evaluation.differences.system_significance import collect_marks, pair_lines
from raytriever.evaluation.evaluated_datasets import safe_name
from raytriever.evaluation.evaluation_files import LATEX, PER_QUERY, read_per_query, read_pools, values_of
from raytriever.evaluation.result_tables import latex, printed
from raytriever.evaluation.results import EVALUATION, Results, without_nan
from raytriever.experiments.report.figures import save_curves, save_roc, save_score_histograms
from raytriever.experiments.run.run_directory import METRICS
from raytriever.experiments.study.study_file import AFTER, STEPS_TO_BEST, Study, Variant
from raytriever.experiments.study.study_page import page_text, study_tables, title_of, value_text
from raytriever.experiments.study.train_variant import variant_folder
from raytriever.tracking.step_log import end_to_end, training_folders
from raytriever.training.training_settings import DEV_LOSS

RESULTS, TABLE, PAGE, FIGURES = "results.json", "table.md", "study.md", "figures"
FORMAT = 1


class _Best(TypedDict):
    step: int


class _TrainingFacts(TypedDict):
    steps: NotRequired[int]
    best: NotRequired[_Best | None]


def seeds_of(variant: Variant, seeds: int) -> Iterable[int]:
    """Return the seeds of a variant. An untrained variant has only one seed."""
    return range(1 if variant.curriculum is None else seeds)


def read_study(study: Study, output: Path, seeds: int) -> SeededResults:
    """Return the metrics of all variants of a study by row and data set, in ascending order of the seeds."""
    cells: dict[Cell, list[SeedMetrics]] = {}
    for variant in study.variants:
        for seed in seeds_of(variant, seeds):
            folder = variant_folder(output, variant, seed)
            steps = _read_facts(folder)[STEPS_TO_BEST] if study.steps_to_best else None
            for dataset, metrics in read_variant(variant, folder, seed).items():
                if steps is not None:
                    metrics = replace(metrics, metrics={**metrics.metrics, STEPS_TO_BEST: float(steps)})
                cells.setdefault((variant.row, dataset), []).append(metrics)
    return SeededResults(cells)


def read_variant(variant: Variant, folder: Path, seed: int) -> dict[str, SeedMetrics]:
    """Return the metrics of a variant by data set, with values by query and the pseudo-values of the AUC."""
    evaluation, trained = folder / EVALUATION, None if variant.curriculum is None else seed
    remedy = f"remove {evaluation}, and run the study again"
    results, metrics = Results.read(evaluation, remedy), {}
    for name, dataset in variant.datasets.items():
        try:
            whole = read_per_query(evaluation / PER_QUERY / f"{dataset.name}.json", remedy)["models"][AFTER]
            values = results.models[AFTER][dataset.name].items()
        except (KeyError, FileNotFoundError) as error:
            raise StorageError(f"has no results on {name}", str(evaluation), remedy) from error
        numbers = {metric: math.nan if value is None else float(value) for metric, value in values}
        metrics[name] = SeedMetrics(trained, numbers, values_of(whole))
    return metrics


@activity("writing the tables and figures of the study")
def write_study(study: Study, output: Path, seeds: int) -> SeededResults:
    """Write all files of the outcome. Raises `StorageError` if the disk is full or files of a variant are damaged."""
    results = read_study(study, output, seeds)
    pairs = seeded_pair_rows(results)
    tables = study_tables(results, pairs, study.baselines, study.paper, f"{study.source}.")
    verdicts = [(claim, claim.verdict(results)) for claim in study.claims]
    with committed_directory(output / FIGURES, {"kind": "figures"}, replace=True) as folder:
        pictures = _plot(study, results, output, folder)
    facts = _training_facts(study, output, seeds)
    page = page_text(
        title=study.title,
        lines=[f"{study.source}; {seeds} seed{'s' if seeds > 1 else ''}", *([study.about] if study.about else [])],
        tables=tables,
        claims=verdicts,
        trainings=_training_rows(facts),
        paper=_paper_rows(study),
        figures={f"{FIGURES}/{name}": caption for name, caption in pictures.items()},
        pairs=pair_lines(pairs, test="t-test over queries and seeds"),
    )
    write_atomically(output / TABLE, (f"{study.about}\n\n" if study.about else "") + printed(tables))
    write_atomically(output / LATEX, latex(tables))
    write_atomically(output / PAGE, page)
    content = {
        "format": FORMAT,
        "study": study.name,
        "source": study.source,
        "seeds": seeds,
        "about": study.about,
        "rows": _rows(results, collect_marks(pairs, study.baselines), study.paper),
        "claims": [
            {"text": claim.text, "source": claim.source, "verdict": verdict.word, "because": verdict.because}
            for claim, verdict in verdicts
        ],
        "pairs": [asdict(row) for row in pairs],
        "trainings": facts,
        "dev_loss": {
            variant.name: [_curve_of(output, variant, seed, DEV_LOSS) for seed in seeds_of(variant, seeds)]
            for variant in study.variants
            if variant.curriculum
        },
    }
    text = json.dumps(without_nan(content), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(output / RESULTS, text + "\n")
    return results


def _paper_rows(study: Study) -> list[list[str]]:
    columns = list(dict.fromkeys((dataset, metric) for _, dataset, metric in study.paper))
    rows = [["", *(f"{dataset} {title_of(metric)}" for dataset, metric in columns)]]
    for row in dict.fromkeys(row for row, _, _ in study.paper):
        values = {cell: study.paper.get((row, *cell), math.nan) for cell in columns}
        rows.append([row, *(value_text(metric, value) for (_, metric), value in values.items())])
    return rows


def _rows(
    results: SeededResults,
    marks: Mapping[tuple[str | None, str, str], str],
    paper: Mapping[tuple[str, str, str], float],
) -> dict[str, dict[str, dict[str, Any]]]:
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row, dataset in results.cells:
        for metric in results.cells[row, dataset][0].metrics:
            key = (row, dataset, metric)
            rows.setdefault(row, {}).setdefault(dataset, {})[metric] = {
                "values": results.values(*key).tolist(),
                "mean": results.mean(*key),
                "deviation": results.deviation(*key),
                "mark": marks.get((dataset, row, metric), ""),
                "paper": paper.get(key),
            }
    return rows


def _training_facts(study: Study, output: Path, seeds: int) -> list[dict[str, Any]]:
    """Return the steps, the best step and the seconds of each training.

    If hard negatives are refreshed, `tables` has the first step and the age (in steps) of each mined table."""
    trainings = []
    for variant in study.variants:
        if variant.curriculum is not None:
            for seed in seeds_of(variant, seeds):
                facts = _read_facts(variant_folder(output, variant, seed))
                facts["step_seconds"] = round(
                    sum(seconds for _, seconds in _curve_of(output, variant, seed, "step_seconds")), 3
                )
                if variant.curriculum.refresh.refresh_every:
                    facts["tables"] = _curve_of(output, variant, seed, "refresh_staleness_steps")
                trainings.append({"variant": variant.name, "seed": seed, **facts})
    return trainings


def _read_facts(folder: Path) -> dict[str, Any]:
    file, remedy = folder / METRICS, f"remove {folder}, and run the study again, which trains the variant again"
    facts = read_json(file, _TrainingFacts, remedy, needed=True)
    best = facts.get("best")
    return {"steps": facts.get("steps"), STEPS_TO_BEST: best["step"] if best else None}


def _training_rows(facts: list[dict[str, Any]]) -> list[list[str]]:
    has_tables = any("tables" in fact for fact in facts)
    titles = ["variant", "seed", "steps", "best at step", "seconds of steps"]
    rows = [titles + ["mined tables from step (weights of step)"] * has_tables]
    for fact in facts:
        mined, best = fact.get("tables"), fact[STEPS_TO_BEST]
        shown = ", ".join(f"{first} ({first - 1 - staleness:.0f})" for first, staleness in mined or ()) or "none"
        tables = ["-" if mined is None else shown] * has_tables
        steps, seconds = f"{fact['steps']:,}", f"{fact['step_seconds']:,.1f}"
        rows.append([fact["variant"], str(fact["seed"]), steps, "-" if best is None else f"{best:,}", seconds, *tables])
    return rows


def _plot(study: Study, results: SeededResults, output: Path, folder: Path) -> dict[str, str]:
    captions = {}
    curves = {variant.name: points for variant in study.variants if (points := _curve_of(output, variant, 0, DEV_LOSS))}
    if curves:
        save_curves(folder / "dev-loss.png", curves, "dev loss")
        captions["dev-loss.png"] = "Dev loss while training, seed 0"
    for dataset in results.datasets:
        pools = {}
        for variant in study.variants:
            if dataset in variant.datasets:
                evaluation = variant_folder(output, variant, 0) / EVALUATION
                remedy = f"remove {evaluation}, and run the study again"
                pools[variant.row] = read_pools(evaluation, AFTER, variant.datasets[dataset].name, remedy)
        name = f"-{safe_name(dataset)}.png" if len(results.datasets) > 1 else ".png"
        save_roc(folder / f"roc{name}", pools, f"ROC, all queries pooled, {dataset}")
        save_score_histograms(folder / f"scores{name}", pools, f"Positives and best non-positives, {dataset}")
        captions[f"roc{name}"] = f"ROC curves with 95 % bands on {dataset}, seed 0"
        captions[f"scores{name}"] = f"Scores of positives and of the best non-positives on {dataset}, seed 0"
    return captions


def _curve_of(output: Path, variant: Variant, seed: int, metric: str) -> list[tuple[int, float]]:
    return end_to_end(training_folders(variant_folder(output, variant, seed)), metric) if variant.curriculum else []
