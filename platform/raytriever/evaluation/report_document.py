"""Content of the report of an evaluation: its sections and their order, and all numbers by name.

Each section has text for the terminal, Markdown for `table.md`, and tables for `table.tex` and the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raytriever.core.terminal import markdown_cell, one_line, text_table
from raytriever.evaluation.dataset_evaluation import cost_table
from raytriever.evaluation.differences.system_significance import CORRECTED, marks_legend, pair_lines, pairs_with
from raytriever.evaluation.kept_passages import KEPT_ABOUT, KEPT_TITLES, kept_cells
from raytriever.evaluation.protocol import PAIR_TARGETS, metric_title, target_text
from raytriever.evaluation.result_tables import Cell, MetricTables, ReportTable, Rows, number_cell, printed
from raytriever.evaluation.results import About, AucRow, ConfidenceRow, Results, ThresholdRow, VariantRow
from raytriever.metrics.intervals import Proportion
from raytriever.retrieval.mining.bm25_analyzer import analyzer_line
from raytriever.tracking.tracker import Point, points_now

FRACTION_TITLES = {
    "coverage": "queries answered",
    "top_precision": "top answer relevant",
    "wrong": "wrong answers, of all",
    "pair_precision": "precision of pairs",
    "pair_recall": "recall of pairs",
}
KIND_TITLES = {
    "given": "without an answer, answered",
    "removed": "answer removed, answered",
    "foreign": "of another data set, answered",
}


@dataclass(frozen=True)
class ReportSection:
    """One section of a report."""

    text: str = ""  # lines for the terminal
    markdown: str = ""  # lines of `table.md`, ending with a line feed
    about: Sequence[str] = ()  # paragraphs at the top of the page
    tables: Sequence[ReportTable] = ()  # tables of the page
    latex: Sequence[ReportTable] = ()  # tables of `table.tex`


def document(results: Results) -> list[ReportSection]:
    """Return the sections of the report of an evaluation, in their order."""
    return [
        *_metrics(results),
        ReportSection(text="\n".join(pair_lines(results.pairs)), markdown=_lines(pair_lines(results.pairs, most=None))),
        _auc(results.auc),
        _plain(cost_table(results.costs)) if results.costs else ReportSection(),
        _thresholds(results.thresholds),
        _confidences(results.confidences),
        _variants(results.variants),
        ReportSection(text="\n".join(results.quarantined)),
        ReportSection(
            text="\n".join(f"MISSING: {line}" for line in results.missing),
            markdown=_lines(["Missing: " + "; ".join(results.missing)] if results.missing else []),
            about=results.missing,
        ),
    ]


def format_results(results: Results) -> str:
    """Format the results for a terminal: a table for each data set with significance marks, thresholds and notes."""
    return "\n".join(section.text for section in document(results) if section.text)


def _metrics(results: Results) -> list[ReportSection]:
    if not results.models:
        return []
    tables = MetricTables(results.models, results.pairs, results.baselines or list(results.models)[:1])
    texts, lines, about = [], "", []
    for dataset, facts in results.about.items():
        over = f", the mean over {len(facts.parts)} parts" if facts.parts else ""
        notes = notes_on(facts)
        texts += [f"\n{facts.split} split of {dataset}{over}", tables.of_dataset(dataset).as_text(), *notes]
        lines += "".join(f"\n{dataset}: {line}\n" for line in notes)
        evaluated = f"{facts.queries:,} queries of split {facts.split}, searched in all {facts.documents:,} documents."
        about.append(" ".join([f"{dataset}: {evaluated}", *notes]))
    paper = tables.in_print({name: facts.split for name, facts in results.about.items()})
    analyzers = _analyzers(results)
    legend = [f"{marks_legend(tables.baselines)}; paired t-test, {CORRECTED}"] if tables.marks else []
    return [
        ReportSection(
            text="\n".join(texts),
            markdown=printed(paper) + lines,
            about=[*about, *(f"{line}." for line in analyzers)],
            tables=tables.on_page(),
            latex=paper,
        ),
        ReportSection(text="\n".join([*_systems(results), *analyzers, *legend])),
    ]


def notes_on(about: About) -> list[str]:
    """Return lines about what distorts the metrics of a data set: absent documents, copies, and BM25's warnings."""
    notes = []
    if about.absent_relevant:
        alone = about.unanswerable_queries
        notes.append(
            f"{about.absent_relevant:,} of {about.relevant:,} relevant documents are not in the corpus. They count as "
            f"not found, as in trec_eval{f'; {alone:,} queries have no other and score 0' if alone else ''}."
        )
    if copies := [f"{model} {count:,}" for model, count in about.copies_above.items() if count]:
        notes.append(
            f"Queries, of {about.queries:,}, with a copy ranked above a relevant passage: {', '.join(copies)}. The "
            "copy counts as not relevant."
        )
    notes += [f"{model}: {line}." for model, lines in about.notes.items() for line in lines]
    return [*notes, *about.warnings]


