"""Evaluate on tasks of MTEB in this process, or with actors that encode and search the corpora."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from raytriever.cluster.encoding import choose_actor_pool, open_encoding_session
from raytriever.cluster.evaluation import pool_workers
from raytriever.cluster.gauges import Gauges, export_metrics
from raytriever.encoding.config import EncodeConfig
from raytriever.evaluation.systems import RetrievalBackend
from raytriever.mteb.job import MtebResults, run_mteb
from raytriever.mteb.request import MtebJob
from raytriever.tracking.spool import open_adjacent
from raytriever.tracking.tracker import NullTracker, Tracker
from raytriever.tracking.trackers import check_trackers


def run_mteb_in_session(
    job: MtebJob,
    config: EncodeConfig,
    output: Path,
    fresh: bool,
    trackers: Sequence[str],
    log: Callable[[str], None],
) -> MtebResults:
    """Run an evaluation on MTEB in this process, or in the actors that `config` requests, with the same results.

    Embeddings are stored in the cache, which every node must see under the same path.

    Raises:
        UserError: see `run_mteb`.
    """
    check_trackers(trackers)

    def tracker() -> Tracker:
        return open_adjacent(trackers, output, log) if trackers else NullTracker()

    with open_encoding_session(config):
        pool = choose_actor_pool(config)
        workers = pool_workers(pool, Gauges(output.name)) if pool else RetrievalBackend()
        gauges: list[Gauges] = []  # they exist as long as this list

        def on_result(model: str, task: str, metrics: Mapping[str, float]) -> None:
            gauges.append(export_metrics(output.name, model, task, metrics))

        return run_mteb(job, output, fresh, log, workers, on_result, tracker)
