"""Write the results of a study: `results.json`, `table.md`, `table.tex`, figures and `study.md`.

Everything is computed from the directories of the arms and the recipe, so every call writes it again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from raytriever.activity import activity
from raytriever.cluster.train.dev_sets import DEV
from raytriever.config import STAGES
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.paper_table import latex, markdown
from raytriever.experiment.conclusion import end_to_end
from raytriever.experiment.directory import METRICS
from raytriever.reading.structured import read_json
from raytriever.report.evaluation import StoredPools
from raytriever.report.figures import Points, save_curves, save_gains, save_lines
from raytriever.report.score_figures import save_roc, save_score_histograms
from raytriever.storage import committed_directory, disk_errors, write_atomically
from raytriever.studies.definition import CURVES, GAINS, LINES, ROC, SCORES, STEPS_TO_BEST, Arm, Drawing, Study
from raytriever.studies.page import Block, StudyPage, marks_of_block, page_text, study_tables, title_of
from raytriever.studies.results import Found, StudyResults
from raytriever.studies.results_reader import read_found, read_pools
from raytriever.studies.run.arm import MEASURED, arm_folder
from raytriever.training.config import DEV_LOSS

FIGURES = "figures"


def draw(study: Study, results: StudyResults, blocks: Sequence[Block], output: Path, into: Path) -> dict[str, str]:
    """Draw all figures of a study; what there are no values for is left out.

    Args:
        study: which figures.
        results: the figures behind them.
        blocks: the rows, and what each is compared with.
        output: the study's directory.
        into: where pictures are written, each as PNG and SVG.

    Returns:
        Captions by the pictures' file names.
    """
    found: dict[str, str] = {}
    for drawing in study.drawings:
        found |= {
            LINES: _lines,
            GAINS: _gains,
            CURVES: _curves,
            ROC: _pooled,
            SCORES: _pooled,
        }[drawing.kind](drawing, study, results, blocks, output, into)
    return found


def _lines(
    drawing: Drawing, study: Study, results: StudyResults, blocks: Sequence[Block], output: Path, into: Path
) -> dict[str, str]:
    """A metric over what was varied."""
    found = {}
    for dataset in drawing.datasets or results.datasets:
        panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
        for arm in study.arms:
            if drawing.x in arm.at and results.has(arm.label, dataset, drawing.metric):
                title = f"{drawing.panel} = {arm.at[drawing.panel]}" if drawing.panel in arm.at else ""
                values = (
                    results.mean(arm.label, dataset, drawing.metric),
                    results.deviation(arm.label, dataset, drawing.metric),
                )
                curves = panels.setdefault(title, {})
                curves.setdefault(str(arm.at.get(drawing.by, "")), []).append((float(arm.at[drawing.x]), *values))
        if panels:
            name = _name(drawing, dataset, len(drawing.datasets or results.datasets))
            drawn: dict[str, dict[str, Points]] = {title: dict(curves) for title, curves in panels.items()}
            save_lines(into / name, drawn, drawing.x, f"{title_of(drawing.metric)}, {dataset}")
            found[name] = f"{title_of(drawing.metric)} on {dataset} over {drawing.x}"
    return found


def _gains(
    drawing: Drawing, study: Study, results: StudyResults, blocks: Sequence[Block], output: Path, into: Path
) -> dict[str, str]:
    """What each row gains over the first baseline of its block."""
    gains: dict[str, dict[str, float]] = {}
    for block in blocks:
        for row in block.rows:
            for dataset in drawing.datasets or results.datasets:
                both = (row, block.baselines[0]) if block.baselines else ()
                if row not in block.baselines and both and all(results.has(r, dataset, drawing.metric) for r in both):
                    ours, theirs = (results.mean(one, dataset, drawing.metric) for one in both)
                    gains.setdefault(row, {})[dataset] = ours - theirs
    if not gains:
        return {}
    name, metric = f"{drawing.name}.png", title_of(drawing.metric)
    save_gains(into / name, gains, metric, study.baselines[0])
    return {name: f"Gain in {metric} over {study.baselines[0]}"}


def _curves(
    drawing: Drawing, study: Study, results: StudyResults, blocks: Sequence[Block], output: Path, into: Path
) -> dict[str, str]:
    """What looks at dev data told, of the first seed of every arm."""
    told = f"{DEV}{drawing.metric}" if drawing.metric else DEV_LOSS
    found = {arm.name: end_to_end(_folders(arm_folder(output, arm, 0)), told) for arm in study.arms if arm.curriculum}
    curves = {name: points for name, points in found.items() if points}
    if not curves:
        return {}
    name, value = f"{drawing.name}.png", title_of(drawing.metric) if drawing.metric else "dev loss"
    save_curves(into / name, curves, value)
    return {name: f"{value} while training, seed 0"}


def _pooled(
    drawing: Drawing, study: Study, results: StudyResults, blocks: Sequence[Block], output: Path, into: Path
) -> dict[str, str]:
    """ROC curves, or histograms of scores, of the first seed of every row on a data set."""
    found = {}
    datasets = drawing.datasets or results.datasets
    for dataset in datasets:
        pools = {arm.label: _pools(arm, dataset, output) for arm in study.arms if _measures(arm, dataset)}
        name = _name(drawing, dataset, len(datasets))
        if drawing.kind == ROC:
            save_roc(into / name, pools, f"ROC, all queries pooled, {dataset}")
            found[name] = f"ROC curves with 95 % bands on {dataset}, seed 0"
        else:
            save_score_histograms(into / name, pools, f"Positives and best non-positives, {dataset}")
            found[name] = f"Scores of positives and of the best non-positives on {dataset}, seed 0"
    return found


def _pools(arm: Arm, dataset: str, output: Path) -> StoredPools:
    place = arm_folder(output, arm, 0) / MEASURED / safe_name(dataset)
    pools = read_pools(place, arm.name, place.name)
    return StoredPools(pools.positives, pools.negatives)


def _measures(arm: Arm, dataset: str) -> bool:
    return any(one.name == dataset for one in arm.measured)


def _folders(folder: Path) -> list[Path]:
    """Where an arm keeps its steps: in its directory, or in those of its stages."""
    stages = sorted((folder / STAGES).glob("*-*"), key=lambda path: int(path.name.partition("-")[0]))
    return stages or [folder]


def _name(drawing: Drawing, dataset: str, datasets: int) -> str:
    return f"{drawing.name}-{safe_name(dataset)}.png" if datasets > 1 else f"{drawing.name}.png"


RESULTS, TABLE, LATEX, PAGE, FORMAT = "results.json", "table.md", "table.tex", "study.md", 1


def seeds_of(arm: Arm, seeds: int) -> Iterable[int]:
    """The seeds an arm is made with; what is not trained has one."""
    return range(1 if arm.curriculum is None else seeds)


def read_study(study: Study, output: Path, seeds: int) -> StudyResults:
    """All that the finished arms of a study were measured to be; raises `StorageError`."""
    found: dict[tuple[str, str], list[Found]] = {}
    for arm in study.arms:
        for seed in seeds_of(arm, seeds):
            folder = arm_folder(output, arm, seed)
            kept = _read_arm(folder)["measured"]
            for one in arm.measured:
                name = safe_name(one.name)
                extras = {key: math.nan if value is None else float(value) for key, value in kept[one.name].items()}
                new = read_found(folder / MEASURED / name, arm.name, name, seed, extras)
                found.setdefault((arm.label, one.name), []).append(new)
    return StudyResults(found)


def blocks_of(study: Study) -> list[Block]:
    """The rows by block, with the baselines that each block has."""
    blocks = []
    for name in dict.fromkeys(arm.block for arm in study.arms):
        rows = {arm.label: arm.row for arm in study.arms if arm.block == name}
        named = {row: label for label, row in rows.items()}
        blocks.append(Block(name, rows, [named[row] for row in study.baselines if row in named]))
    return blocks


@activity("writing the tables and figures of the study")
def write_study(study: Study, output: Path, scale: str, seeds: int) -> StudyResults:
    """Write what there is to read; raises `StorageError` where the disk is full or an arm's files are damaged."""
    results, blocks = read_study(study, output, seeds), blocks_of(study)
    paper = {
        (arm.label, dataset, metric): value for arm in study.arms for (dataset, metric), value in arm.paper.items()
    }
    caption = f"{study.source}, at scale {scale}."
    tables = study_tables(results, blocks, paper, caption)
    verdicts = [(claim, claim.verdict(results)) for claim in study.claims]
    with committed_directory(output / FIGURES, {"kind": "figures"}, replace=True) as aside:
        pictures = draw(study, results, blocks, output, aside)
    heading = "".join(f"{line}\n\n" for line in study.heading)
    page = StudyPage(
        study.title,
        [f"{study.source}; scale {scale}, {seeds} seed{'s' if seeds > 1 else ''}", *study.heading],
        tables,
        verdicts,
        _trainings(study, output, seeds),
        {one.title: [list(one.columns), *map(list, one.rows)] for one in study.paper},
        {f"{FIGURES}/{name}": caption for name, caption in pictures.items()},
    )
    write_atomically(output / TABLE, heading + markdown(tables))
    write_atomically(output / LATEX, latex(tables))
    write_atomically(output / PAGE, page_text(page))
    marks = {key: mark for block in blocks for key, mark in marks_of_block(results, block).items()}
    told = {
        "format": FORMAT,
        "study": study.name,
        "source": study.source,
        "scale": scale,
        "seeds": seeds,
        "heading": list(study.heading),
        "rows": _rows(results, marks, paper),
        "claims": [
            {"text": claim.text, "source": claim.source, "verdict": one.word, "because": one.because}
            for claim, one in verdicts
        ],
        "trainings": _facts(study, output, seeds),
    }
    write_atomically(output / RESULTS, json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return results


def _rows(
    results: StudyResults, marks: dict[tuple[str, str, str], str], paper: dict[tuple[str, str, str], float]
) -> dict[str, dict[str, dict[str, Any]]]:
    """By row, data set and metric: a value a seed, mean, deviation, mark, and the paper's figure."""
    told: dict[str, dict[str, dict[str, Any]]] = {}
    for row, dataset in results.found:
        for metric in results.found[row, dataset][0].metrics:
            key = (row, dataset, metric)
            told.setdefault(row, {}).setdefault(dataset, {})[metric] = {
                "values": [_known(value) for value in results.values(*key).tolist()],
                "mean": _known(results.mean(*key)),
                "deviation": _known(results.deviation(*key)),
                "mark": marks.get(key, ""),
                "paper": paper.get(key),
            }
    return told


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _facts(study: Study, output: Path, seeds: int) -> list[dict[str, Any]]:
    """What each training took."""
    found = []
    for arm in study.arms:
        if arm.curriculum is not None:
            for seed in seeds_of(arm, seeds):
                kept = _read_arm(arm_folder(output, arm, seed))
                facts = {name: kept.get(name) for name in ("steps", STEPS_TO_BEST, "step_seconds")}
                found.append({"arm": arm.name, "seed": seed, **facts})
    return found


class _ArmMetrics(TypedDict):
    measured: dict[str, dict[str, float | None]]
    steps: NotRequired[int]
    step_seconds: NotRequired[float]


def _read_arm(folder: Path) -> Mapping[str, Any]:
    file, remedy = folder / METRICS, f"remove {folder}; the arm is trained and measured again"
    with disk_errors(file, reading=True):
        return read_json(file, _ArmMetrics, remedy, needed=True)


def _trainings(study: Study, output: Path, seeds: int) -> list[list[str]]:
    rows = [["arm", "seed", "steps", "best at step", "seconds of steps"]]
    for fact in _facts(study, output, seeds):
        best = fact[STEPS_TO_BEST]
        rows.append(
            [
                fact["arm"],
                str(fact["seed"]),
                f"{fact['steps']:,}",
                "-" if best is None else f"{best:,}",
                f"{fact['step_seconds']:,.1f}",
            ]
        )
    return rows
