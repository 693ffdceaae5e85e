"""Run: a data set for evaluation, and one or several trainings in sequence.

A run without stages is one training, with one directory and one tracked run. A stage of a curriculum is an ordinary
training with the run directory `stages/1-NAME/` and a child run. It starts from the model of the stage before it, and
is not trained again if it is finished. All stages are opened first, so that an error in the last one is found before
the first one trains."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from raytriever.cluster.ingest import choose_runner
from raytriever.cluster.ray_session import ray_session
from raytriever.cluster.train.trainer import train_on_cluster
from raytriever.core.errors import DataError
from raytriever.core.store.commit import MANIFEST, committed_directory
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.prepare.open_dataset import lent_dev_line, open_dataset
from raytriever.data.pydocs import PYDOCS
from raytriever.data.sampling.training_examples import check_positives
from raytriever.data.split_overlap import check_overlap, overlaps
from raytriever.experiments.run.event_recorder import Recorder
from raytriever.experiments.run.open_training import (
    MODEL,
    Log,
    NegativesCache,
    OpenTraining,
    open_training,
    resolved_config,
    training_facts,
)
from raytriever.experiments.run.run_directory import CONFIG, METRICS, RunDirectory
from raytriever.losses.build_loss import build_loss
from raytriever.losses.nested_embeddings import check_dims
from raytriever.models.description import used_settings
from raytriever.models.device_and_precision import choose_precision
from raytriever.models.prompts import SIDES, Prompts, merge_prompts
from raytriever.models.retriever import Retriever
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.tracking.spool import Spool
from raytriever.tracking.tracker import COMMAND, DatasetRecord, Tracker, closing, git_commit
from raytriever.training.guide_encoder import Guide
from raytriever.training.run_config import STAGES, Config, dump_config, errors_of, to_dict


@dataclass(frozen=True)
class OpenRun:
    """Run whose settings, data and model have been checked."""

    config: Config
    dataset: RetrievalDataset  # data set for the evaluation, with its test split
    trainings: tuple[OpenTraining, ...]
    encoder: str  # one-line description of how the encoder reads texts
    weights: int  # bytes of the encoder's weights in float32

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings for the tracker, including values from the model and the machine."""
        used: dict[str, Any] = resolved_config(self.config, self.trainings[0].description)
        if self.config.stages:
            used[STAGES] = [
                settings | {"model": used_settings(stage.model, training.description)}
                for settings, stage, training in zip(
                    to_dict(self.config)[STAGES], self.config.stages, self.trainings, strict=True
                )
            ]
        return used


def open_run(config: Config, log: Log) -> OpenRun:
    """Open and check the data and the encoder of a run. No weights are read, except those of a guide."""
    for training in config.trainings:
        with errors_of(training):
            build_loss(training.loss)  # only for its checks
    if PYDOCS in {config.data.dataset, *(name for training in config.trainings for name in training.data.datasets)}:
        log(f"{PYDOCS}: docstrings of Python's standard library, which are read once for each version of Python")
    cpu = torch.device("cpu")  # leave the memory of the GPU to the processes that evaluate and train
    precision = choose_precision(config.training.precision, cpu)
    retriever = load_for_encoding(config.model, precision, cpu, weights=False)
    for training in config.trainings:
        with errors_of(training):
            check_dims(training.loss.dims, retriever.dim)
            if training.loss.guide:
                Guide.load(training.loss.guide, precision, cpu).check()
    opened = [_open_evaluated(config, retriever, log)] if config.stages else []
    trainings = []
    for training in config.trainings:
        with errors_of(training):
            trainings.append(open_training(training, config, retriever, log))
    opened += [dataset for training in trainings for dataset in training.data.datasets]
    evaluated = opened[0]
    check_positives(evaluated.positives(config.data.test_split), evaluated, config.data.test_split)
    for opened_training in trainings:
        with errors_of(opened_training.config):
            _check_overlaps(opened_training, evaluated, config, log)
    trainings = _with_prompts(trainings, evaluated.name, retriever, log)
    lines = [line for dataset in opened if (line := lent_dev_line(dataset))]
    lines += [f"{dataset.name}: " + ", ".join(f"{k} {n:,}" for k, n in dataset.counts().items()) for dataset in opened]
    for line in dict.fromkeys(lines):
        log(line)
    weights = 4 * sum(parameter.numel() for parameter in retriever.parameters())
    return OpenRun(config, evaluated, tuple(trainings), retriever.summary(), weights)


