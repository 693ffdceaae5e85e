"""Every use of undocumented Ray APIs, as small functions. Check this file first with a new version of Ray.

Each function imports what it needs when it is called, because every worker loads this file. One more file uses private
APIs: `train/controller_callbacks.py`, because Ray Train's callback classes have private base classes."""

from __future__ import annotations


def head_address() -> str:
    """Return `HOST:PORT` of the Ray cluster on this machine, as `RAY_ADDRESS=auto` finds it."""
    from ray._private import services

    return str(services.canonicalize_bootstrap_address("auto"))


def expected_gpus() -> float:
    """Return the maximum number of GPUs of the connected cluster, as its autoscaler reports it; 0 without autoscaler.

    Ray Train reads the same value."""
    from ray._private import state

    resources = state.state.get_max_resources_from_cluster_config() or {}
    return float(resources.get("GPU", 0))


def free_resources() -> list[dict[str, float]]:
    """Return the free resources of each live node."""
    from ray._private import state

    return list(state.available_resources_per_node().values())


def is_worker() -> bool:
    """Return True if this process runs actors or tasks, False in a driver and without a Ray session."""
    from ray._private.worker import WORKER_MODE, global_worker

    return bool(global_worker.mode == WORKER_MODE)


def kill_at_shutdown() -> None:
    """Let `ray.shutdown` kill the processes of this session at once.

    The processes block SIGTERM (`signals_blocked`), so Ray would wait a second for each of them."""
    from ray._private import worker

    node = worker._global_node
    stop = node.kill_all_processes
    node.kill_all_processes = lambda check_alive=True, allow_graceful=False, wait=False: stop(check_alive, False, wait)


def forbid_auto_connect() -> None:
    """If this process has no Ray session, prevent functions of Ray from starting one."""
    from ray._private import auto_init_hook

    auto_init_hook.enable_auto_connect = False
