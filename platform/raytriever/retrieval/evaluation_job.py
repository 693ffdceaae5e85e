"""Measure models side by side on several data sets, and write an evaluation directory, whole or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.models.precision import choose_precision
from raytriever.negatives.bm25 import Bm25Index
from raytriever.retrieval.evaluate import Evaluation
from raytriever.retrieval.evaluated_models import EvaluatedModel
from raytriever.retrieval.evaluation_calibration import calibration_rows
from raytriever.retrieval.evaluation_encoders import Encoders
from raytriever.retrieval.evaluation_files import write_set, write_whole
from raytriever.retrieval.evaluation_request import EvaluationJob, Say, open_set
from raytriever.retrieval.evaluation_results import Results, check_output
from raytriever.retrieval.evaluation_sets import EvaluationSet, check_names
from raytriever.retrieval.evaluation_significance import best_models, best_rows, significance_points, significance_rows
from raytriever.retrieval.measured import MeasuredPart, MeasuredSet
from raytriever.retrieval.protocol import Protocol, absent_count, own_judgements
from raytriever.retrieval.systems import DenseSystem, Workers, evaluate_bm25
from raytriever.storage import check_writable, committed_directory
from raytriever.tracking.tracker import DatasetRecord, Point, Tracker, closing


def run_evaluation(
    job: EvaluationJob,
    output: Path,
    fresh: bool,
    tracker: Callable[[], Tracker],
    say: Say,
    workers: Workers | None = None,
    report: Callable[[Path], None] | None = None,
    hear: Callable[[str, str, Mapping[str, float]], None] | None = None,
) -> Results:
    """Evaluate; everything is opened and checked before the first text is encoded.

    Args:
        job: what is measured.
        output: the directory of the evaluation; results of the same command are replaced.
        fresh: whether those of another one are, too.
        tracker: opens the run that keeps the results.
        say: hears what is being done.
        workers: who encodes and searches.
        report: makes figures and a page of the directory, before it is committed.
        hear: hears a model, a data set and its metrics as soon as they are known.

    Raises:
        UserError: something a user can mend; see `errors`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = choose_precision(job.precision, device)
    asked = job.asked(precision)
    check_names(job.sets)
    check_output(output, asked, fresh)
    check_writable(output)
    opened = [open_set(one, job.splits(one), job.protocol, job.max_bad_rows) for one in job.sets]
    encoders = Encoders(job.models, precision, device)
    results = Results(missing=list(job.missing), systems=encoders.systems)
    values: dict[str, dict[str, dict[str, ndarray]]] = {model.name: {} for model in job.models}
    run = tracker()
    with closing(run):
        with committed_directory(output, {"kind": "evaluation"}, replace=True) as aside:
            for one, datasets in zip(job.sets, opened, strict=True):
                said = f"{sum(len(dataset.documents) for dataset in datasets):,} documents, split {one.split}"
                say(f"{one.name}: {said} ({precision} on {device})")
                if own := sum(own_judgements(dataset, one.split, job.protocol) for dataset in datasets):
                    found = f"{own} queries are judged relevant to the document with their own id, which is left out"
                    say(f"{one.name}: {found}; --no-drop-own-id keeps it, where ids look alike by chance")
                seconds: dict[str, float] = {}
                parts = [
                    _measure(job, one, name, dataset, encoders, workers or Workers(), seconds)
                    for name, dataset in zip(one.parts, datasets, strict=True)
                ]
                measured = MeasuredSet(one, parts)
                write_set(aside, measured, job.protocol, seconds)
                _take(results, measured, values, job.protocol)
                if hear is not None:
                    for model in job.models:
                        hear(model.name, one.name, results.models[model.name][one.name])
                results.calibration += calibration_rows(measured, job.calibration_split, job.aims)
                for part in parts:
                    left_out = part.dataset.quarantine.write(aside / measured.label(part))
                    if left_out.total and left_out.path:
                        told = replace(left_out, path=output / left_out.path.relative_to(aside))
                        results.quarantined.append(str(told))
                run.describe(asked, _record(measured), {"raytriever.stage": "evaluate"})
            results.significance = significance_rows(values, job.baselines)
            results.best = best_rows(best_models(results.models, values))
            write_whole(aside, results, asked, job.sets[0].split, job.baselines)
            if report is not None:
                report(aside)
        _log(run, results, output)
    return results


def _measure(
    job: EvaluationJob,
    one: EvaluationSet,
    name: str,
    dataset: RetrievalDataset,
    encoders: Encoders,
    workers: Workers,
    seconds: dict[str, float],
) -> MeasuredPart:
    part = MeasuredPart(name, dataset, {})
    for model in job.models:
        began = time.monotonic()
        measure = _system(model, dataset, encoders, workers)
        part.evaluations[model.name] = measure(one.split, job.protocol)
        if job.aims:
            part.choosing[model.name] = measure(job.calibration_split, replace(job.protocol, metrics=("auc",)))
        seconds[model.name] = seconds.get(model.name, 0.0) + time.monotonic() - began
    return part


def _system(
    model: EvaluatedModel, dataset: RetrievalDataset, encoders: Encoders, workers: Workers
) -> Callable[[str, Protocol], Evaluation]:
    if model.config is not None:
        return DenseSystem(dataset, model.config, encoders[model.name], workers).evaluate
    index = Bm25Index(dataset.passages())
    return lambda split, protocol: evaluate_bm25(dataset, split, index, protocol)


def _take(
    results: Results, measured: MeasuredSet, values: dict[str, dict[str, dict[str, ndarray]]], protocol: Protocol
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
    counts = [absent_count(part.dataset, about.split, protocol) for part in measured.parts]
    results.about[name] = {
        "queries": sum(len(part.evaluations[first].queries) for part in measured.parts),
        "documents": sum(len(part.dataset.documents) for part in measured.parts),
        "split": about.split,
        **{count: sum(one[count] for one in counts) for count in counts[0]},
        **({"parts": [measured.label(part) for part in measured.parts]} if about.is_divided else {}),
    }


def _record(measured: MeasuredSet) -> DatasetRecord:
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
        + [Point(f"absent_relevant/{one}", about["absent_relevant"], 0, now) for one, about in results.about.items()]
    )
    for child in sorted(folder.iterdir()):
        run.log_file(child)
