"""The files of an evaluation directory, as docs/evaluation.md names them, but for figures and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raytriever.retrieval.evaluation_calibration import calibration_table
from raytriever.retrieval.evaluation_results import RESULTS, Results, bm25_warnings
from raytriever.retrieval.evaluation_significance import best_of_rows, marks_of
from raytriever.retrieval.measured import MeasuredSet
from raytriever.retrieval.mteb_file import mteb_content
from raytriever.retrieval.paper_table import paper_tables
from raytriever.retrieval.paper_table_files import latex, markdown
from raytriever.retrieval.per_query_file import per_query_content
from raytriever.retrieval.protocol import Protocol, absent_line
from raytriever.retrieval.run_file import write_run
from raytriever.storage import disk_errors, write_atomically


def write_set(folder: Path, measured: MeasuredSet, protocol: Protocol, seconds: Mapping[str, float]) -> None:
    """Write what belongs to one data set: TREC runs, queries, pooled scores, MTEB's form.

    Args:
        folder: of the evaluation.
        measured: the data set.
        protocol: by which.
        seconds: each model took, encoding included.
    """
    name = measured.about.name
    for model in measured.parts[0].evaluations:
        for part in measured.parts:
            run = folder / "runs" / f"{model}.{measured.label(part)}.trec"
            write_run(run, part.evaluations[model], part.dataset, model)
        pools = measured.pools(model)
        scores = folder / "scores" / f"{name}.{model}.npz"
        with disk_errors(scores):
            scores.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(scores, **{name: values for name, values in vars(pools).items() if values is not None})
        write_atomically(
            folder / "mteb" / model / f"{name}.json", mteb_content(measured, model, protocol, seconds[model])
        )
    write_atomically(folder / "per_query" / f"{name}.json", per_query_content(measured, protocol))


def write_whole(folder: Path, results: Results, asked: Mapping[str, Any], split: str, baselines: Sequence[str]) -> None:
    """Write what is over all data sets: `results.json`, `table.md`, `table.tex`."""
    marks, best = marks_of(results.significance), best_of_rows(results.best)
    tables = paper_tables(results.models, marks, split, baselines, best)
    text = markdown(tables)
    for name, about in results.about.items():
        text += "".join(f"\n{name}: {line}\n" for line in [absent_line(about), *bm25_warnings(about)] if line)
    if results.calibration:
        text += f"\nThresholds\n\n{calibration_table(results.calibration)}"
    if results.missing:
        text += "\nMissing: " + "; ".join(results.missing) + "\n"
    write_atomically(folder / "table.md", text)
    write_atomically(folder / "table.tex", latex(tables))
    write_atomically(folder / RESULTS, results.content(asked))
