"""Several nodes on one machine: one that trains is taken away, the head is killed, and runs end as in peace."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from processes import losses
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from raytriever.cluster.placement import count_gpus

REPOSITORY = Path(__file__).parent.parent.parent
STEPS = 400
SETTINGS = [
    "--eval-steps",
    "50",
    "--patience",
    "99",
    "--keep",
    "2",
    "--max-steps",
    str(STEPS),
    "--checkpoint-steps",
    "20",
]


def newest(run: Path) -> int:
    """The step of the newest checkpoint."""
    return max((int(path.name[5:]) for path in run.glob("checkpoints/step-*")), default=0)


def wait_for(
    what: Callable[[], Any], process: subprocess.Popen[str], said: Callable[[], str], seconds: float = 200
) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, said()
        assert time.monotonic() < end, f"it did not happen in time: {said()}"
        time.sleep(0.02)


class Nodes:
    """Clusters and runs that end with the test."""

    def __init__(self) -> None:
        self.clusters: list[Cluster] = []
        self.processes: list[subprocess.Popen[str]] = []

    def cluster(self, **head: Any) -> Cluster:
        self.clusters.append(Cluster(initialize_head=True, head_node_args=head))
        return self.clusters[-1]

    def run(
        self, cli: Any, cluster: Cluster, name: str, *words: str
    ) -> tuple[subprocess.Popen[str], Callable[[], str]]:
        errors = cli.folder / f"{name}-{len(self.processes)}.err"
        with errors.open("w") as stream:
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(REPOSITORY / "jobs" / "train.py"),
                    *cli.settings,
                    *SETTINGS,
                    *words,
                    "--output",
                    name,
                ],
                cwd=cli.folder,
                env=cli.environment | {"RAY_ADDRESS": cluster.address},
                stdout=subprocess.DEVNULL,
                stderr=stream,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process, errors.read_text

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        while self.clusters:
            self.clusters.pop().shutdown()
        # Ray leaves processes unwaited for and sockets open; if they were reported later, another test would be blamed.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    cluster_nodes = Nodes()
    yield cluster_nodes
    cluster_nodes.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_command_goes_on_after_the_head_was_killed_and_started_again(
    command_line: Callable, nodes: Nodes
) -> None:
    cli = command_line()
    cluster = nodes.cluster(num_cpus=2)
    process, said = nodes.run(cli, cluster, "peace")
    assert process.wait(300) == 0, said()

    process, said = nodes.run(cli, cluster, "run")
    wait_for(lambda: newest(cli.folder / "run") >= 60, process, said)
    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    assert process.wait(200) != 0, "a run without its head has not ended well"
    assert not (cli.folder / "run" / "metrics.json").exists()
    nodes.clusters.remove(cluster)

    process, said = nodes.run(cli, nodes.cluster(num_cpus=2), "run")
    assert process.wait(300) == 0, said()
    assert "Resumed from checkpoint" in said()
    assert losses(cli.folder / "run") == losses(cli.folder / "peace")
    figures = [json.loads((cli.folder / name / "metrics.json").read_text()) for name in ("peace", "run")]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_gpus_that_would_come_count_before_they_are_there(nodes: Nodes) -> None:
    cluster = nodes.cluster(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        assert count_gpus() == 0
        # As the autoscaler of `ray up` and of KubeRay tells it.
        config = autoscaler_pb2.ClusterConfig()
        for name, resources in (("head", {"CPU": 4}), ("gpu-spot", {"CPU": 8, "GPU": 1})):
            group = config.node_group_configs.add(name=name, max_count=8)
            group.resources.update(resources)
        ray.experimental.internal_kv._internal_kv_put(
            ray._raylet.GCS_AUTOSCALER_CLUSTER_CONFIG_KEY.encode(),
            config.SerializeToString(),
            namespace=ray._raylet.GCS_AUTOSCALER_STATE_NAMESPACE.encode(),
        )
        assert count_gpus() == 8
    finally:
        ray.shutdown()
