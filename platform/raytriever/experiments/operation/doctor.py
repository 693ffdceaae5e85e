"""Checks of this machine and its servers: devices, Ray, MLflow, disks and locks.

Nothing heavy is imported, and each server gets one request. All checks run in parallel. A check that takes longer than
`SECONDS`, for example because a disk's server is down, is reported as an error."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from raytriever.core.errors import UserError
from raytriever.core.machine import LONGEST_TEMPORARY
from raytriever.core.masking import masked
from raytriever.core.paths import runs_folder
from raytriever.core.store.cache import cache_folder
from raytriever.core.store.capacity import format_size
from raytriever.core.store.disk import check_writable
from raytriever.core.store.lock import owner_of
from raytriever.tracking.mlflow_tracker import check_uri, tracking_uri

OK, WARNING, ERROR = "ok", "warning", "error"
SECONDS, REQUEST_SECONDS = 12.0, 8.0  # timeout of all checks together, and timeout of one request
MIN_FREE = 5 * 10**9  # a disk with fewer free bytes gives a warning

Finding = tuple[str, str]  # level and text


@dataclass(frozen=True)
class Check:
    """One check of the machine. `probe` yields a level (`ok`, `warning` or `error`) and a text for each thing that it
    examines."""

    name: str
    probe: Callable[[], Iterator[Finding]]
    remedy: str


def examine(seconds: float = SECONDS) -> list[Finding]:
    """Return the level and the line of each finding, in the order of `CHECKS`. A check that times out is an error."""
    late = f"no answer within {seconds:g} s; a disk or a server may be down"
    findings: dict[Check, list[Finding]] = {check: [(ERROR, late)] for check in CHECKS}

    def run(check: Check) -> None:
        try:
            findings[check] = list(check.probe())
        except OSError as error:
            findings[check] = [(ERROR, f"the check failed ({error})")]

    threads = [threading.Thread(target=run, args=(check,), daemon=True) for check in CHECKS]
    end = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [
        (level, f"{level:<8} {check.name:<8} {text}" + (f"; {check.remedy}" if level != OK and check.remedy else ""))
        for check in CHECKS
        for level, text in findings[check]
    ]


def _devices() -> Iterator[Finding]:
    program = shutil.which("nvidia-smi")
    if program is None:
        yield OK, "no GPU: everything runs on the CPU"
        return
    command = [program, "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=REQUEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield ERROR, f"nvidia-smi does not answer within {REQUEST_SECONDS:g} s"
        return
    if done.returncode:
        yield ERROR, f"nvidia-smi: {' '.join(done.stdout.split())[:200]}"
        return
    for number, line in enumerate(done.stdout.splitlines()):
        yield OK, f"GPU {number}: {line.strip()}"
    with suppress(PackageNotFoundError):
        if version("torch").endswith("+cpu"):
            yield WARNING, "torch is built without CUDA"


def _ray() -> Iterator[Finding]:
    address = os.environ.get("RAY_ADDRESS", "")
    about = f"RAY_ADDRESS={masked(address)}"
    if address in ("", "local"):
        yield OK, "RAY_ADDRESS is not set: each command starts Ray on this machine and stops it at the end"
        return
    if address == "auto":
        yield OK, f"{about}: commands use the Ray cluster that runs on this machine"
        return
    try:
        parts = urlsplit(address if "://" in address else f"ray://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        yield ERROR, f"{about} is not an address HOST:PORT"
        return
    try:
        socket.create_connection((host, port), REQUEST_SECONDS).close()
    except OSError as error:
        yield ERROR, f"{about} does not answer ({error})"
        return
    if "://" in address:
        yield OK, f"{about} accepts connections"
        return
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", f"{host}:{port}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=REQUEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield ERROR, f"{about} accepts connections but does not answer"
        return
    if done.returncode:
        yield ERROR, f"{about} is not a healthy Ray head of this version, or requires a token"
    else:
        yield OK, f"{about} is healthy"


def _mlflow() -> Iterator[Finding]:
    uri = tracking_uri()
    name = masked(uri)
    try:
        check_uri(uri)
    except UserError as error:
        yield ERROR, f"{name}: {error.what}"
        return
    if not uri.startswith(("http://", "https://")):
        yield OK, f"{name} can be used"
        return
    parts = urlsplit(uri)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl().rstrip("/")
    try:
        with urllib.request.urlopen(f"{bare}/health", timeout=REQUEST_SECONDS):
            yield OK, f"{name} answers"
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):  # MLflow's response to a request without a password
            yield OK, f"{name} answers and requires a password"
        else:
            yield ERROR, f"{name} answers with status {error.code}, unlike a working MLflow server"
    except (OSError, ValueError) as error:
        yield ERROR, f"{name} does not answer ({masked(str(getattr(error, 'reason', None) or error))})"


def _disks() -> Iterator[Finding]:
    variable = "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"
    if len(os.fsencode(os.environ.get(variable, ""))) > LONGEST_TEMPORARY:
        text = (
            f"{variable}={os.environ[variable]} is too long for the sockets of Ray (at most {LONGEST_TEMPORARY} bytes)"
        )
        yield ERROR, text
    home, temporary = Path.home(), Path(tempfile.gettempdir())
    for name, path in {"home": home, "runs": runs_folder(), "cache": cache_folder(), "temporary": temporary}.items():
        try:
            check_writable(path)
        except UserError as error:
            yield ERROR, f"{name} {path}: {error.what}"
            continue
        existing = Path(os.path.abspath(path))
        while not existing.exists():
            existing = existing.parent
        space = shutil.disk_usage(existing)
        text = f"{name} {path}: {format_size(space.free)} free of {format_size(space.total)}"
        yield WARNING if space.free < MIN_FREE else OK, text


def _locks() -> Iterator[Finding]:
    count = 0
    for folder in (runs_folder(), cache_folder(), cache_folder() / "datasets", cache_folder() / "embeddings"):
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            owner = owner_of(path)
            if owner is not None:
                count += 1
                yield OK, f"{path}: in use by {owner}"
    if not count:
        yield OK, "no run and no cache entry is locked"


CHECKS = [
    Check("devices", _devices, "repair the driver; for torch with CUDA see docs/how-to/install.md"),
    Check(
        "Ray",
        _ray,
        "start Ray with `ray start --head`, or correct or unset RAY_ADDRESS; if the head requires a token, set "
        "RAY_AUTH_MODE=token",
    ),
    Check("MLflow", _mlflow, "start a server with `mlflow server`, or correct MLFLOW_TRACKING_URI"),
    Check(
        "disks",
        _disks,
        "free space with `raytriever runs clean` and `raytriever cache prune`, or set HOME, RAYTRIEVER_RUNS, "
        "RAYTRIEVER_CACHE or RAY_TMPDIR to another folder",
    ),
    Check("locks", _locks, ""),
]
