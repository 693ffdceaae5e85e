"""Tables of thresholds, confidences and stored forms; and points of the first two for the tracker."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.evaluation.decision import SHARES
from raytriever.evaluation.protocol import PAIR_AIMS, aim_text, metric_title
from raytriever.terminal import markdown_cell, markdown_table, one_line
from raytriever.tracking.tracker import Point

SHARE_TITLES = {
    "coverage": "queries answered",
    "top_precision": "top answer relevant",
    "wrong": "wrong answers, of all",
    "checked_precision": "precision of pairs",
    "checked_recall": "recall of pairs",
}
KIND_TITLES = {
    "given": "without an answer, answered",
    "removed": "answer removed, answered",
    "foreign": "of another data set, answered",
}
# Cells of a table, line by line, by the titles of their columns: text, and the number that it shows.
Cells = list[dict[str, tuple[str, float | None]]]


def threshold_cells(rows: Sequence[Mapping[str, Any]], places: int = 3) -> Cells:
    """Return the cells of each row of `calibration_rows`.

    Columns of pairs, and of kinds of questions without an answer, are there if a row has such a share.
    """
    pairs = any(row["aim"] in PAIR_AIMS for row in rows)
    names = [name for name in SHARES if pairs or not name.startswith("checked")]
    kinds = [kind for kind in KIND_TITLES if any(kind in row["unanswerable"] for row in rows)]
    on = " or ".join(dict.fromkeys(str(row["chosen_on"]) for row in rows))
    return [
        {
            "data set": (row["dataset"], None),
            "model": (row["model"], None),
            "wanted": (aim_text(str(row["aim"]), row["wanted"]), None),
            "confidence": (row["confidence"], None),
            "threshold": (threshold_text(row), row["threshold"] if row["reached"] else None),
            f"chosen on {on}": (chosen_text(row, places), row["chosen"]),
            **{SHARE_TITLES[name]: (share_text(row, name), row[name]) for name in names},
            **{KIND_TITLES[kind]: _kind_cell(row["unanswerable"].get(kind)) for kind in kinds},
            "calibration error of pairs": (calibration_error_text(row), row["calibration_error"]),
        }
        for row in rows
    ]


def calibration_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows as a Markdown table with their notes below it; empty without rows."""
    if not rows:
        return ""
    cells = threshold_cells(rows)
    notes = [f"- {markdown_cell(line)}\n" for line in calibration_notes(rows)]
    return _markdown(cells) + ("\n" + "".join(notes) if notes else "")


def calibration_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows for a terminal: a paragraph for each threshold, and the notes."""
    paragraphs = []
    for row, line in zip(rows, threshold_cells(rows), strict=True):
        dataset, model, wanted, confidence, threshold, *others = [
            (name, one_line(text)) for name, (text, _) in line.items()
        ]
        shown = [(name, text) for name, text in others if text != "-"]
        checked = ", counted on the questions that chose it" if row["checked_on"] == row["chosen_on"] else ""
        head = f"{dataset[1]}, {model[1]}, {wanted[1]}: threshold {threshold[1]} ({confidence[1]}){checked}\n"
        width = max((len(name) for name, _ in shown), default=0)
        paragraphs.append(head + "".join(f"  {name:<{width}}  {text}\n" for name, text in shown))
    return "\n".join(paragraphs) + "".join(f"\n- {one_line(line)}\n" for line in calibration_notes(rows))


def confidence_cells(rows: Sequence[Mapping[str, Any]]) -> Cells:
    """Return the cells of each row of `decision.confidence_rows`."""
    on = " or ".join(dict.fromkeys(str(row["chosen_on"]) for row in rows))
    return [
        {
            "data set": (row["dataset"], None),
            "model": (row["model"], None),
            "confidence": (row["confidence"] + (" (decides)" if row["decides"] else ""), None),
            f"AURC on {on}": (f"{row['area_chosen']:.4f}", row["area_chosen"]),
            "AURC": (f"{row['area']:.4f} ({row['low']:.4f} to {row['high']:.4f})", row["area"]),
        }
        for row in rows
    ]


def confidence_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows of `decision.confidence_rows` as a Markdown table; empty without rows."""
    return _markdown(confidence_cells(rows)) if rows else ""