def _with_prompts(trainings: list[OpenTraining], evaluated: str, retriever: Retriever, log: Log) -> list[OpenTraining]:
    """Check and log the prompts of a run's data sets. Return the trainings with the prompts to store."""
    names = [
        [*(dataset.name for dataset in training.data.datasets), *(dev.name for dev in training.dev_sets), evaluated]
        for training in trainings
    ]
    lines, checked = [], []
    for training, datasets in zip(trainings, names, strict=True):
        with errors_of(training.config):
            training.prompts.check([name for datasets in names for name in datasets], every=True)
            lines += [line for name in datasets if (line := _check_prompts(training.prompts.of(name), name, retriever))]
            lines += [line for dataset in training.data.datasets if (line := _check_rows(dataset, retriever))]
        model, named = training.config.model, [training.prompts.named(name) for name in datasets]
        prompts = merge_prompts(
            model.dataset_prompts or {}, {key: text for prompts in named for key, text in prompts.items()}
        )
        config = replace(training.config, model=replace(model, dataset_prompts=prompts or None))
        checked.append(replace(training, config=config))
    for line in dict.fromkeys(lines):
        log(line)
    return checked


def _check_prompts(prompts: Prompts, name: str, retriever: Retriever) -> str:
    for side in SIDES:
        retriever.check_prompt(prompts[side], side)
    return f"{name}: {prompts}" if prompts.query_name or prompts.passage_name else ""


def _check_rows(dataset: RetrievalDataset, retriever: Retriever) -> str:
    if dataset.prompts is None:
        return ""
    for text in dataset.prompts.distinct():
        retriever.check_prompt(text, "query")
    count, total = len(dataset.prompts.queries), len(dataset.queries)
    return f"{dataset.name}: {count:,} of {total:,} queries have prompts of their own"


def _check_overlaps(training: OpenTraining, evaluated: RetrievalDataset, run: Config, log: Log) -> None:
    """Log how many dev and test queries are also training queries.

    Shared dev queries make the calibration too confident and let training run too long. The dev curve shows this.
    Shared test queries make the results too good. No output shows this.

    Raises:
        DataError: too many test queries are among the training queries.
    """
    data, datasets, splits = training.config.data, training.data.datasets, run.data
    trained = [(dataset, data.train_split) for dataset in datasets]
    checked = [(datasets[0], data.dev_split), (evaluated, splits.test_split)]
    if splits.dev_split in evaluated.judgements:
        checked.insert(1, (evaluated, splits.dev_split))
    distinct = {(dataset.name, split): (dataset, split) for dataset, split in checked}
    for overlap in overlaps(trained, list(distinct.values())):
        if overlap.split == splits.test_split:
            check_overlap(overlap, data.allow_split_overlap)
        if overlap.shared:
            log(f"{overlap.dataset}: {overlap}")


def _open_evaluated(config: Config, retriever: Retriever, log: Log) -> RetrievalDataset:
    """Open the evaluation data set of a run whose stages have their own data sets.

    The dev split, if there is one, calibrates the trained model."""
    options: dict[str, Any] = {
        "max_bad_rows": config.data.max_bad_rows,
        "bm25_language": config.data.bm25_language,
        "tokenization": tokenization_of(retriever),
        "run": choose_runner(config.training.workers[1]),
        "log": log,
    }
    with suppress(DataError):  # a data set without a dev split can be evaluated too
        return open_dataset(config.data.dataset, [config.data.test_split, config.data.dev_split], **options)
    return open_dataset(config.data.dataset, [config.data.test_split], **options)


