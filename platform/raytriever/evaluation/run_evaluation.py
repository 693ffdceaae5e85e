"""Evaluation job: evaluate models on several data sets and write the evaluation directory.

The directory is committed as a whole. Until then each result is stored as soon as it is complete
(`dataset_evaluation`), and a long search stores its partial ranking. So an interrupted evaluation continues where it
stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy import ndarray

from raytriever.core.errors import flag_of
from raytriever.core.store.commit import committed_directory, remove, write_atomically
from raytriever.core.store.disk import check_writable
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.answer_decisions import ModelDecision, confidence_rows, decide_dataset, threshold_rows
from raytriever.evaluation.calibrate_system import Calibrated, check_apart, save_calibrations, write_calibrations
from raytriever.evaluation.composed.fusion_and_reranking import notes_of
from raytriever.evaluation.composed.open_systems import SystemOpener
from raytriever.evaluation.dataset_evaluation import (
    UNFINISHED,
    DatasetEvaluation,
    EvaluationStore,
    PartEvaluation,
    auc_rows,
    cost_rows,
)
from raytriever.evaluation.differences.system_significance import pair_rows
from raytriever.evaluation.evaluate_split import Evaluation, PreparedSystem, evaluate
from raytriever.evaluation.evaluated_datasets import EvaluationDataset, rename_duplicates
from raytriever.evaluation.evaluation_files import LATEX, write_evaluated_files
from raytriever.evaluation.protocol import AUC, JudgedQueries, Protocol
from raytriever.evaluation.quantized_variants import QuantizedSystem, check_samples, variant_rows
from raytriever.evaluation.report_document import document, points_of
from raytriever.evaluation.requested_models import (
    EvaluatedModel,
    EvaluationJob,
    OpenPart,
    add_foreign_questions,
    check_enough_questions,
    open_parts,
)
from raytriever.evaluation.result_tables import latex
from raytriever.evaluation.results import Results, as_read, check_output
from raytriever.evaluation.system_names import Bm25, encoders_of, has_weight, nodes_of
from raytriever.evaluation.systems import DenseSystem, Encoders, RetrievalBackend
from raytriever.models.device_and_precision import choose_precision, default_device
from raytriever.models.prompts import SIDES
from raytriever.retrieval.mining.bm25_analyzer import Analysis
from raytriever.tracking.tracker import COMMAND, DatasetRecord, Tracker, closing

_SAME_QUERIES = "weight and thresholds are chosen on the same queries, so a promised fraction is not exact"


def run_evaluation(
    job: EvaluationJob,
    output: Path,
    fresh: bool,
    tracker: Callable[[], Tracker],
    log: Callable[[str], None],
    backend: RetrievalBackend | None = None,
    write_page: Callable[[Path], None] | None = None,
    on_result: Callable[[str, str, Mapping[str, float]], None] = lambda model, dataset, metrics: None,
) -> Results:
    """Run an evaluation. All data sets and models are opened and checked before the first text is encoded.

    Args:
        output: directory of the evaluation. Results of the same command there are replaced.
        fresh: whether to replace results of another command as well.
        backend: functions that encode and search; by default they run in this process.
        write_page: function that writes plots and a page from the directory before it is committed.
        on_result: function that gets each model, data set and metrics as soon as they are computed.
    """
    device = default_device()
    precision = choose_precision(job.precision, device)
    job = replace(job, datasets=rename_duplicates(job.datasets), precision=precision)
    results = Results(missing=list(job.missing), baselines=list(job.baselines), request=as_read(job.content()))
    check_output(output, results.request, fresh)
    check_writable(output)
    opened = open_job(job, log)
    encoders = Encoders(job.models, precision, device, log, backend=backend)
    results.systems = encoders.systems
    store = EvaluationStore(output.with_name(output.name + UNFINISHED), log)
    run = tracker()
    with closing(run):
        with committed_directory(output, {"kind": "evaluation"}, replace=True) as folder:
            directory = EvaluationDirectory(folder, results, job.calibration_split, job.models)
            calibrations: list[Calibrated] = []
            for evaluated in _evaluate_datasets(job, opened, encoders, store):
                decisions = decide_dataset(evaluated, job.targets, job.confidence, job.removed)
                calibrations += write_calibrations(folder, evaluated, decisions, job, log)
                directory.add(evaluated, decisions)
                results.quarantined += _write_quarantine(evaluated, folder, output)
                for model in evaluated.models:
                    metrics = {name: value for name, value in evaluated.metrics(model).items() if value is not None}
                    on_result(model, evaluated.source.name, metrics)
                run.describe(_settings(results, device.type), _record(evaluated), {COMMAND: "evaluate"})
            directory.finish()
            if write_page is not None:
                write_page(folder)
            # Save calibrations before the commit: a command that is repeated after the commit would not save them.
            save_calibrations(calibrations, output, log)
        remove(store.folder)
        run.log(points_of(results))
        for child in sorted(output.iterdir()):
            run.log_file(child)
    return results


@dataclass
class EvaluationDirectory:
    """Evaluation directory that is being written. It converts measurements to results and files.

    `run_evaluation` and MTEB's tasks use it."""

    folder: Path
    results: Results  # `add` appends the rows of a data set to it, and `finish` adds the tests
    chosen_on: str = "dev"  # split on which thresholds are chosen
    models: Sequence[EvaluatedModel] = ()  # systems whose costs are listed, with the variants of their embeddings
    _values: dict[str, dict[str, dict[str, ndarray]]] = field(default_factory=dict)

    def add(self, evaluated: DatasetEvaluation, decisions: Sequence[ModelDecision] = ()) -> None:
        """Add the rows of a data set with the thresholds of each model to the results, and write its files."""
        results, name = self.results, evaluated.source.name
        for model in evaluated.models:
            results.models.setdefault(model, {})[name] = evaluated.metrics(model)
            self._values.setdefault(model, {})[name] = evaluated.testable_values(model)
            for part in evaluated.parts if evaluated.source.is_divided else ():
                results.parts.setdefault(model, {})[evaluated.label(part)] = part.metrics(model)
        results.about[name] = evaluated.about()
        results.auc += auc_rows(evaluated)
        if decisions:
            results.thresholds += threshold_rows(evaluated, decisions, self.chosen_on)
            results.confidences += confidence_rows(evaluated, decisions, self.chosen_on)
        variants = [model.variant for model in self.models if model.variant]
        results.variants += variant_rows(evaluated, variants, results.systems, results.thresholds)
        results.costs += cost_rows(name, evaluated.parts, self.models)
        write_evaluated_files(self.folder, evaluated)

    def finish(self) -> None:
        """Test the differences between the models, and write `results.json`, `table.md` and `table.tex`."""
        self.results.pairs = pair_rows(self._values)
        sections = document(self.results)
        write_atomically(self.folder / "table.md", "".join(section.markdown for section in sections))
        tables = [table for section in sections for table in section.latex]
        write_atomically(self.folder / LATEX, latex(tables))
        self.results.write(self.folder)


