"""Plain-text tables of an evaluation: systems as rows, metrics as columns, and lines of tested differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.evaluation.names import unique_names
from raytriever.evaluation.protocol import format_absent, metric_title
from raytriever.metrics.significance import LEVEL
from raytriever.mining.analyser import analyser_line
from raytriever.terminal import one_line

# Least width of a column of figures.
FIGURE_WIDTH = 12


def metrics_table(rows: Mapping[str, Mapping[str, float]], marks: Mapping[tuple[str, str], str] | None = None) -> str:
    """Format one line per system under a header line; figures have four decimals.

    Args:
        rows: metrics by system; all systems have the same.
        marks: marks of significance, written behind the figures, by system and metric.
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

    Args:
        figures: content of `metrics.json`; earlier versions wrote no tests.
        names: names of `before` and `after` in print.
    """
    rows = [row for row in figures.get("significance", ()) if (row["model"], row["against"]) == ("after", "before")]
    lines = [format_absent(figures.get("judged", {}))]
    if rows:
        lines.append(
            f"Difference of {names['after']} - {names['before']}, {rows[0]['queries']:,} queries, paired t-test:"
        )
        lines.append(_difference_lines(rows))
    if analysis := figures.get("bm25_analyser"):
        lines += [analyser_line(analysis), analysis["warning"]]
    return "\n".join(filter(None, lines))


def _difference_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format one line per metric: the difference of two systems, its 95 % interval, p, and its significance."""
    titles = [metric_title(row["metric"]) for row in rows]
    width = max(map(len, titles), default=0)
    lines = []
    for title, row in zip(titles, rows, strict=True):
        outcome = "significant" if row["p_holm"] < LEVEL else "not significant"
        interval = f"95 % {row['low']:+.4f} to {row['high']:+.4f}"
        p = "p < 0.0001" if row["p"] < 1e-4 else f"p {row['p']:.4f}"
        lines.append(f"  {title:<{width}}  {row['difference']:+.4f}  {interval}  {p}  {outcome}")
    return "\n".join(lines)
