"""Every panel draws something of real runs, and alerts know how they ended: a real Prometheus scrapes a real Ray."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from prepared import prepare
from ray.cluster_utils import Cluster
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

sys.path.append(str(Path(__file__).parents[2] / "dashboards"))
from processes import free_port

import panels
import programs
from raytriever.cluster import ingest
from raytriever.data.prepare.prepare_dataset import Request

pytestmark = [pytest.mark.prometheus, pytest.mark.slow, pytest.mark.timeout(900)]
RULES = yaml.safe_load((programs.HERE / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
# Scraped only where there are GPUs; the first is ours, the others are held to Ray's own list.
ON_GPUS = {"ray_raytriever_model_flops_utilization"}
ON_GPUS |= {"ray_node_gpus_utilization", "ray_node_gram_used", "ray_node_gram_available"}
# Words of expressions that are no metrics of a scrape.
PATTERNS = ("ray_raytriever_evaluation_", "ray_raytriever_dev_")
REFRESH = ["--refresh-every", "8", "--refresh-mode", "sync", "--refresh-negatives", "5", "--negatives-per-query", "1"]
LOOKS = ["--best-metric", "ndcg_at_10", "--eval-steps", "8"]


@dataclass(frozen=True)
class Asked:
    """A Prometheus and when it was started."""

    url: str
    began: float

    def __call__(self, path: str, **words: Any) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def names(self) -> set[str]:
        """All metrics that were ever scraped."""
        return set(self("label/__name__/values"))

    def series(self, expression: str) -> list[Any]:
        """What an expression has drawn since the beginning."""
        words = {"query": expression, "start": self.began, "end": time.time(), "step": 1}
        return list(self("query_range", **words)["result"])

    def runs(self, expression: str) -> set[str]:
        """For which runs an expression holds now."""
        return {item["metric"]["run"] for item in self("query", query=expression)["result"]}


@pytest.fixture(scope="module")
def watched(
    tmp_path_factory: pytest.TempPathFactory, command_line_in: Callable[[Path], Any], tiny_dataset: Path
) -> Iterator[Asked]:
    """A cluster that is scraped each second, after a training, one that diverged, an ingest and an evaluation."""
    folder = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_metrics_report_interval_ms", "1000")
        # Ray's dashboard keeps the list of nodes for Prometheus; another Ray of this machine may have its usual port.
        head = {"num_cpus": 4, "include_dashboard": True, "dashboard_port": free_port()}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        patch.setenv("RAY_ADDRESS", cluster.address)
        port = free_port()
        config = programs.prometheus_config(folder, Path(cluster.head_node.get_session_dir_path()), seconds=1)
        log = folder / "prometheus.log"
        prometheus = programs.start(programs.prometheus_command(config, port), log)
        try:
            asked = Asked(f"http://127.0.0.1:{port}", time.time())
            programs.wait_for(f"{asked.url}/-/ready", prometheus, log)
            work(folder, command_line_in, tiny_dataset, patch)
            time.sleep(3)
            yield asked
        finally:
            programs.stop(prometheus)
            cluster.shutdown()


def work(folder: Path, command_line_in: Callable[[Path], Any], dataset: Path, patch: pytest.MonkeyPatch) -> None:
    """What a team does in a week."""
    cli = command_line_in(folder)

    def does(stage: str, *words: str, code: int = 0) -> str:
        process = cli.start(stage, *words)
        _, err = process.communicate(timeout=300)
        assert process.returncode == code, err
        return str(err)

    # Who is slowest is known after twenty steps.
    does("train", *cli.settings, "--max-steps", "24", "--output", "run", "--num-workers", "2", *REFRESH, *LOOKS)
    wild = ["--learning-rate", "1e30", "--warmup-steps", "0"]
    said = does("train", *cli.settings, "--max-steps", "60", "--output", "diverged", *wild, code=2)
    assert re.search("NaN|nan|inf", said)
    # In another precision than before, so that nothing is in the cache.
    words = ["--model", str(folder / "run" / "model"), "--datasets", str(dataset), "--precision", "bf16"]
    does("evaluate", *words, "--output", "page", "--actors", "1")
    space = folder / "space.yaml"
    space.write_text(yaml.safe_dump({"loss": {"temperature": [0.05, 0.1]}}))
    does("tune", *cli.settings, "--max-steps", "4", "--search-space", str(space), "--output", "sweep")
    patch.setattr(ingest, "RAY_FROM", 0)
    prepare(Request(str(dataset)), ingest.choose_runner(num_workers=0), folder / "prepared")
    assert not ray.is_initialized()


def metrics_of(expression: str) -> set[str]:
    names = set(re.findall(r"\bray_[a-z0-9_]+\b", expression))
    return {name for name in names if name not in PATTERNS}


def test_every_metric_that_is_named_was_scraped(watched: Asked) -> None:
    curves = [curve for row in panels.ROWS for panel in row.panels for curve in panel.curves.values()]
    named = set().union(*(metrics_of(text) for text in [*curves, *(rule["expr"] for rule in RULES)]))
    assert len(named) > 50
    assert sorted(named - watched.names() - ON_GPUS) == []


def test_metrics_of_gpus_are_called_as_ray_calls_them() -> None:
    of_ray = {name.removeprefix("ray_") for name in ON_GPUS if "raytriever" not in name}
    assert of_ray <= set(METRICS_GAUGES)


def test_every_curve_of_every_panel_drew_something(watched: Asked) -> None:
    empty = [
        f"{panel.title}: {legend}"
        for row in panels.ROWS
        for panel in row.panels
        for legend, curve in panel.curves.items()
        if not watched.series(curve.replace("$run", ".*")) and not metrics_of(curve) <= ON_GPUS
    ]
    assert empty == []


def test_how_runs_ended_is_known_after_their_drivers_are_gone(watched: Asked) -> None:
    rules = {rule["alert"]: rule["expr"] for rule in RULES}
    assert watched.runs("max by (run) (last_over_time(ray_raytriever_training[15m])) == 0") == {"run"}
    assert watched.runs(rules["RaytrieverLossNotFinite"]) == {"diverged"}
    for name in ("RaytrieverRunLost", "RaytrieverNoStep", "RaytrieverRefreshFailed", "RaytrieverIngestStopped"):
        assert watched.runs(rules[name]) == set(), name


def test_prometheus_has_taken_all_rules(watched: Asked) -> None:
    [group] = watched("rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in RULES]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
