"""Validation of a checkpoint: evaluate its encoder on the dev sets of the run. This module imports no Ray.

The dev sets are opened and checked before training starts."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from raytriever.core.errors import ConfigError, DataError, setting
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import Runner
from raytriever.evaluation.evaluated_datasets import safe_name, sample_corpus
from raytriever.evaluation.protocol import (
    AUC,
    QUERY_AUC,
    Protocol,
    check_answers,
    read_best_metric,
    select_judged_queries,
)
from raytriever.evaluation.systems import evaluate_embeddings
from raytriever.metrics.ranking_metrics import DEFAULT_METRICS
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever
from raytriever.retrieval.encoding.encode_texts import encode_queries, encode_texts
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.training.dev_validation import Record, read_record, write_record
from raytriever.training.run_config import Config
from raytriever.training.training_settings import DEV_LOSS, OWN

DEV = "dev/"  # prefix of the metrics of checkpoints on dev data


@dataclass(frozen=True)
class DevSet:
    """Data set on which checkpoints are evaluated.

    Any process can open its path or URI. If a run has several dev sets, the names of metrics contain the set's name."""

    name: str
    path: str
    split: str
    digest: str


def dev_protocol(best_metric: str) -> Protocol:
    """Return the protocol of validations: default metrics, AUC, and the metric that decides the best checkpoint."""
    metrics: tuple[str, ...] = (*DEFAULT_METRICS, AUC)
    if best_metric != DEV_LOSS:
        metrics = tuple(dict.fromkeys((*metrics, read_best_metric(best_metric))))
    return Protocol(metrics=metrics)


def open_dev_sets(config: Config, own: RetrievalDataset, run: Runner, log: Callable[[str], None]) -> tuple[DevSet, ...]:
    """Open the dev data of a run, each data set once, and check that its metrics can be computed.

    `own` is the data set of the run, opened with its dev split. `run` prepares the shards of other data sets."""
    data, training = config.data, config.training
    sources = config.validation.sources(training.best_metric, data.dev_split)
    if not sources:
        return ()
    protocol = dev_protocol(training.best_metric)
    dev_sets: dict[str, DevSet] = {}
    for name, split in sources:
        is_own = name == OWN or name == data.dataset
        if is_own and split == data.dev_split:
            dataset = own
        else:
            path = data.dataset if name == OWN else name
            dataset = open_dataset(path, [split], max_bad_rows=data.max_bad_rows, run=run, log=log)
        if is_own and split == data.test_split:
            log(f"{dataset.name}: the best checkpoint is chosen on the test split {split!r}, so test metrics mislead")
        _check(dataset, split, protocol, training.best_metric)
        label = safe_name(dataset.name)
        if label in dev_sets:
            what = f"two data sets have the name {label!r}"
            raise ConfigError(what, setting("eval_datasets"), "give data sets with different names, and each only once")
        dev_sets[label] = DevSet(label, str(dataset.location), split, dataset.digest)
    return tuple(dev_sets.values())


def digest_of(dev_sets: tuple[DevSet, ...], config: Config) -> str:
    """Return a hash of all that determines the dev metrics, except the weights; "" if there are no dev sets."""
    if not dev_sets:
        return ""
    contents = [[dev_set.name, dev_set.split, dev_set.digest] for dev_set in dev_sets]
    settings = [contents, asdict(dev_protocol(config.training.best_metric)), config.validation.eval_corpus]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def _check(dataset: RetrievalDataset, split: str, protocol: Protocol, best_metric: str) -> None:
    where = setting("best_metric", best_metric)
    judged = select_judged_queries(dataset, split, protocol)
    if protocol.wants_answers:
        try:
            check_answers(dataset, split, judged.queries)
        except DataError as error:
            remedy = "give another metric, or add answers.jsonl (docs/reference/formats.md)"
            raise ConfigError(f"{error.where}: {error.what}", where, remedy) from error
    if best_metric != DEV_LOSS and read_best_metric(best_metric) in (AUC, QUERY_AUC):
        scored = judged.relevance.queries[judged.is_relevant & judged.is_in_corpus]
        relevant = np.bincount(scored, minlength=len(judged.queries))
        if (relevant >= len(dataset.documents)).all():
            every = f"{dataset.name}, split {split!r}: every document is relevant to every query"
            raise ConfigError(every, where, "give another metric")


class Validations:
    """Validations of a run, in one process. `folder` is the folder of their records."""

    def __init__(self, config: Config, dev_sets: Sequence[DevSet], folder: Path) -> None:
        self._config, self._dev_sets, self._folder = config, dev_sets, folder
        self._protocol = dev_protocol(config.training.best_metric)

    def run(self, step: int, checkpoint: Path) -> Record:
        """Evaluate a checkpoint and write its record, unless the record exists."""
        if (stored := read_record(self._folder, step)) is not None:
            return stored
        began = time.monotonic()
        retriever = load_for_encoding(ModelConfig(str(checkpoint)), self._config.training.precision)
        rows = {
            dev_set.name: self._evaluate(retriever, dev_set, self._datasets[dev_set.name]) for dev_set in self._dev_sets
        }
        means = {name: float(np.mean([row[name] for row in rows.values()])) for name in self._protocol.metrics}
        metrics = {f"{DEV}{name}": value for name, value in means.items()}
        if len(rows) > 1:
            metrics |= {f"{DEV}{key}/{name}": value for key, row in rows.items() for name, value in row.items()}
        metrics = {name: value for name, value in metrics.items() if value == value}  # an AUC may be NaN
        best = self._config.training.best_metric
        value = float("nan") if best == DEV_LOSS else means[read_best_metric(best)]
        record = Record(step, value, {**metrics, "evaluation_seconds": time.monotonic() - began})
        write_record(self._folder, record)
        return record

    @cached_property
    def _datasets(self) -> dict[str, RetrievalDataset]:
        """Data set of each dev set by name, with the corpus sampled if the settings say so."""
        most, seed = self._config.validation.eval_corpus, self._config.training.seed
        datasets = {}
        for dev_set in self._dev_sets:
            dataset = open_dataset(dev_set.path, [dev_set.split], bm25_language=self._config.data.bm25_language)
            if most is not None:
                dataset = sample_corpus(dataset, dev_set.split, most, seed, lambda all: Bm25Index.of(all.documents))
            datasets[dev_set.name] = dataset
        return datasets

    def _evaluate(self, retriever: Retriever, dev_set: DevSet, dataset: RetrievalDataset) -> dict[str, float]:
        positions, prompts = dataset.relevant_queries(dev_set.split), retriever.prompts_of(dataset.name)
        queries = encode_queries(retriever, dataset, positions, dev_set.name)
        documents = encode_texts(retriever, dataset.passages(), "passage", dev_set.name, prompts.passage)
        return evaluate_embeddings(dataset, dev_set.split, queries, documents, self._protocol).metrics
