"""GPUs and placement of all workers, actors and tasks: how many GPUs each gets, and on which nodes it runs.

Training workers and trials get a whole GPU or `--trial-gpus` each, and actors that encode get `--actor-gpus`. Evaluator
and miner get a GPU that training leaves (`spare_gpus`). Where the cluster has no GPU, all compute on CPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray

from raytriever.cluster.ray_private import expected_gpus, free_resources, is_worker
from raytriever.core.errors import ConfigError, setting

# Placement of actors that need no CPU but should run on different nodes. Ray sends an actor that needs no resource to a
# random node, without regard to the others. So half of all pairs of actors on two nodes would share a node. Reserving
# one byte of memory is enough.
SPREAD: dict[str, Any] = {"scheduling_strategy": "SPREAD", "memory": 1}


def actor_options(cpus: int, gpus: float) -> dict[str, Any]:
    """Return Ray's options for an actor. Without CPUs and GPUs of its own, it is placed by `SPREAD`."""
    return {"num_cpus": cpus, "num_gpus": gpus, **({} if cpus or gpus else SPREAD)}


def task_options(gpus: float) -> dict[str, Any]:
    """Return Ray's options for a task with one CPU. `DEFAULT` keeps it out of a placement group of the caller, which
    may have no resources left."""
    return {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": "DEFAULT"}


def worker_resources(use_gpu: bool, gpus: float) -> dict[str, float] | None:
    """Return the resources of each training worker; None, for Ray's default, if it uses no GPU."""
    return {"CPU": 1, "GPU": gpus} if use_gpu else None


def resources_of_trial(workers: int, gpus: float) -> dict[str, float]:
    """Return the resources of a trial's own process: no CPU or GPU if several workers reserve their own."""
    if workers > 1:
        return {"node:__internal_head__": 0.001}
    return {"CPU": 1.0, "GPU": gpus} if gpus else {"CPU": 1.0}


def hide_unreserved_gpus() -> None:
    """Hide all GPUs from this actor or task unless it has reserved some. In a driver, do nothing.

    Ray sets CUDA_VISIBLE_DEVICES only for reserved GPUs. Without this call, a process would use the node's first GPU,
    on which another process may train. CUDA reads the variable only once, so call this before anything uses CUDA."""
    if is_worker() and not ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def count_nodes() -> int:
    """Return the number of live nodes of the cluster."""
    return sum(bool(node["Alive"]) for node in ray.nodes())


def count_gpus() -> int:
    """Return the number of GPUs of the connected cluster, including those that its autoscaler could add."""
    return int(max(ray.cluster_resources().get("GPU", 0), expected_gpus()))


def gpus_each(name: str, given: float | None, default: float | None = None) -> float:
    """Return the number of GPUs of each process, as `given` by the setting `name`. If it is None, return the default,
    or else 1 if the cluster has or could add GPUs, and 0 otherwise. Raise `ConfigError` if it has none to give."""
    if given is None:
        return float(count_gpus() > 0) if default is None else default
    if given and not count_gpus():  # Ray would wait for a GPU without a message
        raise ConfigError("the cluster has no GPU", setting(name), "omit it to use CPUs, or add a node with a GPU")
    return given


def count_slots(workers: int, gpus: float) -> int:
    """Return how many trials can run at a time on the cluster, including nodes that it could add; at least 1."""
    # A worker's fraction must come from a single GPU: unused fractions of two GPUs cannot be combined for one worker.
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
