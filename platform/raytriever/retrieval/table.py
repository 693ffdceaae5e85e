"""Systems as rows, metrics as columns, in plain text."""

from __future__ import annotations

from collections.abc import Mapping

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
    rows = {one_line(system): metrics for system, metrics in rows.items()}
    marks = {(one_line(system), metric): mark for (system, metric), mark in (marks or {}).items()}
    names = list(next(iter(rows.values())))
    width = max(len(system) for system in rows)
    behind = max((len(mark) for mark in marks.values()), default=0)

    def cell(system: str, name: str) -> str:
        return f"{rows[system][name]:>12.4f}{marks.get((system, name), ''):<{behind}}"

    header = " " * width + "".join(f"{titles.get(name, name):>12}" + " " * behind for name in names)
    lines = [f"{system:<{width}}" + "".join(cell(system, name) for name in names) for system in rows]
    return "\n".join([header, *lines])


def markdown_cell(text: str) -> str:
    """Return a text as one cell of a Markdown table: on one line, without columns or HTML of its own."""
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
