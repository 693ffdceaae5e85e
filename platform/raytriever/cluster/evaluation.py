"""Evaluate on a cluster: with actors that encode and search the corpora, or one model in a task with a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from raytriever.cluster.encoding import choose_actor_pool, open_encoding_session
from raytriever.cluster.gauges import Gauges, export_metrics, with_encoding_gauges
from raytriever.cluster.pool import ActorPool
from raytriever.cluster.session import run_with_gpu
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.config import EncodeConfig
from raytriever.encoding.loading import load_for_encoding
from raytriever.evaluation.evaluate import Evaluation, evaluate
from raytriever.evaluation.systems import DenseSystem, RetrievalBackend
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision, default_device
from raytriever.tracking.spool import open_adjacent
from raytriever.tracking.tracker import Tracker
from raytriever.tracking.trackers import check_trackers

Evaluated = TypeVar("Evaluated")


def evaluate_in_session(
    run: Callable[..., Evaluated],
    config: EncodeConfig,
    output: Path,
    fresh: bool,
    trackers: Sequence[str],
    log: Callable[[str], None],
) -> Evaluated:
    """Run an evaluation or one on MTEB in this process, or in the actors that `config` requests, with the same results.

    Embeddings are stored in the cache, which every node must see under the same path. `run` is `run_evaluation` or
    `run_mteb` with their job. Without trackers the evaluation is not tracked.
    """
    check_trackers(trackers)

    def tracker() -> Tracker:
        return open_adjacent(trackers, output, log) if trackers else Tracker()

    with open_encoding_session(config):
        pool = choose_actor_pool(config)
        backend = pool_backend(pool, Gauges(output.name)) if pool else None
        gauges: list[Gauges] = []  # they exist as long as this list

        def on_result(model: str, dataset: str, metrics: Mapping[str, float]) -> None:
            gauges.append(export_metrics(output.name, model, dataset, metrics))

        return run(output, fresh, tracker, log, backend=backend, on_result=on_result)


def pool_backend(pool: ActorPool, gauges: Gauges) -> RetrievalBackend:
    """Return functions that encode and search in actors, as many as the cluster has resources for."""
    searchers = replace(pool, most=max(pool.fewest, min(pool.most, pool.fits)))
    return RetrievalBackend(with_encoding_gauges(pool.encode, gauges), searchers.search)


def evaluate_model(
    dataset: RetrievalDataset,
    splits: Sequence[str],
    model: ModelConfig,
    precision: str | None,
) -> list[Evaluation]:
    """Load a model once and evaluate it on each of some splits, in a Ray task with a GPU if there is one.

    Without GPUs this process does it. The cluster must see the data set and the model under the same paths.
    """
    location = str(dataset.location)
    return run_with_gpu(
        remote=partial(evaluate_splits, location, splits, model, precision),
        here=partial(evaluate_splits, dataset, splits, model, precision),
    )


def evaluate_splits(
    source: RetrievalDataset | str,
    splits: Sequence[str],
    model: ModelConfig,
    precision: str | None,
) -> list[Evaluation]:
    """Load a model in this process and evaluate it on each of some splits of a data set, or of one at a path or URI."""
    dataset = open_dataset(source, splits) if isinstance(source, str) else source
    device = default_device()
    retriever = load_for_encoding(model, choose_precision(precision, device), device)
    system = DenseSystem(dataset, model, retriever)
    return [evaluate(dataset, split, system) for split in splits]
