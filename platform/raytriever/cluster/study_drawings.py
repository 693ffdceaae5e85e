"""The figures that a study asks for, out of its results and of the directories of its arms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raytriever.cluster.conclusion import end_to_end
from raytriever.cluster.study_arm import arm_folder
from raytriever.cluster.study_measuring import MEASURED
from raytriever.cluster.validation_sets import DEV
from raytriever.config import STAGES
from raytriever.config.study import CURVES, GAINS, LINES, ROC, SCORES, Arm, Drawing, Study
from raytriever.retrieval.figures import save_roc, save_score_histograms
from raytriever.retrieval.figures_models import save_curves, save_gains
from raytriever.retrieval.file_names import safe_name
from raytriever.retrieval.report_evaluation import StoredPools
from raytriever.retrieval.study_figures import Points, save_lines
from raytriever.retrieval.study_marks import Block
from raytriever.retrieval.study_reading import read_pools
from raytriever.retrieval.study_results import StudyResults
from raytriever.retrieval.study_table import title_of
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