def folders_of(config: Config, path: Path) -> list[Path]:
    """Return the run directories of the trainings: that of the run, or one below it for each stage."""
    return [path / STAGES / f"{number}-{stage.name}" for number, stage in enumerate(config.stages, 1)] or [path]


def find_negatives(opened: OpenRun, path: Path, cache: NegativesCache) -> list[NegativesTable | None]:
    """Find the hard negatives of all unfinished trainings before the first training begins."""
    tables = []
    for training, folder in zip(opened.trainings, folders_of(opened.config, path), strict=True):
        with errors_of(training.config):
            tables.append(None if (folder / METRICS).is_file() else cache.table(training))
    return tables


def train_run(
    opened: OpenRun,
    tables: Sequence[NegativesTable | None],
    path: Path,
    tracker: Spool,
    run_name: str,
    log: Log,
    here: bool = False,
    gpus: float = 1.0,
) -> None:
    """Run the unfinished trainings of a run. Afterwards the run directory holds the model of the last training.

    Args:
        tables: hard negatives of the trainings, from `find_negatives`.
        run_name: suffix of the names of child runs.
        here, gpus: see `TrainingJob`. If `here` is True, this process is the only worker.
    """
    folders = folders_of(opened.config, path)
    start: Path | None = None
    for number, (training, table, folder) in enumerate(zip(opened.trainings, tables, folders, strict=True), 1):
        if (folder / METRICS).is_file():
            start = folder / MODEL
            continue
        training = training.starting_from(start) if start else training
        config, total_steps = training.config, training.total_steps
        if config.name:
            log(f"stage {number} of {len(folders)}, {config.name}: {total_steps:,} steps")
        workers = config.training.workers[1]
        with (
            errors_of(config),
            _child(training, folder, tracker, run_name, log) if config.name else nullcontext(tracker) as own,
            # End the session before the recorder. Otherwise workers could write checkpoints of unrecorded steps.
            Recorder(own, folder, total_steps) as recorder,
            ray_session(workers),
            recorder.gauges.training(total_steps, config.refresh.refresh_every),
        ):
            train_on_cluster(training.job(table, folder, in_process=here and workers == 1, gpus=gpus), recorder.record)
        start = folder / MODEL
    if folders != [path]:
        # Copy the model, so that the run keeps it when a stage's directory is removed.
        with committed_directory(path / MODEL, {"config": opened.config.hash}, replace=True) as target:
            shutil.copytree(folders[-1] / MODEL, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))


@contextmanager
def _child(training: OpenTraining, folder: Path, parent: Spool, run_name: str, log: Log) -> Iterator[Spool]:
    """Open the run directory and the tracked run of a stage. `metrics.json` is written last."""
    run, config = RunDirectory.open(folder, {}, fresh=False), training.config
    run.begin(dump_config(config))
    tracker = parent.child(f"{folder.name} of {run_name}", folder)
    with closing(tracker):
        settings = resolved_config(config, training.description)
        describe_run(tracker, config, settings, training.data.datasets[0], folder, log)
        yield tracker
        tracker.log_file(folder / CONFIG)
        run.finish(training_facts([folder], config))


def describe_run(
    tracker: Tracker, config: Config, settings: Mapping[str, Any], dataset: RetrievalDataset, folder: Path, log: Log
) -> None:
    """Log the settings, the data and the source of a training, and write the bad rows of its data set to `folder`."""
    quarantine = dataset.quarantine.write(folder)
    if quarantine.total:
        log(str(quarantine))
    tags = {COMMAND: "train", "config_hash": config.hash, "run_directory": str(folder.resolve())}
    if commit := git_commit(Path(__file__).parent):
        tags["mlflow.source.git.commit"] = commit
    tracker.describe(settings, record_of(dataset, config), tags)


def record_of(dataset: RetrievalDataset, config: Config) -> DatasetRecord:
    """Return the record of a run's data set for trackers."""
    return DatasetRecord(dataset.name, config.data.dataset, dataset.digest, dataset.counts())
