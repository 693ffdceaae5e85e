"""Join the Ray cluster this job was submitted to, or start one on this machine for the length of the job."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from raytriever.cluster.launch_doors import tighten_token
from raytriever.cluster.submitted import COMPILED, LOCATORS, SUBMITTED
from raytriever.errors import ConfigError


@contextmanager
def ray_session(num_workers: int) -> Iterator[None]:
    """Ray, connected.

    Args:
        num_workers: how many training processes will be asked for; a local cluster gets logical CPUs for them and
            for their coordinators, because Ray hangs silently where one is missing.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    # Only the first is heard of what Ray logs of itself: progress and errors are told by us.
    common = {"logging_level": logging.ERROR, "log_to_driver": False}
    ended_by = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            ray.init(address=address, runtime_env=_runtime_env(), **common)
        else:
            tighten_token()
            cpus = max(len(os.sched_getaffinity(0)), num_workers + 2)
            # `local` keeps out of any other cluster recorded on this machine.
            ray.init(address="local", num_cpus=cpus, **common)
    except ConnectionError as error:
        raise ConfigError(
            "no Ray cluster answers",
            f"RAY_ADDRESS={address}",
            "start it with `ray start --head`; where it wants a token, set RAY_AUTH_MODE=token; or unset RAY_ADDRESS",
        ) from error
    except AuthenticationError as error:
        raise ConfigError(
            f"wants a token, or another one ({' '.join(str(error).split())[:200]})",
            f"RAY_ADDRESS={address}",
            "set RAY_AUTH_MODE=token, with the cluster's token in ~/.ray/auth_token or RAY_AUTH_TOKEN",
        ) from error
    except SystemExit as ended:  # by the handler of SIGTERM that `ray.init` puts in the place of ours
        raise KeyboardInterrupt from ended
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ended_by)
    try:
        yield
    finally:
        ray.shutdown()


def gpus() -> int:
    """GPUs of the cluster that is connected, or that it would start nodes for: one that grows from none has none yet.

    An autoscaler tells Ray what its types of nodes have; that Ray Train asks the same before it waits for a place is
    why this is asked of a part of Ray that it does not document.
    """
    there = ray.cluster_resources().get("GPU", 0)
    could_be = ray._private.state.state.get_max_resources_from_cluster_config() or {}
    return int(max(there, could_be.get("GPU", 0)))


def _runtime_env() -> dict[str, Any] | None:
    """What workers of a joined cluster need besides what they have: the code that this process runs.

    None where that is the installed one. Only where it is needed: no worker that stands ready is used where it is
    given. What the submission of a job names itself stays as it is; Ray would refuse to be told twice.
    """
    code = str(Path(__file__).parents[2])
    if code not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        return None
    job = json.loads(os.environ.get(SUBMITTED) or "{}").get("runtime_env") or {}
    wanted = {"PYTHONPATH": code} | {name: os.environ[name] for name in (COMPILED, LOCATORS) if name in os.environ}
    left = {name: value for name, value in wanted.items() if name not in (job.get("env_vars") or {})}
    return {"env_vars": left} if left else None
