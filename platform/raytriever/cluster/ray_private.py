"""Every use of undocumented Ray, as small functions; a new version of Ray is checked here first.

Each function imports what it needs when it is called, because every worker loads this file. The other exception is
`train/controller.py`: Ray Train loads its callback classes by name, and their base classes are private."""

from __future__ import annotations


def head_address() -> str:
    """Return `HOST:PORT` of the Ray cluster that runs on this machine, as `RAY_ADDRESS=auto` finds it."""
    from ray._private import services

    return str(services.canonicalize_bootstrap_address("auto"))


def expected_gpus() -> float:
    """Return the number of GPUs that the connected cluster may have at most; 0 without an autoscaler.

    An autoscaler reports the resources of its node types to Ray. Ray Train reads the same value before it waits.
    """
    from ray._private import state

    resources = state.state.get_max_resources_from_cluster_config() or {}
    return float(resources.get("GPU", 0))


def free_resources() -> list[dict[str, float]]:
    """Return the resources that are free now on each node that is alive."""
    from ray._private import state

    return list(state.available_resources_per_node().values())


def is_worker() -> bool:
    """Return whether this process runs actors or tasks; False in a driver and without a Ray session."""
    from ray._private.worker import WORKER_MODE, global_worker

    return bool(global_worker.mode == WORKER_MODE)


def kill_at_shutdown() -> None:
    """Let `ray.shutdown` kill the processes of this session at once.

    They have SIGTERM blocked (`signals_blocked`), and Ray would wait for a second for each of them.
    """
    from ray._private import worker

    node = worker._global_node
    stop = node.kill_all_processes
    node.kill_all_processes = lambda check_alive=True, allow_graceful=False, wait=False: stop(check_alive, False, wait)


def forbid_auto_connect() -> None:
    """Stop this process from starting a Ray session when a call needs one and none exists."""
    from ray._private import auto_init_hook

    auto_init_hook.enable_auto_connect = False
