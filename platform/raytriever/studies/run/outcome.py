"""Outcome of a study: `results.json`, `table.md`, `table.tex`, `study.md` and the figures.

Everything is computed from the directories of the arms and the recipe, so every call can write it again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NotRequired, TypedDict

import numpy as np

from raytriever.activity import activity
from raytriever.cluster.train.dev_sets import DEV
from raytriever.errors import StorageError
from raytriever.evaluation.differences.seeds import Cell, SeededResults, SeedMetrics
from raytriever.evaluation.differences.significance import collect_marks, pair_lines
from raytriever.evaluation.files import LATEX, read_per_query, read_pools
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.protocol import AUC
from raytriever.evaluation.results import read_results, without_nan
from raytriever.evaluation.tables import latex, markdown
from raytriever.experiment.directory import METRICS
from raytriever.metrics.auc import auc_pseudo_values
from raytriever.reading.structured import read_json
from raytriever.report.figures import Points, save_curves, save_gains, save_lines, save_roc, save_score_histograms
from raytriever.store.commit import committed_directory, write_atomically
from raytriever.store.disk import disk_errors
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
from raytriever.studies.page import Block, page_text, pairs_of_block, study_tables, title_of, value_text
from raytriever.studies.recipes import OWN
from raytriever.studies.run.arm import arm_folder, evaluation_of
from raytriever.tracking.steps import end_to_end, stage_folders
from raytriever.training.config import DEV_LOSS

RESULTS, TABLE, PAGE, FIGURES = "results.json", "table.md", "study.md", "figures"
FORMAT = 1


class _ArmMetrics(TypedDict):
    measured: dict[str, dict[str, float | None]]
    steps: NotRequired[int]
    step_seconds: NotRequired[float]


def seeds_of(arm: Arm, seeds: int) -> Iterable[int]:
    """Return the seeds of an arm; an arm that is not trained has one."""
    return range(1 if arm.curriculum is None else seeds)


def read_study(study: Study, output: Path, seeds: int) -> tuple[SeededResults, dict[Cell, list[Evaluated]]]:
    """Return metrics and evaluations of all arms of a study by row and data set, seeds ascending."""
    cells: dict[Cell, list[SeedMetrics]] = {}
    evaluations: dict[Cell, list[Evaluated]] = {}
    for arm in study.arms:
        for seed in seeds_of(arm, seeds):
            folder = arm_folder(output, arm, seed)
            measured = _read_arm(folder)["measured"]
            for dataset in arm.datasets:
                one = evaluation_of(folder, arm, dataset, seed)
                values = measured[dataset.name].items()
                extras = {key: math.nan if value is None else float(value) for key, value in values}
                metrics = read_seed_metrics(one.folder, one.model, one.dataset, one.seed, extras)
                cells.setdefault((arm.label, dataset.name), []).append(metrics)
                evaluations.setdefault((arm.label, dataset.name), []).append(one)
    return SeededResults(cells), evaluations


def read_seed_metrics(
    folder: Path, model: str, dataset: str, seed: int | None, extras: Mapping[str, float]
) -> SeedMetrics:
    """Read the metrics of a model on a data set, with values by query, and pseudo-values of the AUC.

    Args:
        model, dataset: their names in this directory.
        seed: seed that the model was trained with; None if it was not trained.
        extras: further metrics that do not come from the evaluation.
    """
    results, remedy = read_results(folder), f"remove {folder}; it is measured again"
    path = folder / "per_query" / f"{dataset}.json"
    try:
        metrics = results["models"][model][dataset]
        values = read_per_query(path, remedy)["models"][model]["metrics"]
    except (KeyError, FileNotFoundError) as error:
        raise StorageError(f"has no results of {model} on {dataset}", str(folder), remedy) from error
    per_query = {name: np.array(column, np.float64) for name, column in values.items()}  # null becomes NaN
    if AUC in metrics:
        pools, count = read_pools(folder, model, dataset, remedy), int(results["about"][dataset]["queries"])
        assert pools.positive_queries is not None  # an evaluation always stores them
        assert pools.negative_queries is not None
        per_query[AUC] = auc_pseudo_values(
            pools.positives, pools.negatives, pools.positive_queries, pools.negative_queries, count
        )
    means = {name: float("nan") if value is None else float(value) for name, value in metrics.items()}
    return SeedMetrics(seed, means | dict(extras), per_query)


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
    (results, evaluations), blocks = read_study(study, output, seeds), blocks_of(study)
    analysis = study.analyse(evaluations) if study.analyse else None
    if analysis:
        results = analysis.results
        blocks = [Block("", {row: row for row in results.rows}, study.baselines)]
    paper = {
        (arm.label, dataset, metric): value for arm in study.arms for (dataset, metric), value in arm.paper.items()
    }
    caption = f"{study.source}." if scale == OWN else f"{study.source}, at scale {scale}."
    size = f"{'' if scale == OWN else f'scale {scale}, '}{seeds} seed{'s' if seeds > 1 else ''}"
    tables = study_tables(results, blocks, paper, caption)
    verdicts = [(claim, claim.verdict(results)) for claim in study.claims]
    with committed_directory(output / FIGURES, {"kind": "figures"}, replace=True) as folder:
        pictures = StudyFigures(study, results, blocks, output, folder).draw()
        pictures |= analysis.draw(folder) if analysis else {}
    tested = [(block, pairs_of_block(results, block)) for block in blocks]
    pairs = [row for _, rows in tested for row in rows] if scale == OWN else []
    facts, curves = _training_facts(study, output, seeds), _read_curves(study, output, seeds)
    heading = "".join(f"{line}\n\n" for line in study.heading)
    page = page_text(
        title=study.title,
        lines=[f"{study.source}; {size}", *study.heading],
        tables=tables,
        claims=verdicts,
        trainings=_training_rows(facts),
        paper={one.title: [list(one.columns), *map(list, one.rows)] for one in study.paper},
        figures={f"{FIGURES}/{name}": caption for name, caption in pictures.items()},
        further={**_curve_tables(study, curves), **(analysis.tables if analysis else {})},
        pairs=pair_lines(pairs, test="t-test over queries and seeds"),
    )
    write_atomically(output / TABLE, heading + markdown(tables))
    write_atomically(output / LATEX, latex(tables))
    write_atomically(output / PAGE, page)
    marks = {key: mark for block, rows in tested for key, mark in collect_marks(rows, block.baselines).items()}
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
        **({"pairs": pairs} if pairs else {}),
        "trainings": facts,
        "curves": curves,
        **({"analysis": analysis.content} if analysis else {}),
    }
    text = json.dumps(without_nan(content), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(output / RESULTS, text + "\n")
    return results


def _rows(
    results: SeededResults, marks: dict[tuple[str | None, str, str], str], paper: dict[tuple[str, str, str], float]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by row, data set and metric, the value of each seed, mean, deviation, mark, and the paper's figure."""
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

    With a refresh of hard negatives, `tables` has the first step with each mined table, and the age of its weights.
    """
    trainings = []
    for arm in study.arms:
        if arm.curriculum is not None:
            for seed in seeds_of(arm, seeds):
                metrics = _read_arm(arm_folder(output, arm, seed))
                facts = {name: metrics.get(name) for name in ("steps", STEPS_TO_BEST, "step_seconds")}
                if arm.curriculum.base.refresh.refresh_every:
                    facts["tables"] = _curve_of(output, arm, seed, "refresh_staleness_steps")
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
        best, tables = fact[STEPS_TO_BEST], [_table_text(fact.get("tables"))] * has_tables
        steps, seconds = f"{fact['steps']:,}", f"{fact['step_seconds']:,.1f}"
        rows.append([fact["arm"], str(fact["seed"]), steps, "-" if best is None else f"{best:,}", seconds, *tables])
    return rows


def _table_text(tables: list[tuple[int, float]] | None) -> str:
    if tables is None:
        return "-"
    return ", ".join(f"{first} ({first - 1 - staleness:.0f})" for first, staleness in tables) or "none"


def _read_curves(study: Study, output: Path, seeds: int) -> dict[str, dict[str, list[list[tuple[int, float]]]]]:
    """Return the steps and values of each figure of curves, by its name, arm and seed."""
    return {
        drawing.name: {
            arm.name: [_curve_of(output, arm, seed, _logged_name(drawing)) for seed in seeds_of(arm, seeds)]
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


@dataclass(frozen=True)
class StudyFigures:
    """Figures of a study, each written as PNG and SVG; a figure without values is left out."""

    study: Study
    results: SeededResults
    blocks: Sequence[Block]
    output: Path
    into: Path

    def draw(self) -> dict[str, str]:
        """Draw all figures; return captions by the file names of the pictures."""
        kinds: dict[str, Callable[[Drawing], dict[str, str]]] = {
            LINES: self._lines,
            GAINS: self._gains,
            CURVES: self._curves,
            ROC: self._pools,
            SCORES: self._pools,
        }
        captions: dict[str, str] = {}
        for drawing in self.study.drawings:
            captions |= kinds[drawing.kind](drawing)
        return captions

    def _file_name(self, drawing: Drawing, dataset: str) -> str:
        return f"{drawing.name}-{safe_name(dataset)}.png" if len(self.results.datasets) > 1 else f"{drawing.name}.png"

    def _lines(self, drawing: Drawing) -> dict[str, str]:
        """Draw a metric over the setting that the arms vary."""
        captions, metric, results = {}, drawing.metric, self.results
        for dataset in results.datasets:
            panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
            for arm in self.study.arms:
                at = arm.coordinates
                if drawing.x in at and results.has(arm.label, dataset, metric):
                    title = f"{drawing.panel} = {at[drawing.panel]}" if drawing.panel in at else ""
                    values = (results.mean(arm.label, dataset, metric), results.deviation(arm.label, dataset, metric))
                    curve = panels.setdefault(title, {}).setdefault(str(at.get(drawing.by, "")), [])
                    curve.append((float(at[drawing.x]), *values))
            if panels:
                name = self._file_name(drawing, dataset)
                lines: dict[str, dict[str, Points]] = {title: dict(curves) for title, curves in panels.items()}
                save_lines(self.into / name, lines, drawing.x, f"{title_of(metric)}, {dataset}")
                captions[name] = f"{title_of(metric)} on {dataset} over {drawing.x}"
        return captions

    def _gains(self, drawing: Drawing) -> dict[str, str]:
        """Draw the difference of each row from the first baseline of its block."""
        gains: dict[str, dict[str, float]] = {}
        for block in self.blocks:
            for row in block.rows if block.baselines else ():
                for dataset in self.results.datasets:
                    pair = (row, block.baselines[0])
                    if row not in block.baselines and all(self.results.has(r, dataset, drawing.metric) for r in pair):
                        value, baseline = (self.results.mean(one, dataset, drawing.metric) for one in pair)
                        gains.setdefault(row, {})[dataset] = value - baseline
        if not gains:
            return {}
        name, metric, baseline_row = f"{drawing.name}.png", title_of(drawing.metric), self.study.baselines[0]
        save_gains(self.into / name, gains, metric, baseline_row)
        return {name: f"Gain in {metric} over {baseline_row}"}

    def _curves(self, drawing: Drawing) -> dict[str, str]:
        """Draw the validation curve of the first seed of every arm."""
        trained, logged = [arm for arm in self.study.arms if arm.curriculum], _logged_name(drawing)
        curves = {arm.name: points for arm in trained if (points := _curve_of(self.output, arm, 0, logged))}
        if not curves:
            return {}
        name, value = f"{drawing.name}.png", title_of(drawing.metric) if drawing.metric else "dev loss"
        save_curves(self.into / name, curves, value)
        return {name: f"{value} while training, seed 0"}

    def _pools(self, drawing: Drawing) -> dict[str, str]:
        """Draw ROC curves or histograms of scores of the first seed of every row, by data set."""
        captions = {}
        for dataset in self.results.datasets:
            pools = {}
            for arm in self.study.arms:
                for one in arm.datasets:
                    if one.name == dataset:
                        evaluated = evaluation_of(arm_folder(self.output, arm, 0), arm, one)
                        remedy = f"remove {evaluated.folder}; it is measured again"
                        pools[arm.label] = read_pools(evaluated.folder, evaluated.model, evaluated.dataset, remedy)
            name = self._file_name(drawing, dataset)
            if drawing.kind == ROC:
                save_roc(self.into / name, pools, f"ROC, all queries pooled, {dataset}")
                captions[name] = f"ROC curves with 95 % bands on {dataset}, seed 0"
            else:
                save_score_histograms(self.into / name, pools, f"Positives and best non-positives, {dataset}")
                captions[name] = f"Scores of positives and of the best non-positives on {dataset}, seed 0"
        return captions


def _curve_of(output: Path, arm: Arm, seed: int, metric: str) -> list[tuple[int, float]]:
    """Return the logged values of a metric by step, over all stages of an arm."""
    return end_to_end(stage_folders(arm_folder(output, arm, seed)), metric)
