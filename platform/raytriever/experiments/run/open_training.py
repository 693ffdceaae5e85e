"""One training with its opened data and model, and its hard negatives."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raytriever.cluster.ingest import choose_runner
from raytriever.cluster.train.train_worker import TrainingJob
from raytriever.cluster.train.validate_checkpoint import DevSet, open_dev_sets
from raytriever.core.errors import flag_of
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.sampling.batch_order import Order
from raytriever.data.sampling.no_duplicates import shared
from raytriever.data.sampling.training_examples import check_positives
from raytriever.models.description import Description, describe, prompt_table, used_settings
from raytriever.models.device_and_precision import choose_precision, default_device
from raytriever.models.prompts import PromptTable
from raytriever.models.resolve_model import read_files
from raytriever.models.retriever import Retriever
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.retrieval.mining.bm25_analyzer import Analysis
from raytriever.retrieval.mining.miner import build_negatives_table
from raytriever.tracking.step_log import end_to_end, read_curve
from raytriever.training.dev_validation import FOLDER as EVALUATIONS
from raytriever.training.dev_validation import read_records
from raytriever.training.early_stopping import summarize
from raytriever.training.run_config import SECTIONS, Config, to_dict
from raytriever.training.training_data import TrainingData
from raytriever.training.training_settings import DEV_LOSS, check_refresh

Log = Callable[[str], None]
MODEL = "model"  # folder of the trained model in a run directory


@dataclass(frozen=True)
class OpenTraining:
    """Training whose settings, data and model have been checked. `config` includes the prompts to store with the
    trained model, and `description` has the prompts and lengths of the encoder."""

    config: Config
    description: Description
    data: TrainingData
    total_steps: int
    dev_sets: tuple[DevSet, ...] = ()
    prompts: PromptTable = field(default_factory=PromptTable)

    def job(self, negatives: NegativesTable | None, folder: Path, **resources: Any) -> TrainingJob:
        """Return the job for the cluster. `resources` are other fields of `TrainingJob`."""
        return TrainingJob(
            config=self.config,
            datasets=tuple(dataset.location for dataset in self.data.datasets if dataset.location),
            negatives=negatives,
            total_steps=self.total_steps,
            folder=folder,
            dev_sets=self.dev_sets,
            **resources,
        )

    def starting_from(self, model: Path) -> OpenTraining:
        """Return this training, started from the weights of another model. Its prompts and lengths do not change."""
        own = self.description.flags() | {"query_prompt_name": None, "passage_prompt_name": None}
        return replace(
            self, config=replace(self.config, model=replace(self.config.model, model=str(model), revision=None, **own))
        )


def open_training(config: Config, run: Config, retriever: Retriever, log: Log) -> OpenTraining:
    """Open and check the data of a training. `run` are the settings of the whole run; they name the test split."""
    data, training = config.data, config.training
    same = config.model == run.model
    description = retriever.description if same else describe(read_files(config.model), config.model)
    prompts = prompt_table(description, config.model)
    training_data = TrainingData.open(
        data.datasets,
        data,
        replace(tokenization_of(retriever), query_prompt=prompts.query, passage_prompt=prompts.passage, table=prompts),
        training.batch_size,
        training.seed,
        # A passage that the test split marks as relevant to a query must not be a hard negative of this query.
        also=[run.data.test_split] if data.dataset == run.data.dataset else [],
        run=choose_runner(training.workers[1]),
        log=log,
    )
    dev = training_data.datasets[0]
    check_positives(dev.positives(data.dev_split), dev, data.dev_split)
    batches = training_data.train(None)
    order = batches.order
    if not data.duplicates:
        left = shared(order, batches.examples.positives, range(order.steps(1)))
        log(
            f"{flag_of('duplicates', False)}: {left:,} of {len(batches.examples):,} queries share a positive with "
            "another query of their batch"
        )
    total_steps = count_steps(config, order)
    if training.warmup_steps >= total_steps:
        reached = training.learning_rate * total_steps / (training.warmup_steps + 1)
        log(
            f"{flag_of('warmup_steps')} {training.warmup_steps} is not below the {total_steps:,} steps of this "
            f"training: the learning rate reaches only {reached:.2g}, not {training.learning_rate:.2g}"
        )
    dev_sets = open_dev_sets(config, dev, choose_runner(training.workers[1]), log)
    return OpenTraining(config, description, training_data, total_steps, dev_sets, prompts)


def count_steps(config: Config, order: Order) -> int:
    """Return the number of steps with this order of examples. Raises `ConfigError` if the first refresh is too late."""
    total_steps = config.training.max_steps or order.steps(config.training.epochs or 1.0)
    check_refresh(config.refresh, config.data, total_steps)
    return total_steps


def resolved_config(config: Config, description: Description) -> dict[str, dict[str, Any]]:
    """Return the resolved settings of one training. Settings without a value are left out.

    The workers of a cluster may have other devices than this process. So for a cluster, device and precision are only
    included if the settings name them."""
    settings = {section: values for section, values in to_dict(config).items() if section in SECTIONS}
    settings["model"] = used_settings(config.model, description)
    if torch.cuda.is_available() or not os.environ.get("RAY_ADDRESS"):
        device = default_device()
        precision = choose_precision(config.training.precision, device)
        settings["training"] |= {"precision": precision, "device": device.type}
    return {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in settings.items()
    }


class NegativesCache:
    """Hard negatives and BM25 indexes, each computed only once for all trainings on the same data."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._indexes: dict[str, Bm25Index] = {}
        self._tables: dict[Hashable, NegativesTable] = {}

    def index(self, dataset: RetrievalDataset) -> Bm25Index:
        """Return the BM25 index of a data set's passages."""
        digest = dataset.documents.digest
        if digest not in self._indexes:
            for line in Analysis.of(dataset.documents).notes:
                self._log(line)
            self._indexes[digest] = Bm25Index.of(dataset.documents)
        return self._indexes[digest]

    def table(self, training: OpenTraining) -> NegativesTable | None:
        """Return the hard negatives of a training; None if the training uses no hard negatives."""
        data = training.config.data
        if not data.negatives_per_query:
            return None
        # Only these settings decide the rows of the table; the settings of groups and batches do not.
        key = (data.datasets, data.train_split, data.dev_split, data.negatives_table, data.negatives_mix)
        if key not in self._tables:
            self._tables[key] = self._build(data, training.data.datasets)
        if data.teachers:
            training.data.train(self._tables[key])  # checks the teacher's scores before anything trains
        return self._tables[key]

    def _build(self, data: DataConfig, datasets: Sequence[RetrievalDataset]) -> NegativesTable:
        tables = [
            build_negatives_table(dataset, data, "" if position else data.negatives_table, partial(self.index, dataset))
            for position, dataset in enumerate(datasets)
        ]
        for dataset, table in zip(datasets, tables, strict=True):
            self._log(f"{dataset.name}: hard negatives: {', '.join(f'{k} {n:,}' for k, n in table.counts().items())}")
            if line := lacking_negatives(dataset, data, table):
                self._log(line)
        starts = [0, *itertools.accumulate(len(dataset.documents) for dataset in datasets[:-1])]
        return tables[0] if len(tables) == 1 else NegativesTable.chained(tables, starts)


