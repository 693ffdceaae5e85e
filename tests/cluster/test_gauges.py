"""Gauges of training and jobs in scrapes of a real Ray cluster."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import ray

from raytriever.cluster import gauges
from raytriever.cluster.events_and_restarts import CheckpointEvent, StepEvent
from raytriever.cluster.gauges import Gauges, export_metrics, with_encoding_gauges, with_ingest_gauges
from raytriever.cluster.ray_session import ray_session
from raytriever.data.formats.plan import Part
from raytriever.data.prepare.text_shards import ShardSummary, ShardWriter
from raytriever.experiments.run.event_recorder import Recorder
from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.spool import Spool
from raytriever.training.parallel.strategies import NotFiniteError


def scraped() -> dict[tuple[str, str], float]:
    """Return the gauges of raytriever on all nodes, by name and run."""
    values = {}
    for node in ray.nodes():
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        text = urllib.request.urlopen(address, timeout=10).read().decode()
        for name, labels, value in re.findall(r"^(ray_raytriever_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
            [run] = re.findall(r'(?:^|,)run="([^"]*)"', labels)
            values[name, run] = float(value)
    return values


def found_within(seconds: float, wanted: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Wait for a scrape that fulfils the condition, and return it."""
    end = time.monotonic() + seconds
    while not wanted.items() <= (result := scraped()).items():
        assert time.monotonic() < end, result
        time.sleep(0.5)
    return result


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray report every second and forget after two, and set the gauges again in between."""
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "500")
    monkeypatch.setattr(gauges, "REFRESH_SECONDS", 0.5)


@pytest.mark.slow
def test_a_scrape_has_the_newest_metrics_even_during_a_long_step(tmp_path: Path, often: None) -> None:
    stage = tmp_path / "whole" / "stages" / "2-human"
    stage.mkdir(parents=True)
    tracker = Spool.open([MlflowServer(f"sqlite:///{tmp_path}/mlflow.db")], stage, "gauges")
    metrics = {"loss": 0.25, "learning_rate": 1e-5, "batch_auc": 0.75, "step_seconds": 0.5}
    run = "whole/2-human"
    with ray_session(num_workers=1), Recorder(tracker, stage, 10) as recorder:
        with suppress(NotFiniteError), recorder.gauges.training(10, None):
            began = time.time()
            recorder.record(StepEvent(1, {**metrics, "loss": 9.0}))
            recorder.record(CheckpointEvent(1))
            recorder.record(StepEvent(2, metrics))
            recorder.gauges.record_step(1, {"dev_ndcg_at_10": 0.5})  # of a checkpoint, when a later step is done
            wanted = {("ray_raytriever_step", run): 2.0, ("ray_raytriever_batch_auc", run): 0.75}
            found_within(60, wanted)
            time.sleep(5)
            result = scraped()
            assert wanted.items() <= result.items()
            assert result["ray_raytriever_training", run] == 1
            raise NotFiniteError("the loss is nan")
        found_within(60, {("ray_raytriever_not_finite", run): 1.0})
        with recorder.gauges.training(10, None):
            pass
        found_within(60, {("ray_raytriever_not_finite", run): 0.0, ("ray_raytriever_training", run): 0.0})
    tracker.finish("FINISHED")
    assert result["ray_raytriever_loss", run] == 0.25
    assert result["ray_raytriever_dev_ndcg_at_10", run] == 0.5
    assert result["ray_raytriever_total_steps", run] == 10
    assert result["ray_raytriever_checkpoint_interval_seconds", run] == 600
    assert result["ray_raytriever_tracking_failures", run] == 0
    assert 0 < result["ray_raytriever_disk_free_fraction", run] < 1
    for moment in ("step", "checkpoint"):
        assert began - 1 < result[f"ray_raytriever_{moment}_timestamp_seconds", run] < began + 60


@pytest.mark.slow
def test_totals_of_jobs_grow_and_end(often: None) -> None:
    parts = (Part("/somewhere/letters/corpus.jsonl", "json", parse=lambda row: None),)
    reports = [ShardSummary(0, 0, 100), ShardSummary(0, 1, 50, ({"row": 3},))]
    with ray_session(num_workers=1):
        passed = with_ingest_gauges(ShardWriter(parts, Path("/nowhere"), None), iter(reports))
        assert next(passed) == reports[0]
        ingest = "ingest/letters"
        found_within(
            60, {("ray_raytriever_ingest_rows", ingest): 100.0, ("ray_raytriever_ingest_running", ingest): 1.0}
        )
        assert list(passed) == reports[1:]
        own = Gauges("vectors")

        def run(encoder: object, missing: Sequence[int], advance: Callable[[int], None]) -> None:
            for number in missing:
                advance(number)

        counted: list[int] = []
        watched = with_encoding_gauges(run, own)
        watched(None, [5, 6], counted.append)  # type: ignore[arg-type]
        watched(None, [7], counted.append)  # type: ignore[arg-type]
        gauges = export_metrics("page", "mini", "letters", {"ndcg_at_10": 0.25})
        result = found_within(
            60,
            {
                ("ray_raytriever_ingest_rows", ingest): 150.0,
                ("ray_raytriever_ingest_quarantined", ingest): 1.0,
                ("ray_raytriever_encoding_texts", "vectors"): 18.0,
                ("ray_raytriever_evaluation_ndcg_at_10", "page/mini/letters"): 0.25,
            },
        )
        assert counted == [5, 6, 7]
        assert gauges.refresh()
    assert not gauges.refresh()
    # The gauges of a deleted owner disappear after two seconds.
    assert result.get(("ray_raytriever_ingest_running", ingest), 0.0) == 0.0
