"""An evaluation as its command prints it."""

from __future__ import annotations

from raytriever.negatives.analyser import analyser_line
from raytriever.retrieval.evaluation_auc import auc_lines
from raytriever.retrieval.evaluation_calibration import calibration_table
from raytriever.retrieval.evaluation_results import Results, bm25_warnings
from raytriever.retrieval.evaluation_significance import marks_of
from raytriever.retrieval.metric_words import metric_title
from raytriever.retrieval.protocol import absent_line
from raytriever.retrieval.table import metrics_table


def evaluation_text(results: Results) -> str:
    """A table for each data set, marks of significance in it, then thresholds and what is to be known of it all."""
    marks = marks_of(results.significance)
    blocks = []
    for dataset, about in results.about.items():
        rows = {model: found[dataset] for model, found in results.models.items()}
        titles = {name: metric_title(name) for found in rows.values() for name in found}
        here = {(model, metric): mark for (name, model, metric), mark in marks.items() if name == dataset}
        over = f", the mean over {len(about['parts'])} parts" if "parts" in about else ""
        table = metrics_table(rows, titles, here)
        lines = [f"\n{about['split']} split of {dataset}{over}", table, absent_line(about), *bm25_warnings(about)]
        blocks.append("\n".join(filter(None, lines)))
    notes = [_systems_note(results)] if len(results.systems) > 1 else []
    if any("analyser" in system for system in results.systems.values()):
        notes.append(analyser_line())
    if against := dict.fromkeys(row["against"] for row in results.significance):
        signs = [f"{pair} against {name}" for pair, name in zip(("+ -", "◆ ◇"), against, strict=False)]
        notes.append(f"{', '.join(signs)}: paired t-test, p < 0.05 after Holm's correction over the data sets")
    notes += auc_lines(results.auc_intervals)
    if results.calibration:
        notes.append(f"\n{calibration_table(results.calibration)}")
    notes += results.quarantined
    notes += [f"MISSING: {line}" for line in results.missing]
    return "\n".join([*blocks, *(f"{note}" for note in notes)])


def _systems_note(results: Results) -> str:
    """How each model reads texts; that widths differ matters to nobody's figures, as each is searched by itself."""
    told = []
    for name, system in results.systems.items():
        if "width" in system:
            prompts = "".join(
                f", {side} prefix {system[f'{side}_prefix']!r}"
                for side in ("query", "passage")
                if system[f"{side}_prefix"]
            )
            told.append(f"{name}: width {system['width']}, {system['similarity']}{prompts}")
    return "\n".join(told)