def lacking_negatives(dataset: RetrievalDataset, data: DataConfig, table: NegativesTable) -> str:
    """Return a line about training queries with fewer hard negatives than a group needs; `""` if no query has."""
    counts = np.diff(table.offsets)[dataset.positives(data.train_split).queries]
    fewer, none = int((counts < data.negatives_per_query).sum()), int((counts == 0).sum())
    if not fewer:
        return ""
    line = f"{dataset.name}: {fewer:,} of {len(counts):,} training queries have fewer than {data.negatives_per_query}"
    return f"{line} hard negatives and repeat them; {none:,} of these have none and get random passages"


def training_facts(folders: Sequence[Path], last: Config) -> dict[str, Any]:
    """Return facts about a run for `metrics.json`: its number of steps, and the checkpoint that became `model/`.

    `folders` are the run directories of the trainings of a run, in order. The `last` training chose the checkpoint."""
    steps = max((step for step, _ in end_to_end(folders, "loss")), default=0)
    metric, patience = last.training.best_metric, last.training.patience
    if metric == DEV_LOSS:
        curve = read_curve(folders[-1], DEV_LOSS)
        step, value = min(curve, key=lambda point: point[1], default=(0, 0.0))
    else:
        summary = summarize({record.step: record.value for record in read_records(folders[-1] / EVALUATIONS)}, patience)
        step, value = summary.best_step, summary.best_value
    return {"steps": steps, "best": {"metric": metric, "step": step, "value": value} if step else None}
