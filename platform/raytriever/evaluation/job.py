"""Evaluation job: measure models side by side on several data sets, write the directory, and print the results.

The directory is written whole or not at all. Each measurement is kept at once (`measurements`): an interrupted
evaluation continues after the last one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.encoding.corpus import plan_embeddings
from raytriever.evaluation.datasets import EvaluationDataset, check_file_names, rename_duplicates
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.files import write_dataset_files, write_summary_files
from raytriever.evaluation.measurements import DatasetMeasurement, MeasurementStore, PartMeasurement
from raytriever.evaluation.pooled_scores import (
    auc_lines,
    auc_points,
    auc_rows,
    calibration_points,
    calibration_rows,
    calibration_table,
)
from raytriever.evaluation.protocol import Protocol, count_absent, count_own_judgements, format_absent, metric_title
from raytriever.evaluation.request import EvaluatedModel, EvaluationJob, open_parts
from raytriever.evaluation.results import Results, bm25_warnings, check_output
from raytriever.evaluation.significance import (
    best_models,
    best_rows,
    collect_marks,
    significance_points,
    significance_rows,
)
from raytriever.evaluation.systems import DenseSystem, Encoders, Workers, evaluate_bm25
from raytriever.evaluation.tables import metrics_table
from raytriever.mining.analyser import Analysis, analyser_line
from raytriever.mining.bm25 import Bm25Index
from raytriever.models.precision import choose_precision
from raytriever.storage import check_writable, committed_directory
from raytriever.tracking.tracker import STAGE, DatasetRecord, Point, Tracker, closing


def format_results(results: Results) -> str:
    """A table for each data set, marks of significance in it, then thresholds and what is to be known of it all."""
    marks = collect_marks(results.significance)
    blocks = []
    for dataset, about in results.about.items():
        rows = {model: found[dataset] for model, found in results.models.items()}
        titles = {name: metric_title(name) for found in rows.values() for name in found}
        here = {(model, metric): mark for (name, model, metric), mark in marks.items() if name == dataset}
        over = f", the mean over {len(about['parts'])} parts" if "parts" in about else ""
        table = metrics_table(rows, titles, here)
        lines = [f"\n{about['split']} split of {dataset}{over}", table, format_absent(about), *bm25_warnings(about)]
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


def run_evaluation(
    job: EvaluationJob,
    output: Path,
    fresh: bool,
    tracker: Callable[[], Tracker],
    log: Callable[[str], None],
    workers: Workers | None = None,
    report: Callable[[Path], None] | None = None,
    on_result: Callable[[str, str, Mapping[str, float]], None] | None = None,
) -> Results:
    """Evaluate; everything is opened and checked before the first text is encoded.

    Args:
        job: what is measured.
        output: the directory of the evaluation; results of the same command are replaced.
        fresh: whether those of another one are, too.
        tracker: opens the run that keeps the results.
        log: called with a line for each step of the work.
        workers: who encodes and searches.
        report: makes figures and a page of the directory, before it is committed.
        on_result: called with a model, a data set and its metrics as soon as they are measured.

    Raises:
        UserError: something a user can mend; see `errors`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = choose_precision(job.precision, device)
    job = replace(job, datasets=rename_duplicates(job.datasets))
    check_file_names([model.name for model in job.models], job.datasets)
    asked = job.asked(precision)
    check_output(output, asked, fresh)
    check_writable(output)
    opened = [open_parts(one, job.splits(one), job.protocol, job.max_bad_rows) for one in job.datasets]
    encoders = Encoders(job.models, precision, device)
    results = Results(missing=list(job.missing), systems=encoders.systems)
    values: dict[str, dict[str, dict[str, ndarray]]] = {model.name: {} for model in job.models}
    kept = MeasurementStore.of(output, log)
    run = tracker()
    with closing(run):
        with committed_directory(output, {"kind": "evaluation"}, replace=True) as aside:
            for one, datasets in zip(job.datasets, opened, strict=True):
                said = f"{sum(len(dataset.documents) for dataset in datasets):,} documents, split {one.split}"
                log(f"{one.name}: {said} ({precision} on {device})")
                if own := sum(count_own_judgements(dataset, one.split, job.protocol) for dataset in datasets):
                    found = f"{own} queries are judged relevant to the document with their own id, which is left out"
                    log(f"{one.name}: {found}; --no-drop-own-id keeps it, where ids look alike by chance")
                bm25 = _analyses(job, one, datasets)
                for label, analysis in bm25.items():
                    if analysis["warning"]:
                        log(f"{label}: {analysis['warning']}")
                seconds: dict[str, float] = {}
                parts = [
                    _measure(job, one, name, dataset, encoders, workers or Workers(), kept, seconds)
                    for name, dataset in zip(one.parts, datasets, strict=True)
                ]
                measured = DatasetMeasurement(one, parts)
                write_dataset_files(aside, measured, job.protocol, seconds)
                _take(results, measured, values, job.protocol)
                if bm25:
                    results.about[one.name]["bm25"] = bm25
                if on_result is not None:
                    for model in job.models:
                        on_result(model.name, one.name, results.models[model.name][one.name])
                results.auc_intervals += auc_rows(measured)
                results.calibration += calibration_rows(measured, job.calibration_split, job.aims)
                for part in parts:
                    left_out = part.dataset.quarantine.write(aside / measured.label(part))
                    if left_out.total and left_out.path:
                        told = replace(left_out, path=output / left_out.path.relative_to(aside))
                        results.quarantined.append(str(told))
                run.describe(_used(asked, encoders, device), _record(measured), {STAGE: "evaluate"})
            results.significance = significance_rows(values, job.baselines)
            results.best = best_rows(best_models(results.models, values))
            write_summary_files(aside, results, asked, job.datasets[0].split, job.baselines)
            if report is not None:
                report(aside)
        kept.remove()
        _log(run, results, output)
    return results