def open_job(job: EvaluationJob, log: Callable[[str], None]) -> list[tuple[EvaluationDataset, list[OpenPart]]]:
    """Open and check all data sets, and add the requested questions without an answer.

    Raises:
        DataError: a split is missing or broken, or thresholds cannot be chosen on one split and tested on the other.
    """
    opened = [(source, open_parts(source, job.splits(source))) for source in job.datasets]
    for source, parts in opened:
        for part in parts if len(job.splits(source)) > 1 else ():
            check_apart(part.dataset, job.calibration_split, source.split)
    for source, parts in opened:
        parts[:] = [add_foreign_questions(part, job.foreign, source.max_bad_rows, log) for part in parts]
        check_enough_questions(parts, source, job)
    if job.variants:
        check_samples(job.variants, [part.dataset for _, parts in opened for part in parts])
    return opened


def _evaluate_datasets(
    job: EvaluationJob,
    opened: Sequence[tuple[EvaluationDataset, list[OpenPart]]],
    encoders: Encoders,
    store: EvaluationStore,
) -> Iterator[DatasetEvaluation]:
    """Evaluate all models on each data set, and yield its measurement."""
    prompts = _dataset_prompts(job, encoders)
    asks_bm25 = any(isinstance(node, Bm25) for model in job.models for node in nodes_of(model.system))
    for source, parts in opened:
        analyzed = {source.label(part.name): part.dataset.documents for part in parts if asks_bm25}
        bm25: dict[str, Any] = {label: Analysis.of(documents).content() for label, documents in analyzed.items()}
        evaluated = DatasetEvaluation(source, [], bm25, prompts[source.name])
        _log_dataset(evaluated, parts, f"{job.precision} on {encoders.device_type}", store.log)
        evaluated.parts.extend(_evaluate_part(job, encoders, store, evaluated, part) for part in parts)
        yield evaluated


def _evaluate_part(
    job: EvaluationJob, encoders: Encoders, store: EvaluationStore, evaluated: DatasetEvaluation, opened: OpenPart
) -> PartEvaluation:
    """Evaluate all models on a part of a data set, or read the results that an earlier command stored."""
    source, judged, chosen_on = evaluated.source, opened.judged, job.calibration_split
    part = PartEvaluation(opened.name, opened.dataset, judged[source.split], {}, {}, judged.get(chosen_on))
    for model, system in _systems(job, encoders, source, opened):
        key = {
            "device": encoders.device_type,
            "system": [encoders.systems[model.name], system.digest],
            # Use the digests of the encoders themselves: the name of a function does not identify what it computes.
            "encoders": [encoders[node].digest(node, side) for node in encoders_of(model.system) for side in SIDES],
            "dataset": [part.dataset.digest, part.dataset.location],
        }
        is_calibrated = bool(job.targets) and model.name in (job.calibrated or [model.name])
        notes = [_SAME_QUERIES] if is_calibrated and has_weight(model.system) else []
        protocols, evaluations = {source.split: source.protocol}, {}
        if is_calibrated:
            protocols.setdefault(chosen_on, replace(source.protocol, metrics=(AUC,)))
        for split, protocol in protocols.items():
            run_system = partial(_evaluate, system, part.dataset, split, protocol, judged[split])
            whole_key = {**key, "split": split, "protocol": asdict(protocol)}
            found = store.get(model.name, source.label(opened.name), split, whole_key, run_system)
            evaluations[split] = replace(found, notes=[*found.notes, *notes])
        part.evaluations[model.name] = evaluations[source.split]
        if is_calibrated:
            part.calibration[model.name] = evaluations[chosen_on]
            evaluated.digests[model.name] = system.digest
    return part


