"""Join the Ray cluster this job was submitted to, or start one on this machine for the length of the job."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

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
    try:
        if address:
            ray.init(address=address, **common)
        else:
            cpus = max(os.cpu_count() or 1, num_workers + 2)
            # `local` keeps out of any other cluster recorded on this machine.
            ray.init(address="local", num_cpus=cpus, **common)
    except ConnectionError as error:
        raise ConfigError(
            "no Ray cluster answers",
            f"RAY_ADDRESS={address}",
            "start it with `ray start --head`, or unset RAY_ADDRESS",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
