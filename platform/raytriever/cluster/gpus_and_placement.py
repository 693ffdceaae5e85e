"""Numbers of nodes, GPUs and free slots of the cluster, and the GPUs that a process may see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray

from raytriever.cluster.ray_private import expected_gpus, free_resources, is_worker
from raytriever.core.errors import ConfigError, setting

# Options of actors that need no CPU but should run on different nodes. Ray sends an actor that needs no resource to a
# random node, without regard to the others. So half of all pairs of actors on two nodes would share a node. A byte of
# memory is enough as a resource.
SPREAD: dict[str, Any] = {"scheduling_strategy": "SPREAD", "memory": 1}


def hide_unreserved_gpus() -> None:
    """Hide all GPUs from this actor or task unless it has reserved some. In a driver, do nothing.

    Ray sets CUDA_VISIBLE_DEVICES only for reserved GPUs. Without it, a process would use the first GPU of its node, on
    which another process may train. CUDA reads the variable once, so call this before anything that uses CUDA."""
    if is_worker() and not ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def count_nodes() -> int:
    """Return the number of live nodes of the cluster."""
    return sum(bool(node["Alive"]) for node in ray.nodes())


def count_gpus() -> int:
    """Return the number of GPUs of the connected cluster, including those that its autoscaler could add."""
    return int(max(ray.cluster_resources().get("GPU", 0), expected_gpus()))


def gpus_of_trial(trial_gpus: float | None) -> float:
    """Return the number of GPUs for each worker of a trial or of a variant of a study; 0 on a cluster without GPUs."""
    if trial_gpus is None:
        return 1.0 if count_gpus() else 0.0
    if not count_gpus():
        raise ConfigError("the cluster has no GPU", setting("trial_gpus"), "omit it, or add GPUs")
    return trial_gpus


def count_slots(workers: int, gpus: float) -> int:
    """Return how many trials can run at a time on the cluster, with nodes that it could add; at least 1."""
    # A worker's fraction must come from one GPU: unused fractions of two GPUs cannot be combined for a third worker.
    free = count_gpus() * int(1 / gpus + 1e-6) if gpus else ray.cluster_resources().get("CPU", 0)
    return max(1, int(free / workers))


def room_for(resources: Mapping[str, float]) -> int:
    """Return how many processes with these resources the cluster has room for now."""
    needed = {name: amount for name, amount in resources.items() if amount > 0}
    return sum(min(int(free.get(name, 0) / needed[name] + 1e-6) for name in needed) for free in free_resources())


def spare_gpus(needed: int) -> int:
    """Return the number of whole GPUs that are free now. GPUs that training needs are not counted, even while its
    processes restart."""
    total = ray.cluster_resources()
    free = ray.available_resources() or total  # a new session may not know its free resources yet
    return max(0, int(min(free.get("GPU", 0), total.get("GPU", 0) - needed)))