def _measure(
    job: EvaluationJob,
    one: EvaluationDataset,
    name: str,
    dataset: RetrievalDataset,
    encoders: Encoders,
    workers: Workers,
    kept: MeasurementStore,
    seconds: dict[str, float],
) -> PartMeasurement:
    """Measure all models on a part of a data set; what an earlier call measured is not measured again."""
    part = PartMeasurement(name, dataset, {})
    label = one.label(name)
    choosing = replace(job.protocol, metrics=("auc",))
    for model in job.models:
        system = _System(model, dataset, encoders, workers)

        def measured(
            split: str, protocol: Protocol, model: EvaluatedModel = model, system: _System = system
        ) -> Evaluation:
            evaluation, took = kept.get(
                model.name, label, split, system.key(split, protocol), partial(_timed, system, split, protocol)
            )
            seconds[model.name] = seconds.get(model.name, 0.0) + took
            return evaluation

        part.evaluations[model.name] = measured(one.split, job.protocol)
        if job.aims:
            part.choosing[model.name] = measured(job.calibration_split, choosing)
    return part


def _analyses(job: EvaluationJob, one: EvaluationDataset, datasets: Sequence[RetrievalDataset]) -> dict[str, Any]:
    """What BM25's analyser makes of each part, where BM25 is measured."""
    if all(model.config is not None for model in job.models):
        return {}
    labels = [f"{one.name}-{part}" if one.is_divided else one.name for part in one.parts]
    return {label: Analysis.of(dataset.passages()).content() for label, dataset in zip(labels, datasets, strict=True)}


def _timed(system: _System, split: str, protocol: Protocol) -> tuple[Evaluation, float]:
    began = time.monotonic()
    return system.evaluate(split, protocol), time.monotonic() - began


@dataclass(frozen=True)
class _System:
    """One model on one data set; its corpus is encoded or indexed when it is first asked."""

    model: EvaluatedModel
    dataset: RetrievalDataset
    encoders: Encoders
    workers: Workers

    def key(self, split: str, protocol: Protocol) -> dict[str, Any]:
        """Return all that decides the figures."""
        name, config = self.model.name, self.model.config
        plan = config and plan_embeddings(config, self.encoders[name], self.dataset, "passage", "fp32").key
        return {
            "system": self.encoders.systems[name],
            "device": self.encoders.device_type,
            "embeddings": plan,
            "dataset": [self.dataset.digest, self.dataset.place],
            "split": split,
            "protocol": asdict(protocol),
        }

    def evaluate(self, split: str, protocol: Protocol) -> Evaluation:
        """Measure the model on a split."""
        return self._evaluate(split, protocol)

    @cached_property
    def _evaluate(self) -> Callable[[str, Protocol], Evaluation]:
        if self.model.config is not None:
            return DenseSystem(self.dataset, self.model.config, self.encoders[self.model.name], self.workers).evaluate
        index = Bm25Index(self.dataset.passages())
        return lambda split, protocol: evaluate_bm25(self.dataset, split, index, protocol)


def _take(
    results: Results, measured: DatasetMeasurement, values: dict[str, dict[str, dict[str, ndarray]]], protocol: Protocol
) -> None:
    """What stays of a data set when its files are written."""
    about, name = measured.about, measured.about.name
    for model in measured.parts[0].evaluations:
        results.models.setdefault(model, {})[name] = measured.metrics(model)
        values[model][name] = measured.tested(model)
        if about.is_divided:
            for part in measured.parts:
                results.parts.setdefault(model, {})[measured.label(part)] = part.evaluations[model].metrics
    first = next(iter(measured.parts[0].evaluations))
    counts = [count_absent(part.dataset, about.split, protocol) for part in measured.parts]
    results.about[name] = {
        "queries": sum(len(part.evaluations[first].queries) for part in measured.parts),
        "documents": sum(len(part.dataset.documents) for part in measured.parts),
        "split": about.split,
        **{count: sum(one[count] for one in counts) for count in counts[0]},
        **({"parts": [measured.label(part) for part in measured.parts]} if about.is_divided else {}),
    }


def _used(asked: Mapping[str, Any], encoders: Encoders, device: torch.device) -> dict[str, Any]:
    """Return what was asked, each encoder with the settings that are used, for the tracker."""
    models = {
        name: {setting: value for setting, value in (given | encoders.systems[name]).items() if value is not None}
        if isinstance(given, dict)
        else given
        for name, given in asked["models"].items()
    }
    return {**asked, "models": models, "device": device.type}


def _record(measured: DatasetMeasurement) -> DatasetRecord:
    counts: dict[str, int] = {}
    for part in measured.parts:
        for name, count in part.dataset.counts().items():
            counts[name] = counts.get(name, 0) + count
    first = measured.parts[0].dataset
    return DatasetRecord(measured.about.name, next(iter(measured.about.parts.values())), first.digest, counts)


def _log(run: Tracker, results: Results, folder: Path) -> None:
    now = time.time_ns() // 1_000_000
    run.log(
        [
            Point(f"{model}/{dataset}/{name}", value, 0, now)
            for model, rows in results.models.items()
            for dataset, metrics in rows.items()
            for name, value in metrics.items()
        ]
        + significance_points(results.significance, 0, now)
        + auc_points(results.auc_intervals, 0, now)
        + calibration_points(results.calibration, 0, now)
        + [Point(f"absent_relevant/{one}", about["absent_relevant"], 0, now) for one, about in results.about.items()]
    )
    for child in sorted(folder.iterdir()):
        run.log_file(child)
