"""Figures of the study `abstain`: risk-coverage curves, and the F1 of thresholds from other data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from raytriever.metrics.selective import risk_coverage
from raytriever.report.figures import PANEL, label, lines, picture

_COLUMNS = 3
Answers = tuple[Float64[ndarray, " questions"], Bool[ndarray, " questions"]]  # scores, and whether they are right


def save_risk_coverage(path: Path, panels: Mapping[str, Mapping[str, Sequence[Answers]]]) -> None:
    """Draw a risk-coverage curve of each row, a panel for each data set.

    Args:
        path: path of the PNG; the SVG is written next to it.
        panels: answers of each seed by row, by title of the panel. The curve is the mean over the seeds.
    """
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    with picture(path, PANEL * columns, 0.4 + 0.9 * PANEL * rows) as figure:
        for number, (title, systems) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(rows, columns, number)
            for (name, seeds), (colour, dash) in zip(systems.items(), lines(), strict=False):
                curves = [risk_coverage(scores, right) for scores, right in seeds]
                coverage = np.arange(1, len(seeds[0][1]) + 1) / len(seeds[0][1])
                risk = np.mean([np.interp(coverage, curve.coverage, curve.risk) for curve in curves], axis=0)
                axes.plot(coverage, risk, color=colour, linestyle=dash, label=label(name))
            axes.set(title=title, xlabel="share of questions shown", xlim=(0, 1), ylim=(0, 1))
        figure.axes[0].set_ylabel("wrong, of those shown")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def save_transfer(path: Path, matrices: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Draw the F1 of each row: where the threshold was chosen from top to bottom, where it is used from left to right.

    Args:
        path: path of the PNG; the SVG is written next to it.
        matrices: F1 by source and target, by row.
    """
    values = [value for matrix in matrices.values() for one in matrix.values() for value in one.values()]
    columns = min(_COLUMNS, len(matrices))
    rows = math.ceil(len(matrices) / columns)
    with picture(path, PANEL * columns, 0.4 + 0.9 * PANEL * rows) as figure:
        for number, (row, matrix) in enumerate(matrices.items(), 1):
            axes = figure.add_subplot(rows, columns, number)
            table = np.array([list(one.values()) for one in matrix.values()])
            axes.imshow(table, vmin=min(values), vmax=max(values), cmap="viridis")
            middle = (min(values) + max(values)) / 2
            for (y, x), value in np.ndenumerate(table):
                colour = "black" if value > middle else "white"
                axes.text(x, y, f"{100 * value:.0f}", ha="center", va="center", color=colour, fontsize=8)
            names = list(matrix)
            axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
            axes.set_yticks(range(len(names)), names)
            axes.grid(False)
            axes.set_title(label(row))
        figure.supxlabel("test questions")
        figure.supylabel("threshold chosen on dev questions of")
