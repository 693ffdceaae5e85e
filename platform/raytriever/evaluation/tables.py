"""Plain-text tables of an evaluation: systems as rows, metrics as columns, and lines of tested differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raytriever.evaluation.differences.significance import pair_lines
from raytriever.evaluation.names import unique_names
from raytriever.evaluation.protocol import format_absent, metric_title
from raytriever.mining.analyser import analyser_line
from raytriever.terminal import one_line

# Least width of a column of figures.
FIGURE_WIDTH = 12


def metrics_table(rows: Mapping[str, Mapping[str, float]], marks: Mapping[tuple[str, str], str] | None = None) -> str:
    """Format one line per system under a header line; figures have four decimals.

    All systems have the same metrics. Marks of significance, by system and metric, are behind the figures.
    """
    # Two names that differ only in control characters stay two rows.
    labels = dict(zip(rows, unique_names([one_line(system) for system in rows]), strict=True))
    names = list(next(iter(rows.values())))
    marks = marks or {}
    label_width = max(map(len, labels.values()))
    mark_width = max((len(mark) for mark in marks.values()), default=0)
    titles = unique_names([metric_title(name) for name in names])
    # At least two blanks separate two titles: a long title widens its column.
    widths = [max(FIGURE_WIDTH, len(title) + 2) for title in titles]
    header = [f"{title:>{width}}" + " " * mark_width for title, width in zip(titles, widths, strict=True)]
    lines = [" " * label_width + "".join(header)]
    for system, metrics in rows.items():
        cells = [
            f"{metrics[name]:>{width}.4f}{marks.get((system, name), ''):<{mark_width}}"
            for name, width in zip(names, widths, strict=True)
        ]
        lines.append(f"{labels[system]:<{label_width}}" + "".join(cells))
    return "\n".join(lines)


def systems_note(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe how each dense model reads texts. Models of different widths compare: each is searched on its own.

    Stored forms are left out: their table has the widths.
    """
    lines = []
    for name, system in systems.items():
        if "width" in system and "dtype" not in system:
            prompts = "".join(
                f", {side} prompt {system[f'{side}_prompt']!r}"
                for side in ("query", "passage")
                if system[f"{side}_prompt"]
            )
            lines.append(f"{name}: width {system['width']}, {system['similarity']}{prompts}")
    return "\n".join(lines)


def training_notes(figures: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Describe the effect of training, and what the figures leave out, for below the table of a finished run.

    `figures` is the content of `metrics.json`; earlier versions did not test all pairs.
    """
    lines = [format_absent(figures.get("judged", {})), *pair_lines(figures.get("pairs", ()), names)]
    if analysis := figures.get("bm25_analyser"):
        lines += [analyser_line(analysis), analysis["warning"]]
    return "\n".join(filter(None, lines))
