"""Evaluate on a cluster: by actors that encode and search the corpora, or in a Ray task with a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from raytriever.cluster.actor_pool import ActorPool
from raytriever.cluster.encode_on_cluster import choose_actor_pool, open_encoding_session
from raytriever.cluster.gauges import Gauges, export_metrics, with_encoding_gauges
from raytriever.cluster.ray_session import run_with_gpu
from raytriever.evaluation.requested_models import EvaluationJob
from raytriever.evaluation.results import RESULTS, Results
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.evaluation.systems import RetrievalBackend
from raytriever.retrieval.encoding.encoding_settings import EncodeConfig
from raytriever.tracking.spool import open_adjacent
from raytriever.tracking.tracker import Tracker
from raytriever.tracking.tracker_names import check_trackers

Evaluated = TypeVar("Evaluated")


def evaluate_in_session(
    run: Callable[..., Evaluated],
    config: EncodeConfig,
    output: Path,
    fresh: bool,
    trackers: Sequence[str],
    log: Callable[[str], None],
) -> Evaluated:
    """Run an evaluation in this process, or by the actors that `config` requests, with the same results.

    Embeddings are stored in the cache, which every node must see under the same path. `run` is a partial function
    of `run_evaluation` or `run_mteb` that has the job. Without trackers, the evaluation is not tracked."""
    check_trackers(trackers)

    def tracker() -> Tracker:
        return open_adjacent(trackers, output, log) if trackers else Tracker()

    with open_encoding_session(config):
        pool = choose_actor_pool(config)
        backend = pool_backend(pool, Gauges(output.name)) if pool else None
        gauges: list[Gauges] = []  # keeps the gauges alive

        def on_result(model: str, dataset: str, metrics: Mapping[str, float]) -> None:
            gauges.append(export_metrics(output.name, model, dataset, metrics))

        return run(output, fresh, tracker, log, backend=backend, on_result=on_result)


def pool_backend(pool: ActorPool, gauges: Gauges) -> RetrievalBackend:
    """Return functions that encode and search with as many actors as the cluster has resources for."""
    searchers = replace(pool, most=max(pool.fewest, min(pool.most, pool.fits)))
    return RetrievalBackend(with_encoding_gauges(pool.encode, gauges), searchers.search)


def evaluate_once(job: EvaluationJob, output: Path, log: Callable[[str], None], gpus: float = 1.0) -> Results:
    """Run an evaluation, unless an earlier call has written `output`, and return its results.

    It runs in a Ray task with a GPU if the cluster has one, else in this process. The cluster must see the data sets,
    the models and `output` under the same paths.

    Args:
        gpus: GPUs of the task; a fraction if several tasks share a GPU.
    """
    if (output / RESULTS).is_file():
        return Results.read(output, f"remove {output}, then run the same command again")
    here = partial(_evaluate, job, output, log)
    if all(model.config is None for model in job.models):
        return here()[0]
    results, lines = run_with_gpu(partial(_evaluate, job, output), here, gpus)
    for line in lines:
        log(line)
    return results


def _evaluate(job: EvaluationJob, output: Path, log: Callable[[str], None] | None = None) -> tuple[Results, list[str]]:
    """Run an evaluation. Return its results and, if `log` is None, the lines to log."""
    lines: list[str] = []
    return run_evaluation(job, output, fresh=True, tracker=Tracker, log=log or lines.append), lines
