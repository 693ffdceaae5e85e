"""The figures of a study: a metric over what was varied, one panel beside the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from raytriever.retrieval.figures_style import HEIGHT, WIDTH, label, lines, picture

PANEL = 3.4  # inches of width
# A point: where it stands, its mean, its standard deviation over seeds (NaN for one seed).
Points = Sequence[tuple[float, float, float]]


def save_lines(path: Path, panels: Mapping[str, Mapping[str, Points]], across: str, value: str) -> None:
    """Means with their deviations over seeds, one curve a name, panels side by side on one scale.

    What was tried stands at equal distances: on a scale of its own 0, 0.001 and 0.1 would lie on each other.

    Args:
        path: of the PNG; the SVG stands beside it.
        panels: by title, and in each the curves by name; a title may be empty.
        across: what is varied.
        value: what is drawn.
    """
    width = WIDTH if len(panels) == 1 else PANEL * len(panels)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    looks = dict(zip(names, lines(), strict=False))
    with picture(path, width, HEIGHT + 0.2 * (len(names) > 1)) as figure:
        shared = None
        for place, (title, curves) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), place, sharey=shared)
            shared = shared or axes
            tried = sorted({x for points in curves.values() for x, _, _ in points})
            for name, points in curves.items():
                colour, dash = looks[name]
                where, means, deviations = zip(*sorted(points), strict=True)
                around = [deviation if deviation == deviation else 0.0 for deviation in deviations]
                axes.errorbar(
                    [tried.index(x) for x in where],
                    means,
                    yerr=around,
                    color=colour,
                    linestyle=dash,
                    marker="o",
                    markersize=3.5,
                    capsize=2,
                    label=label(name) if name else None,
                )
            axes.set(xlabel=across, title=title)
            axes.set_xticks(range(len(tried)), [f"{x:g}" for x in tried], rotation=45 if len(tried) > 5 else 0)
        figure.axes[0].set_ylabel(value)
        handles, names_told = figure.axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, names_told, loc="outside lower center", ncols=min(3, len(handles)))
