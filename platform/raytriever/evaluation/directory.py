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
from raytriever.evaluation.differences.significance import pair_rows
from raytriever.evaluation.document import document
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.files import LATEX, write_measured_files, write_mteb_files
from raytriever.evaluation.measurements import DatasetMeasurement, PartMeasurement, auc_rows
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.protocol import Protocol, select_judged_queries
from raytriever.evaluation.quantised import form_rows
from raytriever.evaluation.request import StoredForm
from raytriever.evaluation.results import AnalysisAbout, Results
from raytriever.evaluation.table import latex
from raytriever.mining.analyser import Analysis
from raytriever.store.commit import committed_directory, write_atomically


@dataclass
class EvaluationDirectory:
    """Directory of an evaluation that is being written.

    Args:
        results: gets the rows of each data set, and the tests of all at the end.
        chosen_on: split on which thresholds were to be chosen.
    """

    folder: Path
    protocol: Protocol
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
        if seconds is not None:
            write_mteb_files(self.folder, measured, self.protocol, seconds)

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
        directory = EvaluationDirectory(target, Protocol(), Results(baselines=[baseline]))
        directory.add(measured, bm25=bm25)
        directory.finish()
    return directory.results