def _analyzers(results: Results) -> list[str]:
    lines = {part: analyzer_line(row) for about in results.about.values() for part, row in about.bm25.items()}
    distinct = list(dict.fromkeys(lines.values()))
    return distinct if len(distinct) < 2 else [f"{part}: {line}" for part, line in lines.items()]


def _systems(results: Results) -> list[str]:
    """Describe how each dense model reads texts. Variants are left out, because their table shows their dimensions."""
    lines = []
    for name, system in results.systems.items() if len(results.systems) > 1 else ():
        if "dim" in system and "dtype" not in system:
            prompts = {side: system[f"{side}_prompt"] for side in ("query", "passage") if system[f"{side}_prompt"]}
            texts = "".join(f", {side} prompt {prompt!r}" for side, prompt in prompts.items())
            lines.append(f"{name}: dimension {system['dim']}, {system['similarity']}{texts}")
    return lines


def _auc(rows: Sequence[AucRow]) -> ReportSection:
    if not rows:
        return ReportSection()
    lines = []
    for row in rows:
        bounds = "" if row.low is None or row.high is None else f" (95 %: {row.low:.4f} to {row.high:.4f})"
        note = f". {row.note}" if row.note else ""
        lines.append(f"{row.dataset}, {row.model}: AUC {row.auc:.4f}{bounds}{note}")
    cells: Rows = [
        [
            row.dataset,
            row.model,
            *(number_cell(value) for value in (row.auc, row.low, row.high)),
            Cell(f"{row.misordered_queries:,}", float(row.misordered_queries)),
            row.note or "",
        ]
        for row in rows
    ]
    note = "95 % intervals of the AUC over the pairs of all queries. The scores of one query are one cluster."
    columns = ["data set", "model", "AUC", "from", "to", "misordered queries", "note"]
    return ReportSection(text="\n".join(lines), tables=[ReportTable("AUC", columns, cells, note)])


def _thresholds(rows: Sequence[ThresholdRow]) -> ReportSection:
    if not rows:
        return ReportSection()
    table, notes = thresholds_table(rows), threshold_notes(rows)
    on = _chosen_on(rows)
    about = (
        "A question is answered, with its best document, if its confidence reaches the threshold. A pair is taken as "
        f"relevant if its score reaches it. Each threshold was chosen on {on} for the wanted value and checked on "
        "the evaluated split. Queries answered: fraction of those with an answer in the corpus. Top answer relevant: "
        "fraction of the answers shown. Brackets contain Wilson's 95 % intervals; pairs of a query are alike, so they "
        f"count as fewer pairs. Calibration error: fractions of relevant pairs by score on {on}, as probabilities, are "
        "compared with the evaluated split; 0 is best. An interval from 0 means: the probabilities may be right."
    )
    about += KEPT_ABOUT if any(row.kept for row in rows) else ""
    return ReportSection(
        text="\n" + "\n".join(_paragraphs(rows, table)) + "".join(f"\n- {one_line(line)}\n" for line in notes),
        markdown=f"\nThresholds\n\n{thresholds_markdown(rows)}",
        tables=[ReportTable(table.title, table.columns, table.rows, " ".join([about, *notes]))],
    )


def thresholds_table(rows: Sequence[ThresholdRow]) -> ReportTable:
    """Return the table of thresholds.

    Columns about pairs, and about kinds of questions without an answer, appear only if a row has such a fraction."""
    pairs = any(row.target in PAIR_TARGETS for row in rows)
    names = [name for name in FRACTION_TITLES if pairs or not name.startswith("pair")]
    kinds = [kind for kind in KIND_TITLES if any(kind in row.unanswerable for row in rows)]
    keeps = any(row.kept for row in rows)
    columns = ["data set", "model", "wanted", "confidence", "threshold", f"chosen on {_chosen_on(rows)}"]
    columns += [*(FRACTION_TITLES[name] for name in names), *(KIND_TITLES[kind] for kind in kinds)]
    columns += KEPT_TITLES if keeps else []
    cells: Rows = [
        [
            row.dataset,
            row.model,
            target_text(row.target, row.wanted),
            row.confidence,
            Cell("out of reach") if row.threshold is None else Cell(f"{row.threshold:.6g}", row.threshold),
            _chosen(row),
            *(fraction_cell(row.fractions.get(name), "none" if name in row.fractions else "-") for name in names),
            *(fraction_cell(row.unanswerable.get(kind), "-") for kind in kinds),
            *(kept_cells(row.kept) if keeps else ()),
            _error(row),
        ]
        for row in rows
    ]
    return ReportTable("Thresholds", [*columns, "calibration error of pairs"], cells)


