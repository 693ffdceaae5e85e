"""Directory of an evaluation, data set by data set: the one way in which measurements become results and files.

`evaluate`, the end of a training, the best trial of a sweep and a task of MTEB write it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.datasets import EvaluationDataset
from raytriever.evaluation.decision import ModelDecision, confidence_rows, threshold_rows
from raytriever.evaluation.differences.significance import pair_rows, pairs_with
from raytriever.evaluation.document import document
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.files import LATEX, mteb_content, write_measured_files
from raytriever.evaluation.measurements import DatasetMeasurement, PartMeasurement, auc_rows
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.protocol import Protocol, aim_text, select_judged_queries
from raytriever.evaluation.quantised import form_rows
from raytriever.evaluation.request import StoredForm
from raytriever.evaluation.results import AnalysisAbout, Results, ThresholdRow
from raytriever.evaluation.table import latex
from raytriever.metrics.intervals import Proportion
from raytriever.mining.analyser import Analysis
from raytriever.store.commit import committed_directory, write_atomically
from raytriever.tracking.tracker import Point, points_now


@dataclass
class EvaluationDirectory:
    """Directory of an evaluation that is being written.

    Args:
        results: gets the rows of each data set, and the tests of all at the end.
        chosen_on: split on which thresholds were to be chosen.
    """

    folder: Path
    results: Results
    chosen_on: str = "dev"
    forms: Sequence[StoredForm] = ()
    _values: dict[str, dict[str, dict[str, ndarray]]] = field(default_factory=dict)

    def add(
        self,
        measured: DatasetMeasurement,
        decisions: Sequence[ModelDecision] = (),
        bm25: Mapping[str, AnalysisAbout] | None = None,
        prompts: Mapping[str, str] | None = None,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Add the rows of a data set to the results, and write its files.

        Args:
            decisions: thresholds of each model.
            bm25, prompts: see `results.About`.
            seconds: time of each model, for `mteb/`, which is not written without it.
        """
        results, name = self.results, measured.source.name
        for model in measured.models:
            results.models.setdefault(model, {})[name] = measured.metrics(model)
            self._values.setdefault(model, {})[name] = measured.testable_values(model)
            for part in measured.parts if measured.source.is_divided else ():
                results.parts.setdefault(model, {})[measured.label(part)] = part.metrics(model)
        results.about[name] = measured.about(bm25 or {}, prompts or {})
        results.auc += auc_rows(measured)
        results.thresholds += threshold_rows(measured, decisions, self.chosen_on)
        results.confidences += confidence_rows(measured, decisions, self.chosen_on)
        results.forms += form_rows(measured, self.forms, results.systems, results.thresholds)
        write_measured_files(self.folder, measured)
        for model, took in (seconds or {}).items():
            content = mteb_content(measured, model, took)
            write_atomically(self.folder / "mteb" / model / f"{name}.json", content)

    def finish(self) -> None:
        """Test the differences between the models, and write `results.json`, `table.md` and `table.tex`."""
        self.results.pairs = pair_rows(self._values)
        sections = document(self.results)
        write_atomically(self.folder / "table.md", "".join(section.markdown for section in sections))
        tables = [table for section in sections for table in section.latex]
        write_atomically(self.folder / LATEX, latex(tables))
        self.results.write(self.folder)


def write_evaluation(
    folder: Path, dataset: RetrievalDataset, split: str, evaluations: Mapping[str, Evaluation], baseline: str
) -> Results:
    """Write the directory of an evaluation of systems that were measured one by one, BM25 among them.

    Args:
        evaluations: by the name of the system, with the default protocol.
        baseline: the system that the marks compare with.
    """
    name, judged = safe_name(dataset.name), select_judged_queries(dataset, split, Protocol())
    part = PartMeasurement(name, dataset, judged, dict(evaluations))
    measured = DatasetMeasurement(EvaluationDataset(name, {name: str(dataset.location)}, split), [part])
    bm25: dict[str, Any] = {name: Analysis.of(dataset.documents).content()}
    with committed_directory(folder, {"kind": "evaluation"}, replace=True) as target:
        directory = EvaluationDirectory(target, Results(baselines=[baseline]))
        directory.add(measured, bm25=bm25)
        directory.finish()
    return directory.results


