"""Outcome of a study: `results.json`, `table.md`, `table.tex`, `study.md` and the figures.

Everything is computed from the directories of the arms and the recipe, so every call can write it again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NotRequired, TypedDict

from raytriever.activity import activity
from raytriever.cluster.train.dev_sets import DEV
from raytriever.config import STAGES
from raytriever.evaluation.differences.seeds import Cell, SeededResults, SeedMetrics
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.tables import latex, markdown
from raytriever.experiment.conclusion import end_to_end
from raytriever.experiment.directory import METRICS
from raytriever.metrics.calibration import ScoredPools
from raytriever.reading.structured import read_json
from raytriever.report.figures import Points, save_curves, save_gains, save_lines
from raytriever.report.score_figures import save_roc, save_score_histograms
from raytriever.store.commit import committed_directory, disk_errors, write_atomically
from raytriever.studies.definition import (
    CURVES,
    GAINS,
    LINES,
    ROC,
    SCORES,
    STEPS_TO_BEST,
    Arm,
    Drawing,
    Evaluated,
    Study,
)
from raytriever.studies.page import Block, StudyPage, marks_of_block, page_text, study_tables, title_of, value_text
from raytriever.studies.recipes import OWN
from raytriever.studies.results_reader import read_pools, read_seed_metrics
from raytriever.studies.run.arm import MEASURED, arm_folder, evaluation_of
from raytriever.training.config import DEV_LOSS

RESULTS, TABLE, LATEX, PAGE, FIGURES = "results.json", "table.md", "table.tex", "study.md", "figures"
FORMAT = 1


class _ArmMetrics(TypedDict):
    measured: dict[str, dict[str, float | None]]
    steps: NotRequired[int]
    step_seconds: NotRequired[float]


def seeds_of(arm: Arm, seeds: int) -> Iterable[int]:
    """Return the seeds of an arm; an arm that is not trained has one."""
    return range(1 if arm.curriculum is None else seeds)


def evaluations_of(study: Study, output: Path, seeds: int) -> dict[Cell, list[Evaluated]]:
    """Return the evaluations of all arms by row and data set, seeds ascending."""
    evaluations: dict[Cell, list[Evaluated]] = {}
    for arm in study.arms:
        for seed in seeds_of(arm, seeds):
            for one in arm.datasets:
                evaluated = evaluation_of(arm_folder(output, arm, seed), arm, one, seed)
                evaluations.setdefault((arm.label, one.name), []).append(evaluated)
    return evaluations


def read_study(study: Study, output: Path, seeds: int) -> SeededResults:
    """Return the metrics of all arms of a study, which are finished; raises `StorageError`."""
    arms = {(arm.label, one.name): arm for arm in study.arms for one in arm.datasets}
    cells: dict[Cell, list[SeedMetrics]] = {}
    for (row, dataset), evaluations in evaluations_of(study, output, seeds).items():
        for one in evaluations:
            measured = _read_arm(arm_folder(output, arms[row, dataset], one.seed))["measured"][dataset]
            extras = {key: math.nan if value is None else float(value) for key, value in measured.items()}
            metrics = read_seed_metrics(one.folder, one.model, one.dataset, one.seed, extras)
            cells.setdefault((row, dataset), []).append(metrics)
    return SeededResults(cells)


def blocks_of(study: Study) -> list[Block]:
    """Return the blocks of the table, each with its rows and the baselines among them."""
    blocks = []
    for name in dict.fromkeys(arm.block for arm in study.arms):
        rows = {arm.label: arm.row for arm in study.arms if arm.block == name}
        labels = {row: label for label, row in rows.items()}
        blocks.append(Block(name, rows, [labels[row] for row in study.baselines if row in labels]))
    return blocks


@activity("writing the tables and figures of the study")
def write_study(study: Study, output: Path, scale: str, seeds: int) -> SeededResults:
    """Write all files of the outcome; raises `StorageError` if the disk is full or the files of an arm are damaged."""
    results, blocks = read_study(study, output, seeds), blocks_of(study)
    analysis = study.analyse(evaluations_of(study, output, seeds)) if study.analyse else None
    results = analysis.results if analysis else results
    paper = {
        (arm.label, dataset, metric): value for arm in study.arms for (dataset, metric), value in arm.paper.items()
    }
    caption = f"{study.source}." if scale == OWN else f"{study.source}, at scale {scale}."
    size = f"{'' if scale == OWN else f'scale {scale}, '}{seeds} seed{'s' if seeds > 1 else ''}"
    tables = study_tables(results, blocks, paper, caption)
    verdicts = [(claim, claim.verdict(results)) for claim in study.claims]
    with committed_directory(output / FIGURES, {"kind": "figures"}, replace=True) as folder:
        pictures = draw(study, results, blocks, output, folder)
        pictures |= analysis.draw(folder) if analysis else {}
    facts, curves = _training_facts(study, output, seeds), _read_curves(study, output, seeds)
    heading = "".join(f"{line}\n\n" for line in study.heading)
    page = StudyPage(
        title=study.title,
        lines=[f"{study.source}; {size}", *study.heading],
        tables=tables,
        claims=verdicts,
        trainings=_training_rows(facts),
        paper={one.title: [list(one.columns), *map(list, one.rows)] for one in study.paper},
        figures={f"{FIGURES}/{name}": caption for name, caption in pictures.items()},
        further={**_curve_tables(study, curves), **(analysis.tables if analysis else {})},
    )
    write_atomically(output / TABLE, heading + markdown(tables))
    write_atomically(output / LATEX, latex(tables))
    write_atomically(output / PAGE, page_text(page))
    marks = {key: mark for block in blocks for key, mark in marks_of_block(results, block).items()}
    content = {
        "format": FORMAT,
        "study": study.name,
        "source": study.source,
        "scale": scale,
        "seeds": seeds,
        "heading": list(study.heading),
        "rows": _rows(results, marks, paper),
        "claims": [
            {"text": claim.text, "source": claim.source, "verdict": verdict.word, "because": verdict.because}
            for claim, verdict in verdicts
        ],
        "trainings": facts,
        "curves": curves,
        **({"analysis": analysis.content} if analysis else {}),
    }
    write_atomically(output / RESULTS, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return results


def _rows(
    results: SeededResults, marks: dict[tuple[str, str, str], str], paper: dict[tuple[str, str, str], float]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by row, data set and metric, the value of each seed, mean, deviation, mark, and the paper's figure."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row, dataset in results.cells:
        for metric in results.cells[row, dataset][0].metrics:
            key = (row, dataset, metric)
            rows.setdefault(row, {}).setdefault(dataset, {})[metric] = {
                "values": [_finite_or_none(value) for value in results.values(*key).tolist()],
                "mean": _finite_or_none(results.mean(*key)),
                "deviation": _finite_or_none(results.deviation(*key)),
                "mark": marks.get(key, ""),
                "paper": paper.get(key),
            }
    return rows


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _training_facts(study: Study, output: Path, seeds: int) -> list[dict[str, Any]]:
    """Return the steps, the best step and the seconds of each training.

    With a refresh of hard negatives, `tables` has the first step with each mined table, and the age of its weights.
    """
    trainings = []
    for arm in study.arms:
        if arm.curriculum is not None:
            for seed in seeds_of(arm, seeds):
                metrics = _read_arm(arm_folder(output, arm, seed))
                facts = {name: metrics.get(name) for name in ("steps", STEPS_TO_BEST, "step_seconds")}
                if arm.curriculum.base.refresh.refresh_every:
                    facts["tables"] = end_to_end(
                        _step_folders(arm_folder(output, arm, seed)), "refresh_staleness_steps"
                    )
                trainings.append({"arm": arm.name, "seed": seed, **facts})
    return trainings


def _read_arm(folder: Path) -> Mapping[str, Any]:
    file, remedy = folder / METRICS, f"remove {folder}; the arm is trained and measured again"
    with disk_errors(file, reading=True):
        return read_json(file, _ArmMetrics, remedy, needed=True)


def _training_rows(facts: list[dict[str, Any]]) -> list[list[str]]:
    has_tables = any("tables" in fact for fact in facts)
    titles = ["arm", "seed", "steps", "best at step", "seconds of steps"]
    rows = [titles + ["mined tables from step (weights of step)"] * has_tables]
    for fact in facts:
        best = fact[STEPS_TO_BEST]
        rows.append(
            [
                fact["arm"],
                str(fact["seed"]),
                f"{fact['steps']:,}",
                "-" if best is None else f"{best:,}",
                f"{fact['step_seconds']:,.1f}",
                *([_table_text(fact.get("tables"))] if has_tables else []),
            ]
        )
    return rows


def _table_text(tables: list[tuple[int, float]] | None) -> str:
    if tables is None:
        return "-"
    return ", ".join(f"{first} ({first - 1 - staleness:.0f})" for first, staleness in tables) or "none"


def _read_curves(study: Study, output: Path, seeds: int) -> dict[str, dict[str, list[list[tuple[int, float]]]]]:
    """Return the steps and values of each figure of curves, by its name, arm and seed."""
    return {
        drawing.name: {
            arm.name: [
                end_to_end(_step_folders(arm_folder(output, arm, seed)), _logged_name(drawing))
                for seed in seeds_of(arm, seeds)
            ]
            for arm in study.arms
            if arm.curriculum
        }
        for drawing in study.drawings
        if drawing.kind == CURVES
    }


def _curve_tables(
    study: Study, curves: Mapping[str, Mapping[str, list[list[tuple[int, float]]]]]
) -> dict[str, list[list[str]]]:
    """Return, for each figure of a metric, the mean over the seeds by step and arm; `-` where a seed has no value."""
    tables = {}
    for drawing in study.drawings:
        if drawing.name not in curves or not drawing.metric:
            continue
        by_arm = {arm: [dict(points) for points in seeds] for arm, seeds in curves[drawing.name].items()}
        rows = [["step", *by_arm]]
        for step in sorted({step for seeds in by_arm.values() for points in seeds for step in points}):
            values = [[points.get(step, math.nan) for points in seeds] for seeds in by_arm.values()]
            rows.append([f"{step:,}", *(value_text(drawing.metric, fmean(one)) for one in values)])
        tables[f"{title_of(drawing.metric)} on dev data while training, mean over seeds"] = rows
    return tables


def _logged_name(drawing: Drawing) -> str:
    return f"{DEV}{drawing.metric}" if drawing.metric else DEV_LOSS


def draw(study: Study, results: SeededResults, blocks: Sequence[Block], output: Path, into: Path) -> dict[str, str]:
    """Draw all figures of a study; a figure without values is left out.

    Args:
        study: names the figures.
        results: metrics of the study.
        blocks: rows and baselines.
        output: directory of the study.
        into: folder for the pictures, each written as PNG and SVG.

    Returns:
        Captions by the file names of the pictures.
    """
    captions: dict[str, str] = {}
    for drawing in study.drawings:
        captions |= _DRAW[drawing.kind](drawing, study, results, blocks, output, into)
    return captions


def _draw_lines(
    drawing: Drawing, study: Study, results: SeededResults, blocks: Sequence[Block], output: Path, into: Path
) -> dict[str, str]:
    """Draw a metric over the setting that the arms vary."""
    captions = {}
    for dataset in drawing.datasets or results.datasets:
        panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
        for arm in study.arms:
            if drawing.x in arm.coordinates and results.has(arm.label, dataset, drawing.metric):
                title = (
                    f"{drawing.panel} = {arm.coordinates[drawing.panel]}" if drawing.panel in arm.coordinates else ""
                )
                values = (
                    results.mean(arm.label, dataset, drawing.metric),
                    results.deviation(arm.label, dataset, drawing.metric),
                )
                curves = panels.setdefault(title, {})
                curves.setdefault(str(arm.coordinates.get(drawing.by, "")), []).append(
                    (float(arm.coordinates[drawing.x]), *values)
                )
        if panels:
            name = _file_name(drawing, dataset, len(drawing.datasets or results.datasets))
            lines: dict[str, dict[str, Points]] = {title: dict(curves) for title, curves in panels.items()}
            save_lines(into / name, lines, drawing.x, f"{title_of(drawing.metric)}, {dataset}")
            captions[name] = f"{title_of(drawing.metric)} on {dataset} over {drawing.x}"
    return captions


def _draw_gains(
    drawing: Drawing, study: Study, results: SeededResults, blocks: Sequence[Block], output: Path, into: Path
) -> dict[str, str]:
    """Draw the difference of each row from the first baseline of its block."""
    gains: dict[str, dict[str, float]] = {}
    for block in blocks:
        for row in block.rows:
            for dataset in drawing.datasets or results.datasets:
                pair = (row, block.baselines[0]) if block.baselines else ()
                if row not in block.baselines and pair and all(results.has(r, dataset, drawing.metric) for r in pair):
                    value, baseline = (results.mean(one, dataset, drawing.metric) for one in pair)
                    gains.setdefault(row, {})[dataset] = value - baseline
    if not gains:
        return {}
    name, metric = f"{drawing.name}.png", title_of(drawing.metric)
    save_gains(into / name, gains, metric, study.baselines[0])
    return {name: f"Gain in {metric} over {study.baselines[0]}"}


def _draw_curves(
    drawing: Drawing, study: Study, results: SeededResults, blocks: Sequence[Block], output: Path, into: Path
) -> dict[str, str]:
    """Draw the validation curve of the first seed of every arm."""
    folders = {arm.name: _step_folders(arm_folder(output, arm, 0)) for arm in study.arms if arm.curriculum}
    curves = {name: points for name, stages in folders.items() if (points := end_to_end(stages, _logged_name(drawing)))}
    if not curves:
        return {}
    name, value = f"{drawing.name}.png", title_of(drawing.metric) if drawing.metric else "dev loss"
    save_curves(into / name, curves, value)
    return {name: f"{value} while training, seed 0"}


def _draw_pools(
    drawing: Drawing, study: Study, results: SeededResults, blocks: Sequence[Block], output: Path, into: Path
) -> dict[str, str]:
    """Draw ROC curves or histograms of scores of the first seed of every row, by data set."""
    captions = {}
    datasets = drawing.datasets or results.datasets
    for dataset in datasets:
        pools = {
            arm.label: _read_stored_pools(arm, dataset, output) for arm in study.arms if _is_measured(arm, dataset)
        }
        name = _file_name(drawing, dataset, len(datasets))
        if drawing.kind == ROC:
            save_roc(into / name, pools, f"ROC, all queries pooled, {dataset}")
            captions[name] = f"ROC curves with 95 % bands on {dataset}, seed 0"
        else:
            save_score_histograms(into / name, pools, f"Positives and best non-positives, {dataset}")
            captions[name] = f"Scores of positives and of the best non-positives on {dataset}, seed 0"
    return captions


def _read_stored_pools(arm: Arm, dataset: str, output: Path) -> ScoredPools:
    path = arm_folder(output, arm, 0) / MEASURED / safe_name(dataset)
    return read_pools(path, arm.name, path.name)


def _is_measured(arm: Arm, dataset: str) -> bool:
    return any(one.name == dataset for one in arm.datasets)


def _step_folders(folder: Path) -> list[Path]:
    """Return the folders with the step logs of an arm: those of its stages, or its own directory."""
    stages = sorted((folder / STAGES).glob("*-*"), key=lambda path: int(path.name.partition("-")[0]))
    return stages or [folder]


def _file_name(drawing: Drawing, dataset: str, datasets: int) -> str:
    return f"{drawing.name}-{safe_name(dataset)}.png" if datasets > 1 else f"{drawing.name}.png"


_DRAW = {LINES: _draw_lines, GAINS: _draw_gains, CURVES: _draw_curves, ROC: _draw_pools, SCORES: _draw_pools}