def _systems(
    job: EvaluationJob, encoders: Encoders, source: EvaluationDataset, opened: OpenPart
) -> Iterator[tuple[EvaluatedModel, PreparedSystem]]:
    """Yield each model with its system on a part of a data set. A variant shares the embeddings of its model."""
    chosen_on = job.calibration_split
    opener = SystemOpener(
        opened.dataset,
        encoders,
        lambda encoder: encoder.prompts_of(*source.prompt_names(opened.name)),
        (chosen_on, opened.judged[chosen_on]) if job.chooses_weights else None,
        source.protocol,
    )
    dense: dict[str, DenseSystem] = {}
    for model in job.models:
        if model.variant is not None:
            yield model, QuantizedSystem(dense[model.variant.model], model.variant)
            continue
        system = opener.open(model.system)
        if isinstance(system, DenseSystem):
            dense[model.name] = system
        yield model, system


def _evaluate(
    system: PreparedSystem, dataset: RetrievalDataset, split: str, protocol: Protocol, judged: JudgedQueries
) -> Evaluation:
    """Evaluate a system. The search time excludes the preparation of the documents."""
    if isinstance(system, QuantizedSystem):
        system.kept = protocol.kept_of(judged.relevance)
    system.prepare()
    evaluation = evaluate(dataset, split, system, protocol, judged)
    return replace(evaluation, notes=[*notes_of(system), *evaluation.notes])


def _dataset_prompts(job: EvaluationJob, encoders: Encoders) -> dict[str, dict[str, str]]:
    names = {dataset.name: [dataset.prompt_names(part) for part in dataset.parts] for dataset in job.datasets}
    lines: dict[str, dict[str, str]] = {name: {} for name in names}
    for model in job.models:
        if model.variant is not None:
            continue
        for name, parts in names.items():
            found = (encoders[config].prompts_of(*part) for config in encoders_of(model.system) for part in parts)
            prompts = dict.fromkeys(found)
            if any(prompt.query_name or prompt.passage_name for prompt in prompts):
                lines[name][model.name] = "; ".join(map(str, prompts))
    return lines


def _log_dataset(
    evaluated: DatasetEvaluation, parts: Sequence[OpenPart], arithmetic: str, log: Callable[[str], None]
) -> None:
    source, documents = evaluated.source, sum(len(part.dataset.documents) for part in parts)
    log(f"{source.name}: {documents:,} documents, split {source.split} ({arithmetic})")
    if own := sum(part.judged[source.split].count_own() for part in parts):
        line = f"{own} queries have a relevant document with the id of the query; this document is left out"
        log(f"{source.name}: {line}; {flag_of('drop_own_id', False)} keeps it, if ids are equal by chance")
    for label, analysis in evaluated.bm25.items():
        if analysis["warning"]:
            log(f"{label}: {analysis['warning']}")
    for model, chosen in evaluated.prompts.items():
        log(f"{source.name}: {model}: {chosen}")


def _write_quarantine(evaluated: DatasetEvaluation, folder: Path, output: Path) -> list[str]:
    """Write the bad rows of each part into the unfinished directory. Return a line about each file with its path."""
    lines = []
    for part in evaluated.parts:
        left_out = part.dataset.quarantine.write(folder / evaluated.label(part))
        if left_out.total and left_out.path:
            lines.append(str(replace(left_out, path=output / left_out.path.relative_to(folder))))
    return lines


def _settings(results: Results, device: str) -> dict[str, Any]:
    models = dict(results.request["models"])
    for name, options in models.items():
        if isinstance(options, dict):
            models[name] = {k: value for k, value in (options | results.systems[name]).items() if value is not None}
    return {**results.request, "models": models, "device": device}


def _record(evaluated: DatasetEvaluation) -> DatasetRecord:
    counts = Counter[str]()
    for part in evaluated.parts:
        counts.update(part.dataset.counts())
    first = evaluated.parts[0].dataset
    return DatasetRecord(evaluated.source.name, next(iter(evaluated.source.parts.values())), first.digest, counts)
