"""Evaluate with corpora that actors encode and search, where a cluster is joined or actors are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import ray

from raytriever.cluster.encoding import ActorPool, choose_actor_pool, open_encoding_session, run_in_actors
from raytriever.cluster.gauges import Gauges, export_metrics, with_encoding_gauges
from raytriever.cluster.search import SearchPool, search_in_actors
from raytriever.encoding.config import EncodeConfig
from raytriever.evaluation.job import run_evaluation
from raytriever.evaluation.request import EvaluationJob
from raytriever.evaluation.results import Results
from raytriever.evaluation.systems import Workers
from raytriever.report.evaluation import write_evaluation_report
from raytriever.tracking.mlflow_tracker import check_uri, tracking_uri
from raytriever.tracking.tracker import Tracker


def evaluate_in_session(
    job: EvaluationJob,
    config: EncodeConfig,
    output: Path,
    fresh: bool,
    tracker: Callable[[], Tracker],
    log: Callable[[str], None],
) -> Results:
    """`run_evaluation` by this process, or by the actors that `config` asks for, with the same figures.

    Embeddings are kept in the cache, which every node sees under the same path.

    Raises:
        UserError: something a user can mend; see `errors`.
    """
    check_uri(tracking_uri())
    with open_encoding_session(config):
        pool = choose_actor_pool(config)
        workers = _workers(pool, Gauges(output.name)) if pool else Workers()
        told: list[Gauges] = []

        def on_result(model: str, dataset: str, metrics: Mapping[str, float]) -> None:
            told.append(export_metrics(output.name, model, dataset, metrics))

        return run_evaluation(job, output, fresh, tracker, log, workers, write_evaluation_report, on_result)


def _workers(pool: ActorPool, gauges: Gauges) -> Workers:
    there = ray.cluster_resources()
    fits = int(there.get("GPU", 0) / pool.gpus if pool.gpus else there.get("CPU", 1) / pool.cpus)
    searchers = SearchPool(max(pool.fewest, min(pool.most, fits)), pool.cpus, pool.gpus)
    return Workers(with_encoding_gauges(run_in_actors(pool), gauges), partial(search_in_actors, pool=searchers))
