"""A scrape of the cluster finds the newest figures of training."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

import pytest
import ray

from raytriever.cluster.news import Saving, StepNews
from raytriever.cluster.recorder import Recorder
from raytriever.cluster.session import ray_session
from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.spool import Spool


def scraped() -> dict[tuple[str, str], float]:
    """Gauges of ours on all nodes, by name and run."""
    found = {}
    for node in ray.nodes():
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        text = urllib.request.urlopen(address, timeout=10).read().decode()
        for name, labels, value in re.findall(r"^(ray_raytriever_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
            [run] = re.findall(r'(?:^|,)run="([^"]*)"', labels)
            found[name, run] = float(value)
    return found


@pytest.mark.slow
def test_a_scrape_finds_the_newest_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "500")
    stage = tmp_path / "whole" / "stages" / "2-human"
    stage.mkdir(parents=True)
    tracker = Spool.open(MlflowServer(f"sqlite:///{tmp_path}/mlflow.db"), stage, "gauges")
    measured = {"loss": 0.25, "learning_rate": 1e-5, "batch_auc": 0.75, "step_seconds": 0.5}
    with ray_session(num_workers=1), Recorder(tracker, stage, 10) as recorder:
        recorder.hear(StepNews(1, {**measured, "loss": 9.0}))
        recorder.hear(Saving(1))
        recorder.hear(StepNews(2, measured))
        end = time.monotonic() + 60
        wanted = {("ray_raytriever_step", "whole/2-human"): 2.0, ("ray_raytriever_batch_auc", "whole/2-human"): 0.75}
        while not wanted.items() <= scraped().items():
            assert time.monotonic() < end, scraped()
            time.sleep(0.5)
        found = scraped()
    tracker.finish("FINISHED")
    assert found["ray_raytriever_loss", "whole/2-human"] == 0.25
    assert found["ray_raytriever_step_seconds", "whole/2-human"] == 0.5
    assert found["ray_raytriever_tracking_failures", "whole/2-human"] == 0
    assert 0 <= found["ray_raytriever_checkpoint_age_seconds", "whole/2-human"] < 60
