"""Dev sets that checkpoints are evaluated on: opened and checked before training starts. Imports no Ray."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from raytriever.config import Config
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import Runner
from raytriever.errors import ConfigError, DataError
from raytriever.evaluation.answers import check_answers
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.protocol import AUC, QUERY_AUC, Protocol, read_best_metric, select_judged_queries
from raytriever.metrics.ranking import DEFAULT_METRICS
from raytriever.training.config import DEV_LOSS
from raytriever.training.validation.config import OWN

# Before the names of what checkpoints are worth.
DEV = "dev/"


@dataclass(frozen=True)
class DevSet:
    """One data set that checkpoints are evaluated on.

    Args:
        name: in the names of metrics, where there are several.
        place: where any process opens it.
        split: whose queries are searched.
        digest: of its content.
    """

    name: str
    place: str
    split: str
    digest: str


def dev_protocol(best_metric: str) -> Protocol:
    """What is measured of a checkpoint: the usual metrics, and the one that decides.

    Raises:
        ConfigError: there is no such metric.
    """
    metrics: tuple[str, ...] = (*DEFAULT_METRICS, AUC)
    if best_metric != DEV_LOSS:
        metrics = tuple(dict.fromkeys((*metrics, read_best_metric(best_metric))))
    return Protocol(metrics=metrics)


def open_dev_sets(config: Config, own: RetrievalDataset, run: Runner, say: Callable[[str], None]) -> tuple[DevSet, ...]:
    """The dev data of a run, each data set opened once and held to what is to be measured on it.

    Args:
        config: the experiment.
        own: its data set, opened with its dev split.
        run: how shards are made, where they must be.
        say: hears of data sets, and of what figures would mislead.

    Raises:
        UserError: no such data set or split, no query of it has a relevant document, two data sets have one name, or
            it cannot give the metric.
    """
    data, training = config.data, config.training
    sources = config.validation.sources(training.best_metric, data.dev_split)
    if not sources:
        return ()
    protocol = dev_protocol(training.best_metric)
    found: dict[str, DevSet] = {}
    for name, split in sources:
        is_own = name == OWN or name == data.dataset
        if is_own and split == data.dev_split:
            dataset = own
        else:
            place = data.dataset if name == OWN else name
            dataset = open_dataset(place, [split], max_bad_rows=data.max_bad_rows, run=run, say=say)
        if is_own and split == data.test_split:
            say(f"{dataset.name}: the best checkpoint is chosen on {split!r}, which is measured too: expect less of it")
        _check(dataset, split, protocol, training.best_metric)
        label = safe_name(dataset.name)
        if label in found:
            raise ConfigError(f"two data sets are called {label!r}", "--eval-datasets", "give each once")
        found[label] = DevSet(label, str(dataset.place), split, dataset.digest)
    return tuple(found.values())


def digest_of(sets: tuple[DevSet, ...], config: Config) -> str:
    """Of all that decides the figures but the weights; empty where nothing is evaluated."""
    if not sets:
        return ""
    parts = [[one.name, one.split, one.digest] for one in sets]
    decides = [parts, asdict(dev_protocol(config.training.best_metric)), config.validation.eval_corpus]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def _check(dataset: RetrievalDataset, split: str, protocol: Protocol, best_metric: str) -> None:
    where = f"--best-metric {best_metric}"
    judged = select_judged_queries(dataset, split, protocol)
    if protocol.wants_answers:
        try:
            check_answers(dataset, split, judged.queries)
        except DataError as error:
            told = f"{error.where}: {error.what}"
            raise ConfigError(
                told, where, "give another metric, or add answers.jsonl (docs/reference/formats.md)"
            ) from error
    if best_metric != DEV_LOSS and read_best_metric(best_metric) in (AUC, QUERY_AUC):
        scored = judged.relevance.queries[judged.is_relevant & judged.is_in_corpus]
        relevant = np.bincount(scored, minlength=len(judged.queries))
        if (relevant >= len(dataset.documents)).all():
            told = f"{dataset.name}, split {split!r}: every document is relevant to every query"
            raise ConfigError(told, where, "give another metric")
