"""Evaluate with actors that encode and search the corpora, if a cluster is joined or actors are requested."""

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
    """Run an evaluation in this process, or in the actors that `config` requests, with the same results.

    Embeddings are stored in the cache, which every node must see under the same path.

    Raises:
        UserError: see `run_evaluation`.
    """
    check_uri(tracking_uri())
    with open_encoding_session(config):
        pool = choose_actor_pool(config)
        workers = _workers(pool, Gauges(output.name)) if pool else Workers()
        gauges: list[Gauges] = []  # they exist as long as this list

        def on_result(model: str, dataset: str, metrics: Mapping[str, float]) -> None:
            gauges.append(export_metrics(output.name, model, dataset, metrics))

        return run_evaluation(job, output, fresh, tracker, log, workers, write_evaluation_report, on_result)


def _workers(pool: ActorPool, gauges: Gauges) -> Workers:
    resources = ray.cluster_resources()
    fits = int(resources.get("GPU", 0) / pool.gpus if pool.gpus else resources.get("CPU", 1) / pool.cpus)
    searchers = SearchPool(max(pool.fewest, min(pool.most, fits)), pool.cpus, pool.gpus)
    return Workers(with_encoding_gauges(run_in_actors(pool), gauges), partial(search_in_actors, pool=searchers))