def form_cells(rows: Sequence[Mapping[str, Any]]) -> Cells:
    """Return the cells of each row of `quantised.form_rows`."""
    return [
        {
            "data set": (row["dataset"], None),
            "model": (row["model"], None),
            "components": (f"{row['width']:,}", row["width"]),
            "type": (row["dtype"], None),
            "bytes": (f"{row['bytes']:,}", row["bytes"]),
            **{
                metric_title(name): ("–", None) if value is None or value != value else (f"{value:.4f}", value)
                for name, value in row["metrics"].items()
            },
            "precision": ("none" if row["precision"] is None else f"{row['precision']:.3f}", row["precision"]),
            "recall": (f"{row['recall']:.3f}", row["recall"]),
            "decisions changed": (f"{100 * row['changed']:.1f} %", row["changed"]),
        }
        for row in rows
    ]


def form_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows of `quantised.form_rows` as a Markdown table, with a note on its columns."""
    return f"{_markdown(form_cells(rows))}\n{form_note(rows)}\n"


def form_note(rows: Sequence[Mapping[str, Any]]) -> str:
    """Describe the bytes and the thresholds of the table of stored forms."""
    chosen = {(row["dataset"], row["model"]): f"{row['threshold']:.4f} ({row['chosen']})" for row in rows}
    thresholds = [f"{data}, {model}: {text}" for (data, model), text in chosen.items()]
    return (
        "Bytes are those of one document. Precision and recall of pairs, and the share of queries whose best document "
        f"is on the other side, are at the threshold of the scores in fp32: {'; '.join(thresholds)}."
    )


def _markdown(cells: Cells) -> str:
    return markdown_table([list(cells[0]), *([text for text, _ in line.values()] for line in cells)])


def _kind_cell(share: Mapping[str, Any] | None) -> tuple[str, float | None]:
    if share is None:
        return "-", None
    return proportion_text(share["part"], share["whole"], share["value"], share["low"], share["high"]), share["value"]


def proportion_text(part: int, whole: int, value: float, low: float, high: float) -> str:
    """Format a share with its interval, `1 of 30 = 0.033 (0.006 to 0.167)`."""
    return f"{part:,} of {whole:,} = {value:.3f} ({low:.3f} to {high:.3f})"


def calibration_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the notes of all rows, each with its data set, model and aim."""
    return [
        f"{row['dataset']}, {row['model']}, {aim_text(row['aim'], row['wanted'])}: {note}"
        for row in rows
        for note in row["notes"]
    ]


def threshold_text(row: Mapping[str, Any]) -> str:
    """Format the threshold of a row."""
    return f"{row['threshold']:.6g}" if row["reached"] else "out of reach"


def calibration_error_text(row: Mapping[str, Any]) -> str:
    """Format the calibration error of a row with its interval."""
    value, low, high = (row[f"calibration_error{bound}"] for bound in ("", "_low", "_high"))
    if value is None or value != value:
        return "-"
    return f"{value:.3f}" + ("" if low is None or high is None else f" ({low:.3f} to {high:.3f})")


def chosen_text(row: Mapping[str, Any], places: int) -> str:
    """Format the value of a row's aim on the choosing split with a number of decimal places."""
    value = row["chosen"]
    if value is None or value != value:
        return "-"
    return f"{value:.{places}f}" + ("" if row["reached"] else " at best")


def share_text(row: Mapping[str, Any], name: str) -> str:
    """Format a share with its interval, see `proportion_text`; a share of nothing is `none`."""
    if row[name] is None:
        return "none" if row["reached"] else "-"
    part, whole = (row[key] for key in SHARES[name])
    return proportion_text(part, whole, row[name], row[f"{name}_low"], row[f"{name}_high"])


def decision_points(
    rows: Sequence[Mapping[str, Any]], confidences: Sequence[Mapping[str, Any]], step: int, milliseconds: int
) -> list[Point]:
    """Return the figures of all rows as points for the tracker.

    They are named `calibration/MODEL/DATASET/top-precision-0.9/threshold` and `confidence/MODEL/DATASET/entropy/area`.
    A figure without a value has no point.
    """
    points = []
    for row in rows:
        name = f"calibration/{row['model']}/{row['dataset']}/{aim_text(row['aim'], row['wanted']).replace(' ', '-')}"
        kinds = row["unanswerable"]
        figures = {key: value for key, value in row.items() if key != "wanted"}
        figures |= {f"unanswerable_{kind}": share["value"] for kind, share in kinds.items()}
        points += [
            Point(f"{name}/{figure}", float(value), step, milliseconds)
            for figure, value in figures.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ]
    for row in confidences:
        name = f"confidence/{row['model']}/{row['dataset']}/{row['confidence']}"
        points += [Point(f"{name}/{figure}", row[figure], step, milliseconds) for figure in ("area", "low", "high")]
    return points
