"""Heads of clusters: one is killed and started again, and one tells of nodes that would come."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator

import pytest
import ray
from processes import losses, wait_for
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from raytriever.cluster.gpus_and_placement import count_gpus
from raytriever.evaluation.results import Results

STEPS = ["--eval-steps", "50", "--patience", "99", "--max-steps", "400", "--checkpoint-steps", "20"]


@pytest.fixture
def clusters() -> Iterator[list[Cluster]]:
    """Clusters that are shut down with the test."""
    running: list[Cluster] = []
    yield running
    for cluster in running:
        cluster.shutdown()
    # Ray leaves processes unwaited for and sockets open; if they were reported later, another test would be blamed.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_command_goes_on_after_the_head_was_killed_and_started_again(
    command_line: Callable, clusters: list[Cluster], started: list
) -> None:
    cli = command_line()
    words = ["train", *cli.settings, *STEPS, "--output"]
    killed = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cli.run(*words, "peace", RAY_ADDRESS=killed.address)
    started.append(cli.start(*words, "run", RAY_ADDRESS=killed.address))
    wait_for(lambda: list((cli.folder / "run" / "checkpoints").glob("step-*")), 200, started[0])
    killed.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    assert started[0].wait(200) != 0, "a run without its head has not ended well"
    assert not (cli.folder / "run" / "metrics.json").exists()

    clusters.append(Cluster(initialize_head=True, head_node_args={"num_cpus": 2}))
    _, err = cli.run(*words, "run", RAY_ADDRESS=clusters[0].address)
    assert "Resumed from checkpoint" in err
    assert losses(cli.folder / "run") == losses(cli.folder / "peace")
    figures = [Results.read(cli.folder / name / "evaluation").models for name in ("peace", "run")]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_gpus_that_would_come_count_before_they_are_there(clusters: list[Cluster]) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    clusters.append(cluster)
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
