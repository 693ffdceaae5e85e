"""Ray session of a job: join the cluster at `RAY_ADDRESS`, or start one on this machine."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import AuthenticationError
from ray.job_config import JobConfig

from raytriever.cluster.gpus_and_placement import count_gpus, hide_unreserved_gpus, task_options
from raytriever.cluster.ray_private import head_address, kill_at_shutdown
from raytriever.cluster.working_directory import NUMBA_CACHE, NUMBA_LOCATORS, SUBMITTED
from raytriever.core.errors import ConfigError, UserError
from raytriever.core.interruption import check_interrupted, signals_blocked
from raytriever.core.machine import LONGEST_TEMPORARY, safe_imports, usable_cores
from raytriever.core.paths import expanded
from raytriever.core.progress import activity
from raytriever.core.reading.json_and_yaml import parse_json
from raytriever.core.store.lock import LockClaim, claims, join
from raytriever.core.store.object_stores import COPIES, copies_folder, trust_stores
from raytriever.core.terminal import warn

T = TypeVar("T")
CONNECT_SECONDS = 5.0  # time in which a cluster must accept a connection
POLL_SECONDS = 0.2  # interval of checks for an interruption
# Messages of Ray if its own processes do not start in time. Ray raises plain `Exception` and `RuntimeError`.
START_TIMEOUTS = ("timed out during startup", "Failed to start GCS", "Timed out")
VERSION_MISMATCH = "Version mismatch"  # part of the text of Ray's `RuntimeError`


@contextmanager
def ray_session(num_workers: int) -> Iterator[None]:
    """Connect to Ray for the block. An existing session is used, and stays open. Raise `ConfigError` if no cluster
    answers at `RAY_ADDRESS`, the cluster refuses the token, or Ray does not start on this machine.

    A local cluster gets logical CPUs for the `num_workers` training processes and for their coordinators. Ray
    would wait without a message if a CPU were missing."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    # Ray's own logs are off: raytriever logs progress and errors.
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    sigterm_handler = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            check_cluster()
            with activity(f"joining the Ray cluster at {address}"), safe_imports():
                ray.init(address=address, runtime_env=_runtime_env(), job_config=_JobConfig(), **quiet)
        else:
            _restrict_token_file()
            cpus = max(usable_cores(), num_workers + 2)
            # By default, Ray's workers have the lowest priority: on a busy machine a step took 154 s instead of 6 s.
            os.environ.setdefault("RAY_worker_niceness", "0")
            # `local` never joins another cluster that is recorded on this machine.
            with activity("starting Ray"), signals_blocked(), safe_imports():
                _start(lambda: ray.init(address="local", num_cpus=cpus, job_config=_JobConfig(), **quiet))
                kill_at_shutdown()
    except ConnectionError as error:
        raise _no_answer(str(address)) from error
    except RuntimeError as error:
        if VERSION_MISMATCH not in str(error):
            raise
        found = re.findall(r"(Ray|Python): (\S+)", str(error))  # versions of the cluster, then of this process
        theirs, ours = (" and ".join(f"{name} {version}" for name, version in half) for half in (found[:2], found[2:]))
        what = f"the cluster has {theirs}, and host {socket.gethostname()} has {ours}"
        raise ConfigError(what, f"RAY_ADDRESS={address}", "install the same versions on every host") from error
    except OSError as error:
        if "AF_UNIX" not in str(error):
            raise
        name = "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"
        what = "is too long: the paths of Ray's sockets below it have more than 107 bytes"
        remedy = f"set RAY_TMPDIR to a folder of at most {LONGEST_TEMPORARY} bytes"
        raise ConfigError(what, f"{name}={os.environ.get(name)}", remedy) from error
    except AuthenticationError as error:
        what = f"the cluster requires a token that this process does not have ({' '.join(str(error).split())[:200]})"
        remedy = "set RAY_AUTH_MODE=token, with the cluster's token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        raise ConfigError(what, f"RAY_ADDRESS={address}", remedy) from error
    except SystemExit as error:  # `ray.init` replaces our SIGTERM handler by one that raises `SystemExit`
        raise KeyboardInterrupt from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, sigterm_handler)
    try:
        yield
    finally:
        with activity("stopping Ray"):
            ray.shutdown()


class _JobConfig(JobConfig):
    """Ray job whose workers do not import files from the folder in which the driver starts.

    The driver cannot leave the folder during `ray.init`, because its other threads, such as those of trackers, use
    relative paths. Workers that need the folder enter it by `DriverContext`."""

    _py_driver_sys_path: list[str]  # `ray.init` adds the folder to this list

    def _serialize(self) -> bytes:
        here = os.path.abspath(os.curdir)
        self._py_driver_sys_path = [path for path in self._py_driver_sys_path if path != here]
        serialized: bytes = super()._serialize()
        return serialized