def thresholds_markdown(rows: Sequence[ThresholdRow]) -> str:
    """Return the table of thresholds in Markdown, with its notes below it."""
    notes = [f"- {markdown_cell(line)}\n" for line in threshold_notes(rows)]
    return thresholds_table(rows).as_markdown() + ("\n" + "".join(notes) if notes else "")


def threshold_notes(rows: Sequence[ThresholdRow]) -> list[str]:
    """Return the notes of all thresholds, each with its data set, model and target."""
    return [
        f"{row.dataset}, {row.model}, {target_text(row.target, row.wanted)}: {note}"
        for row in rows
        for note in row.notes
    ]


def _paragraphs(rows: Sequence[ThresholdRow], table: ReportTable) -> list[str]:
    """Return a paragraph for each threshold, because the table is too wide for a terminal."""
    paragraphs = []
    for row, cells in zip(rows, table.rows, strict=True):
        texts = [one_line(cell if isinstance(cell, str) else cell.text) for cell in cells]
        shown = [(name, text) for name, text in zip(table.columns[5:], texts[5:], strict=True) if text != "-"]
        dataset, model, wanted, confidence, threshold = texts[:5]
        checked = ", chosen and tested on the same questions" if row.checked_on == row.chosen_on else ""
        dim = max((len(one_line(name)) for name, _ in shown), default=0)
        head = f"{dataset}, {model}, {wanted}: threshold {threshold} ({confidence}){checked}\n"
        paragraphs.append(head + "".join(f"  {one_line(name):<{dim}}  {text}\n" for name, text in shown))
    return paragraphs


def _chosen_on(rows: Sequence[ThresholdRow] | Sequence[ConfidenceRow]) -> str:
    return " or ".join(dict.fromkeys(row.chosen_on for row in rows))


def _chosen(row: ThresholdRow) -> Cell:
    if row.chosen is None:
        return Cell("-")
    return Cell(f"{row.chosen:.3f}" + ("" if row.threshold is not None else " at best"), row.chosen)


def fraction_cell(ratio: Proportion | None, nothing: str) -> Cell:
    """Format a fraction with its interval, `1 of 30 = 0.033 (0.006 to 0.167)`. Without cases, return `nothing`."""
    if ratio is None or not ratio.total:
        return Cell(nothing)
    text = f"{ratio.count:,} of {ratio.total:,} = {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return Cell(text, ratio.value)


def _error(row: ThresholdRow) -> Cell:
    error = row.calibration_error
    if error.value is None:
        return Cell("-")
    bounds = "" if error.low is None or error.high is None else f" ({error.low:.3f} to {error.high:.3f})"
    return Cell(f"{error.value:.3f}{bounds}", error.value)


def _confidences(rows: Sequence[ConfidenceRow]) -> ReportSection:
    if not rows:
        return ReportSection()
    cells: Rows = [
        [
            row.dataset,
            row.model,
            row.confidence + (" (decides)" if row.decides else ""),
            Cell(f"{row.area_chosen:.4f}", row.area_chosen),
            Cell(f"{row.area:.4f} ({row.low:.4f} to {row.high:.4f})", row.area),
            number_cell(row.nauc),
        ]
        for row in rows
    ]
    note = (
        "Area under the risk-coverage curve: the mean fraction of wrong answers among those shown, over all "
        "thresholds; lower is better. Brackets contain 95 % intervals over resampled questions. nAUC: the gain of "
        "leaving unsure questions unanswered, divided by the gain of an oracle; higher is better."
    )
    columns = ["data set", "model", "confidence", f"AURC on {_chosen_on(rows)}", "AURC", "nAUC"]
    return _plain(ReportTable("Confidences", columns, cells, note))