_Values = dict[str, float | None]  # by the name in the tracker; a value that does not exist has no point


def points_of(results: Results) -> list[Point]:
    """Return all numbers of an evaluation by their names in the tracker.

    Metrics are `MODEL/DATASET/METRIC`. Others begin with their kind: `auc/MODEL/DATASET/low`,
    `calibration/MODEL/DATASET/top-precision-0.9/threshold`, `confidence/MODEL/DATASET/entropy/area`,
    `significance/MODEL-BASELINE/DATASET/METRIC_p` and `absent_relevant/DATASET`.
    """
    values: _Values = {}
    for model, sets in results.models.items():
        for dataset, metrics in sets.items():
            values |= _named(f"{model}/{dataset}", metrics)
    values |= _significance(results)
    for auc in results.auc:
        values |= _named(f"auc/{auc.model}/{auc.dataset}", {"low": auc.low, "high": auc.high})
    for row in results.thresholds:
        aim = aim_text(row.aim, row.wanted).replace(" ", "-")
        values |= _named(f"calibration/{row.model}/{row.dataset}/{aim}", _threshold(row))
    for area in results.confidences:
        name = f"confidence/{area.model}/{area.dataset}/{area.confidence}"
        values |= _named(name, {"area": area.area, "low": area.low, "high": area.high})
    values |= {f"absent_relevant/{dataset}": float(about.absent_relevant) for dataset, about in results.about.items()}
    return points_now(values)  # of step 0, which MLflow draws as bars


def points_of_training(results: Results) -> list[Point]:
    """Return the numbers of the evaluation of a training run, on one data set.

    Their names are without it: `after/METRIC`, `significance/after-before/METRIC_p` and `judged/absent_relevant`.
    """
    [about] = results.about.values()
    values = _significance(results, several=False)
    for model, sets in results.models.items():
        values |= _named(model, next(iter(sets.values())))
    counts = about.absent_relevant, about.relevant, about.unanswerable_queries
    names = ("absent_relevant", "relevant", "unanswerable_queries")
    return points_now(values | _named("judged", dict(zip(names, map(float, counts), strict=True))))


def _significance(results: Results, several: bool = True) -> _Values:
    values: _Values = {}
    for row in [row for baseline in results.baselines for row in pairs_with(results.pairs, baseline)]:
        if row.dataset is None:
            continue
        name = "/".join([f"{row.model}-{row.against}", *([row.dataset] if several else []), row.metric])
        numbers = {"difference": row.difference, "low": row.low, "high": row.high, "p": row.p_holm}
        values |= {f"significance/{name}_{part}": value for part, value in numbers.items()}
    return values


def _threshold(row: ThresholdRow) -> _Values:
    error = row.calibration_error
    values: _Values = {"threshold": row.threshold, "chosen": row.chosen}
    shares = {**row.shares, **{f"unanswerable_{kind}": share for kind, share in row.unanswerable.items()}}
    if row.checked is not None:
        shares["checked"] = row.checked
    for name, share in shares.items():
        values |= _share(name, share)
    return values | {
        "calibration_error": error.value,
        "calibration_error_low": error.low,
        "calibration_error_high": error.high,
    }


def _share(name: str, share: Proportion) -> _Values:
    counts: _Values = {f"{name}_part": share.part, f"{name}_whole": share.whole}
    return (
        {**counts, name: share.value, f"{name}_low": share.low, f"{name}_high": share.high} if share.whole else counts
    )


def _named(prefix: str, values: _Values) -> _Values:
    return {f"{prefix}/{name}": value for name, value in values.items()}
