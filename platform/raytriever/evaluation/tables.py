"""Plain-text tables of an evaluation: systems as rows, metrics as columns, and lines of tested differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.evaluation.names import unique_names
from raytriever.evaluation.protocol import format_absent
from raytriever.metrics.significance import LEVEL
from raytriever.mining.analyser import analyser_line
from raytriever.terminal import one_line

TITLES = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10", "recall_at_100": "Recall@100", "auc": "AUC"}


def metrics_table(
    rows: Mapping[str, Mapping[str, float]],
    titles: Mapping[str, str] = TITLES,
    marks: Mapping[tuple[str, str], str] | None = None,
) -> str:
    """One line a system under a header line; four decimals.

    Args:
        rows: metrics by system.
        titles: of the metrics, in print.
        marks: of significance, by system and metric; they stand behind the figures.
    """
    # Two names that are alike without their control characters stay two rows.
    lines_of = dict(zip(rows, unique_names([one_line(system) for system in rows]), strict=True))
    rows = {lines_of[system]: metrics for system, metrics in rows.items()}
    marks = {(lines_of[system], metric): mark for (system, metric), mark in (marks or {}).items() if system in lines_of}
    names = list(next(iter(rows.values())))
    width = max(len(system) for system in rows)
    behind = max((len(mark) for mark in marks.values()), default=0)
    # Two blanks at least between two titles: a long one widens its column.
    shown = dict(zip(names, unique_names([titles.get(name, name) for name in names]), strict=True))
    wide = {name: max(12, len(shown[name]) + 2) for name in names}

    def cell(system: str, name: str) -> str:
        return f"{rows[system][name]:>{wide[name]}.4f}{marks.get((system, name), ''):<{behind}}"

    header = " " * width + "".join(f"{shown[name]:>{wide[name]}}" + " " * behind for name in names)
    lines = [f"{system:<{width}}" + "".join(cell(system, name) for name in names) for system in rows]
    return "\n".join([header, *lines])


def difference_lines(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str] = TITLES) -> str:
    """One line a metric: the difference of two systems, its 95 % interval, p, and whether it is significant.

    Args:
        rows: of one model against one other on one data set, from `evaluation_significance.significance_rows`.
        titles: of the metrics, in print.
    """
    names = [titles.get(row["metric"], row["metric"]) for row in rows]
    width = max(map(len, names), default=0)
    lines = []
    for name, row in zip(names, rows, strict=True):
        outcome = "significant" if row["p_holm"] < LEVEL else "not significant"
        interval = f"95 % {row['low']:+.4f} to {row['high']:+.4f}"
        lines.append(f"  {name:<{width}}  {row['difference']:+.4f}  {interval}  {format_p_value(row['p'])}  {outcome}")
    return "\n".join(lines)


def training_notes(figures: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Describe what training changed, and what the figures leave out; for below the table of a finished run.

    Args:
        figures: the content of `metrics.json`; that of an earlier version has no tests.
        names: of `before` and `after`, in print.
    """
    rows = [row for row in figures.get("significance", ()) if (row["model"], row["against"]) == ("after", "before")]
    lines = [format_absent(figures.get("judged", {}))]
    if rows:
        lines.append(
            f"Difference of {names['after']} - {names['before']}, {rows[0]['queries']:,} queries, paired t-test:"
        )
        lines.append(difference_lines(rows))
    if analysis := figures.get("bm25_analyser"):
        lines += [analyser_line(), analysis["warning"]]
    return "\n".join(filter(None, lines))


def format_p_value(p: float) -> str:
    """Return a p-value in print: `p 0.0312`, `p < 0.0001`."""
    return "p < 0.0001" if p < 1e-4 else f"p {p:.4f}"


def markdown_cell(text: str) -> str:
    """Return a text as one cell of a Markdown table: on one line, without columns or HTML of its own."""
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
