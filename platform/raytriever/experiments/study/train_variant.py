"""Training and evaluation of one variant of a study with one seed: an ordinary run directory, logged as a child run.

`metrics.json` is written last, after the tracker knows that the run is finished. So a variant with this file is not
trained again. An interrupted variant resumes from its newest checkpoint. Hard negatives and BM25 indexes are computed
only once for all variants with the same data.

On a cluster with GPUs, Ray processes that reserve GPUs train and evaluate a variant. Several variants may run at the
same time, on threads of this process. Without GPUs, a variant of one worker trains in this process: starting
a Ray Train group takes longer than training a small variant."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from raytriever.cluster.evaluate_on_cluster import evaluate_once
from raytriever.core.errors import ConfigError, setting
from raytriever.core.store.commit import remove
from raytriever.evaluation.report_document import points_of
from raytriever.evaluation.requested_models import EvaluatedModel, EvaluationJob
from raytriever.evaluation.results import EVALUATION, RESULTS, Results, check_output
from raytriever.evaluation.system_names import parse_system
from raytriever.experiments.run.open_run import find_negatives, folders_of, open_run, record_of, train_run
from raytriever.experiments.run.open_training import NegativesCache, training_facts
from raytriever.experiments.run.run_directory import CONFIG, METRICS, RunDirectory
from raytriever.experiments.run.start_run import pin_sources
from raytriever.experiments.study.study_file import AFTER, Variant, errors_within
from raytriever.models.model_settings import ModelConfig
from raytriever.tracking.spool import Spool
from raytriever.tracking.tracker import COMMAND, DatasetRecord, closing
from raytriever.training.run_config import Config, dump_config, override, to_dict

# Names of folders: of all variants, of an untrained encoder's run (instead of `seed-N`), and of a trained encoder.
VARIANTS, AS_IT_IS, MODEL = "variants", "as-it-is", "model"
# Folders that are deleted when a variant is finished.
TEMPORARY = ("checkpoints", "negatives")
Log = Callable[[str], None]


def variant_folder(output: Path, variant: Variant, seed: int | None) -> Path:
    """Return the run directory of a variant. An untrained variant has one directory for all seeds."""
    return output / VARIANTS / variant.name / (AS_IT_IS if variant.curriculum is None else f"seed-{seed}")


def is_finished(folder: Path) -> bool:
    """Return whether the run directory holds a trained and evaluated variant."""
    return (folder / METRICS).is_file() and (folder / EVALUATION / RESULTS).is_file()


def open_variant(output: Path, variant: Variant, seed: int) -> tuple[RunDirectory, Config | None]:
    """Return the run directory of a variant, and the settings of its training if there is one. Nothing is written."""
    folder, curriculum = variant_folder(output, variant, seed), variant.curriculum
    settings: dict[str, Any] = {"model": {"model": variant.model}}
    if curriculum is not None:
        curriculum = pin_sources(override(curriculum, {"training": {"seed": seed}}), folder, fresh=False)
        settings = to_dict(curriculum)
    try:
        run = RunDirectory.open(folder, settings, fresh=False)
        if (folder / EVALUATION / RESULTS).is_file():
            precision = Results.read(folder / EVALUATION).request["precision"]
            job = evaluation_of(variant, str(folder / MODEL) if curriculum else variant.model, precision)
            check_output(folder / EVALUATION, job.content(), fresh=False)
    except ConfigError as error:
        remedy = f"give another {setting('output')}, or remove {folder}"
        raise ConfigError(error.what, f"variant {folder.relative_to(output / VARIANTS).as_posix()}", remedy) from error
    return run, curriculum


class VariantRunner:
    """Runner of the variants of a study.

    Args:
        run_name: name of the study, which is the suffix of its variants' run names.
        record: record of the study's data at the tracker, for variants that are not trained.
        gpus: number of GPUs of each worker of a variant, 0 if the cluster has no GPU; see `gpus_each`.
    """

    def __init__(
        self, output: Path, run_name: str, tracker: Spool, record: DatasetRecord, log: Log, gpus: float
    ) -> None:
        self._output, self._run_name, self._tracker, self._record, self._log = output, run_name, tracker, record, log
        self._gpus = gpus
        self._preparation = threading.Lock()
        self._negatives = NegativesCache(lambda line: None)

    def run(self, variant: Variant, seed: int) -> None:
        """Train and evaluate a variant. Skip the training or evaluation if an earlier call has finished it.

        Threads prepare their variants one after another, because variants share negatives."""
        began, (run, curriculum) = time.monotonic(), open_variant(self._output, variant, seed)
        folder, name = run.path, run.path.relative_to(self._output / VARIANTS).as_posix()
        with errors_within(f"variant {name}"):
            results, facts = self._train_and_evaluate(variant, curriculum, run, name)
            run.finish(facts)
        seconds, (title, first) = time.monotonic() - began, next(iter(variant.datasets.items()))
        metrics = results.models[AFTER][first.name].items()
        values_text = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics if value is not None)
        self._log(f"{name}: {title} {values_text} in {seconds:.0f} s")
        for temporary in TEMPORARY:
            remove(folder / temporary)
        gc.collect()

    def _train_and_evaluate(
        self, variant: Variant, curriculum: Config | None, run: RunDirectory, name: str
    ) -> tuple[Results, dict[str, Any]]:
        if curriculum is None:
            run.begin(yaml.safe_dump({"model": {"model": variant.model}}))
            tracker = self._tracker.child(f"{name} of {self._run_name}", run.path)
            with closing(tracker):
                tracker.describe({"model": {"model": variant.model}}, self._record, _tags(run))
                return self._evaluate(variant, variant.model, run, tracker), {}
        with self._preparation:
            opened = open_run(curriculum, lambda line: None)
        run.begin(dump_config(curriculum), [training.loss for training in curriculum.trainings])
        tracker = self._tracker.child(f"{name} of {self._run_name}", run.path)
        with closing(tracker):
            tags = _tags(run) | {"config_hash": curriculum.hash}
            tracker.describe(opened.settings(), record_of(opened.dataset, curriculum), tags)
            if not (run.path / MODEL).is_dir():
                with self._preparation:
                    tables = find_negatives(opened, run.path, self._negatives)
                run_name, here = f"{name} of {self._run_name}", not self._gpus
                train_run(opened, tables, run.path, tracker, run_name, lambda line: None, here, self._gpus)
            facts = training_facts(folders_of(curriculum, run.path), curriculum.trainings[-1])
            return self._evaluate(variant, str(run.path / MODEL), run, tracker), facts

    def _evaluate(self, variant: Variant, model: str, run: RunDirectory, tracker: Spool) -> Results:
        precision = variant.curriculum.training.precision if variant.curriculum else None
        job = evaluation_of(variant, model, precision)
        results = evaluate_once(job, run.path / EVALUATION, lambda line: None, self._gpus)
        tracker.log(points_of(results))
        tracker.log_file(run.path / CONFIG)
        return results


def evaluation_of(variant: Variant, model: str, precision: str | None) -> EvaluationJob:
    """Return the evaluation of a variant on its data sets. `model` is the directory of a model, the name of an
    untrained encoder, or `bm25`."""
    queries, passages = variant.lengths or (None, None)
    config = ModelConfig(model=model, query_length=queries, passage_length=passages)
    models, datasets = [EvaluatedModel(AFTER, parse_system(model, config))], list(variant.datasets.values())
    return EvaluationJob(models=models, datasets=datasets, baselines=[AFTER], precision=precision)


def _tags(run: RunDirectory) -> dict[str, str]:
    return {"run_directory": str(run.path.resolve()), COMMAND: "study"}