def run_with_gpu(remote: Callable[[], T], here: Callable[[], T], gpus: float = 1.0) -> T:
    """Call a function in a Ray task with `gpus` GPUs if the cluster has GPUs, else in this process; return its result.

    This process may run on a node without a GPU. Even if the node has a GPU, a task has an advantage: after it, all GPU
    memory is free for a worker. The task calls `remote`, so it and its result must be picklable."""
    import torch

    if ray.is_initialized() or torch.cuda.is_available() or os.environ.get("RAY_ADDRESS"):
        with ray_session(num_workers=1):
            if count_gpus():
                task = ray.remote(**task_options(gpus))(_run_in_task)
                reference = task.remote(remote, DriverContext())
                while not ray.wait([reference], timeout=POLL_SECONDS)[0]:
                    check_interrupted()  # only the main thread gets a KeyboardInterrupt by itself
                result: T | UserError = ray.get(reference)
                if isinstance(result, UserError):
                    raise result
                return result
    return here()


def _run_in_task(function: Callable[[], T], driver: DriverContext) -> T | UserError:
    driver.enter()
    return result_or_error(function)


def result_or_error(function: Callable[[], T]) -> T | UserError:
    """Return the result of a function, or the user error that it raises. Ray would wrap a raised error."""
    try:
        return function()
    except UserError as error:
        return error


def _restrict_token_file() -> None:
    """Let only this user read the session's token. Ray would create the file with the permissions of the umask."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token" or os.environ.get("RAY_AUTH_TOKEN"):
        return
    file = expanded(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(secrets.token_hex(32))
        if file.stat().st_mode & 0o077 and file.stat().st_uid == os.geteuid():
            file.chmod(0o600)


def check_cluster() -> None:
    """Raise `ConfigError` unless a process listens at `RAY_ADDRESS`, within `CONNECT_SECONDS`. Ray itself would try for
    a minute or two. Call this before any work, because the session may not start until an hour later."""
    address = os.environ.get("RAY_ADDRESS")
    if not address or address == "local" or ray.is_initialized():
        return
    try:
        target = head_address() if address == "auto" else address
    except ConnectionError as error:
        raise _no_answer(address) from error
    host, colon, port = target.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        remedy = "give HOST:PORT, ray://HOST:PORT, auto or local"
        raise ConfigError("is not the address of a Ray cluster", f"RAY_ADDRESS={address}", remedy)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _no_answer(address, reason) from error


def _no_answer(address: str, reason: str = "") -> ConfigError:
    remedy = "start a cluster (`ray start --head`), or unset RAY_ADDRESS; for a token, set RAY_AUTH_MODE=token"
    return ConfigError("no Ray cluster answers" + (f" ({reason})" if reason else ""), f"RAY_ADDRESS={address}", remedy)


def _start(start: Callable[[], object]) -> None:
    """Start Ray. If that takes too long, as on a busy machine, try once more."""
    for is_last in (False, True):
        try:
            start()
            return
        except Exception as error:  # Ray has no exception class for this failure
            if not any(words in str(error) for words in START_TIMEOUTS):
                raise
            ray.shutdown()
            if is_last:
                remedy = f"read its logs in {_own_logs()}, free memory and cores, or set RAY_ADDRESS to a cluster"
                raise ConfigError("did not start in two attempts", "Ray", remedy) from error
            warn("Ray did not start in time; trying once more")


def _own_logs() -> str:
    """Return the log folder of the Ray session of this process. `session_latest` may belong to another user."""
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
    sessions = sorted(folder.glob(f"session_*_{os.getpid()}")) or [folder / "session_*"]
    return str(sessions[-1] / "logs")


@dataclass(frozen=True)
class DriverContext:
    """Working directory and file locks of the driver, for Ray workers that write on its behalf.

    The driver creates it, and each worker enters it."""

    directory: str = field(default_factory=os.getcwd)  # folder at which relative paths start
    # Folder with local copies of object stores; its path is the same on every node.
    copies: str = field(default_factory=lambda: str(copies_folder()))
    # Locks of the driver. If a worker outlives a killed driver, it commits nothing in a directory that another command
    # has locked since.
    claims: tuple[LockClaim, ...] = field(default_factory=claims)

    def enter(self) -> None:
        """Let this process work in the directory, share the locks, and see only GPUs that it has reserved."""
        hide_unreserved_gpus()
        os.environ[COPIES] = self.copies
        trust_stores()
        with suppress(FileNotFoundError):  # a node without this folder needs no path relative to it
            os.chdir(self.directory)
        join(self.claims)


def _runtime_env() -> dict[str, Any] | None:
    """Return the environment in which workers of a joined cluster run the code of this process.

    Return None if the code is installed, because Ray does not use its idle workers for a job with an environment.
    Variables that the submitted job sets already are left out, because Ray refuses a variable that is set twice."""
    code = str(Path(__file__).parents[2])
    if code not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        return None
    submission = os.environ.get(SUBMITTED) or "{}"
    submitted = parse_json(submission, SUBMITTED, dict[str, Any], "submit the job again").get("runtime_env") or {}
    cache = {name: os.environ[name] for name in (NUMBA_CACHE, NUMBA_LOCATORS) if name in os.environ}
    variables = {"PYTHONPATH": code} | cache
    missing = {name: value for name, value in variables.items() if name not in (submitted.get("env_vars") or {})}
    return {"env_vars": missing} if missing else None
