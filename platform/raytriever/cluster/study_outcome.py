"""What a study leaves when all arms are measured: `results.json`, `table.md`, `table.tex`, figures, and `study.md`.

All of it is a function of the arms' directories and of the recipe, so it is written anew by every call.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from raytriever.activity import activity
from raytriever.cluster.study_arm import arm_folder
from raytriever.cluster.study_drawings import FIGURES, draw
from raytriever.cluster.study_measuring import MEASURED
from raytriever.config.study import STEPS_TO_BEST, Arm, Study
from raytriever.reading.structured import read_json
from raytriever.retrieval.file_names import safe_name
from raytriever.retrieval.paper_table_files import latex, markdown
from raytriever.retrieval.study_marks import Block, marks_of_block
from raytriever.retrieval.study_page import StudyPage, page_text
from raytriever.retrieval.study_reading import read_found
from raytriever.retrieval.study_results import Found, StudyResults
from raytriever.retrieval.study_table import study_tables
from raytriever.storage import committed_directory, disk_errors, write_atomically
from raytriever.training.run_directory import METRICS

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