def _variants(rows: Sequence[VariantRow]) -> ReportSection:
    if not rows:
        return ReportSection()
    metrics = list(rows[0].metrics)
    columns = ["data set", "model", "components", "type", "bytes", *map(metric_title, metrics)]
    cells: Rows = [
        [
            row.dataset,
            row.model,
            Cell(f"{row.dim:,}", row.dim),
            row.dtype,
            Cell(f"{row.bytes:,}", row.bytes),
            *(number_cell(row.metrics.get(name)) for name in metrics),
            Cell("none") if row.precision is None else Cell(f"{row.precision:.3f}", row.precision),
            Cell(f"{row.recall:.3f}", row.recall),
            Cell(f"{100 * row.changed:.1f} %", row.changed),
        ]
        for row in rows
    ]
    chosen = {(row.dataset, row.model): f"{row.threshold:.4f} ({row.chosen})" for row in rows}
    thresholds = [f"{dataset}, {model}: {text}" for (dataset, model), text in chosen.items()]
    note = (
        "Bytes are those of one document. Three columns use a threshold of the fp32 scores: precision and recall of "
        f"pairs, and the queries whose best document changes sides. Thresholds: {'; '.join(thresholds)}."
    )
    columns += ["precision", "recall", "decisions changed"]
    return _plain(ReportTable("Quantized and truncated embeddings", columns, cells, note), f"\n{note}\n")


def _plain(table: ReportTable, note: str = "") -> ReportSection:
    cells = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    text = f"\n{text_table([table.columns, *cells], left=0)}\n{note}"
    return ReportSection(text=text, markdown=f"\n{table.title}\n\n{table.as_markdown()}{note}", tables=[table])


def _lines(lines: Sequence[str]) -> str:
    return "\n" + "\n".join(lines) + "\n" if lines else ""


_Values = dict[str, float | None]  # name in the tracker and value; a missing value is None and is not logged


def points_of(results: Results) -> list[Point]:
    """Return all numbers of an evaluation by their names in the tracker.

    Metrics are `MODEL/DATASET/METRIC`. Others begin with their kind: `auc/MODEL/DATASET/low`,
    `calibration/MODEL/DATASET/top-precision-0.9/threshold`, `confidence/MODEL/DATASET/entropy/area`,
    `significance/MODEL-BASELINE/DATASET/METRIC_p` and `absent_relevant/DATASET`."""
    values: _Values = {}
    for model, sets in results.models.items():
        for dataset, metrics in sets.items():
            values |= _named(f"{model}/{dataset}", metrics)
    values |= _significance(results)
    for auc in results.auc:
        values |= _named(f"auc/{auc.model}/{auc.dataset}", {"low": auc.low, "high": auc.high})
    for row in results.thresholds:
        target = target_text(row.target, row.wanted).replace(" ", "-")
        values |= _named(f"calibration/{row.model}/{row.dataset}/{target}", _threshold(row))
    for area in results.confidences:
        name = f"confidence/{area.model}/{area.dataset}/{area.confidence}"
        values |= _named(name, {"area": area.area, "low": area.low, "high": area.high, "nauc": area.nauc})
    values |= {f"absent_relevant/{dataset}": float(about.absent_relevant) for dataset, about in results.about.items()}
    return points_now(values)  # all at step 0, which MLflow plots as bars


def _significance(results: Results) -> _Values:
    values: _Values = {}
    for row in [row for baseline in results.baselines for row in pairs_with(results.pairs, baseline)]:
        if row.dataset is None:
            continue
        name = f"{row.model}-{row.against}/{row.dataset}/{row.metric}"
        numbers = {"difference": row.difference, "low": row.low, "high": row.high, "p": row.p_holm}
        values |= {f"significance/{name}_{part}": value for part, value in numbers.items()}
    return values


def _threshold(row: ThresholdRow) -> _Values:
    error = row.calibration_error
    values: _Values = {"threshold": row.threshold, "chosen": row.chosen}
    fractions = {**row.fractions, **{f"unanswerable_{kind}": ratio for kind, ratio in row.unanswerable.items()}}
    if row.checked is not None:
        fractions["checked"] = row.checked
    for name, ratio in fractions.items():
        values |= _ratio(name, ratio)
    if kept := row.kept:
        values |= {"kept": kept.fraction, "kept_low": kept.low, "kept_high": kept.high, "passages": kept.passages}
    errors = {"": error.value, "_low": error.low, "_high": error.high}
    return values | {f"calibration_error{part}": value for part, value in errors.items()}


def _ratio(name: str, ratio: Proportion) -> _Values:
    counts: _Values = {f"{name}_count": ratio.count, f"{name}_total": ratio.total}
    bounds: _Values = {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    return counts | bounds if ratio.total else counts


def _named(prefix: str, values: _Values) -> _Values:
    return {f"{prefix}/{name}": value for name, value in values.items()}
