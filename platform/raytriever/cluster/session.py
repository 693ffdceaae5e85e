"""Join the Ray cluster this job was submitted to, or start one on this machine for the length of the job."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray.exceptions import AuthenticationError

from raytriever.activity import activity
from raytriever.cluster.access import restrict_token_file
from raytriever.cluster.working_directory import COMPILED, LOCATORS, SUBMITTED
from raytriever.errors import ConfigError
from raytriever.interruption import hangups_blocked
from raytriever.locking import Claim, claims, join
from raytriever.reading.structured import parse_json
from raytriever.terminal import warn

# In which a cluster that is joined must accept a connection.
ANSWER_SECONDS = 5.0
# What Ray raises when its own processes do not come up in its time: plain `Exception` and `RuntimeError`.
TIMED_OUT = ("timed out during startup", "Failed to start GCS", "Timed out")
SHARED_MEMORY_BYTES = 1 << 30


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
            check_cluster()
            with activity(f"joining the Ray cluster at {address}"):
                ray.init(address=address, runtime_env=_runtime_env(), **common)
        else:
            restrict_token_file()
            _warn_of_small_shared_memory()
            cpus = max(len(os.sched_getaffinity(0)), num_workers + 2)
            # `local` keeps out of any other cluster recorded on this machine.
            with activity("starting Ray"), hangups_blocked():
                _start(lambda: ray.init(address="local", num_cpus=cpus, **common))
    except ConnectionError as error:
        raise _no_answer(str(address)) from error
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
        with activity("stopping Ray"):
            ray.shutdown()


def _no_answer(address: str, reason: str = "") -> ConfigError:
    return ConfigError(
        "no Ray cluster answers" + (f" ({reason})" if reason else ""),
        f"RAY_ADDRESS={address}",
        "start it with `ray start --head`; where it wants a token, set RAY_AUTH_MODE=token; or unset RAY_ADDRESS",
    )


def check_cluster() -> None:
    """Refuse a `RAY_ADDRESS` at which nothing listens: Ray would try it for a minute or two.

    Called before any work, because the session itself may begin an hour later.

    Raises:
        ConfigError: it has no port, or no connection comes about in `ANSWER_SECONDS`.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address or address == "local" or ray.is_initialized():
        return
    try:
        place = services.canonicalize_bootstrap_address(address) if address == "auto" else address
    except ConnectionError as error:
        raise _no_answer(address) from error
    host, colon, port = str(place).removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(
            "is no address of a Ray cluster", f"RAY_ADDRESS={address}", "give HOST:PORT, ray://HOST:PORT, auto or local"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _no_answer(address, reason) from error


def _start(start: Callable[[], object]) -> None:
    """Start Ray; a start that takes too long, as on a busy machine, is tried once more.

    Raises:
        ConfigError: it took too long again.
    """
    for last in (False, True):
        try:
            start()
            return
        except Exception as error:  # of no class of its own
            if not any(words in str(error) for words in TIMED_OUT):
                raise
            ray.shutdown()
            if last:
                raise ConfigError(
                    "did not start, tried twice",
                    "Ray",
                    "see its logs in /tmp/ray/session_latest/logs; free memory and processors, or give RAY_ADDRESS",
                ) from error
            warn("Ray did not start in time; trying once more")


def _warn_of_small_shared_memory(folder: Path = Path("/dev/shm")) -> None:
    """Print a line where Ray's objects do not fit into shared memory and go to a disk instead."""
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    if free < SHARED_MEMORY_BYTES:
        warn(
            f"{folder} has only {free / 1e6:.0f} MB free, so Ray keeps its objects in /tmp, which is slower; "
            "free some of it, or start the container with --shm-size=2g"
        )


@dataclass(frozen=True)
class DriverContext:
    """Where a driver works, for the Ray workers that write on its behalf; made by the driver, entered by each worker.

    Args:
        directory: relative paths are meant from it.
        claims: what the driver has locked. A worker that outlives a killed driver commits nothing there once another
            command has taken it.
    """

    directory: str = field(default_factory=os.getcwd)
    claims: tuple[Claim, ...] = field(default_factory=claims)

    def enter(self) -> None:
        """Work there, in this process."""
        os.chdir(self.directory)
        join(self.claims)


def count_gpus() -> int:
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
    given = os.environ.get(SUBMITTED) or "{}"
    job = parse_json(given, SUBMITTED, dict[str, Any], "submit the job again").get("runtime_env") or {}
    wanted = {"PYTHONPATH": code} | {name: os.environ[name] for name in (COMPILED, LOCATORS) if name in os.environ}
    left = {name: value for name, value in wanted.items() if name not in (job.get("env_vars") or {})}
    return {"env_vars": left} if left else None
