"""Checks of this machine and its servers. Each check yields findings: a fact, a level and a remedy.

Nothing heavy is imported: versions come from package metadata, and a server gets one request. All checks run in
parallel. A check that does not end within `SECONDS`, such as one of a disk whose server is down, is an error.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from urllib.parse import urlsplit

from raytriever.errors import UserError
from raytriever.machine import (
    LONGEST_TEMPORARY,
    ensure_home,
    free_system_memory,
    memory_amounts,
    total_memory,
    usable_cores,
)
from raytriever.masking import masked
from raytriever.paths import expanded, runs_folder
from raytriever.store.cache import cache_folder
from raytriever.store.capacity import format_size
from raytriever.store.disk import check_writable
from raytriever.store.lock import owner_of
from raytriever.tracking.mlflow_tracker import check_uri, tracking_uri
from raytriever.tracking.trackers import examine_installed

OK, WARNING, ERROR = "ok", "warning", "error"
SECONDS, REQUEST_SECONDS = 12.0, 8.0  # time for all checks, and for one request
MIN_FREE, MIN_SHARED, MIN_MEMORY = 5 * 10**9, 10**9, 2 * 10**9  # bytes below which a check warns
_NEEDED = ("torch", "ray", "transformers", "tokenizers", "mlflow", "pyarrow", "numpy")
_OPTIONAL = ("deepspeed", "peft", "optuna", "onnxruntime", "openvino")
_FAISS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12")
_FEATURES = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "bf16", "amx_bf16": "AMX"}
_UNLIMITED = 1 << 60  # above it, version 1 of cgroups means no limit


@dataclass(frozen=True)
class Finding:
    """One line of the doctor; its level is `ok`, `warning` or `error`."""

    level: str
    about: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:<8} {self.about:<10} {self.text}" + (f"; {self.remedy}" if self.remedy else "")


def examine(seconds: float = SECONDS) -> list[Finding]:
    """Return the findings of all checks, in the order of `CHECKS`; a check that takes longer is an error."""
    findings: dict[str, list[Finding]] = {}

    def run(name: str, check: Callable[[], Iterator[Finding]]) -> None:
        try:
            findings[name] = list(check())
        except OSError as error:
            findings[name] = [Finding(ERROR, name, f"the check failed ({error})")]

    threads = [threading.Thread(target=run, args=one, name=one[0], daemon=True) for one in CHECKS.items()]
    for thread in threads:
        thread.start()
    timeout = threading.Event()
    timer = threading.Timer(seconds, timeout.set)
    timer.daemon = True
    timer.start()
    for thread in threads:
        while thread.is_alive() and not timeout.is_set():
            thread.join(0.05)
    timer.cancel()
    late = [Finding(ERROR, "", f"no answer within {seconds:g} s", "check whether a disk or a server is down")]
    return [
        line if line.about else Finding(line.level, name, line.text, line.remedy)
        for name in CHECKS
        for line in findings.get(name, late)
    ]


def _versions() -> Iterator[Finding]:
    yield Finding(OK, "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in _NEEDED:
        yield _version(name) or Finding(ERROR, name, "is not installed", "pip install -e .")
    faiss = [line for name in _FAISS if (line := _version(name)) is not None]
    yield faiss[0] if faiss else Finding(ERROR, "faiss", "is not installed", "see docs/how-to/install.md")
    optional = [f"{line.about} {line.text}" for name in _OPTIONAL if (line := _version(name)) is not None]
    yield Finding(OK, "optional", ", ".join(optional) or "none of " + ", ".join(_OPTIONAL))


def _version(name: str) -> Finding | None:
    """Compare the installed version of a package with the required one; None if it is not installed."""
    try:
        installed = version(name)
    except PackageNotFoundError:
        return None
    with suppress(PackageNotFoundError):
        for line in requires("raytriever") or ():
            words = line.replace("[", " ").replace(">=", " >= ").split(";")[0].split()
            if words and words[0] == name and ">=" in words:
                minimum = words[words.index(">=") + 1].split(",")[0]
                if _numbers(installed) < _numbers(minimum):
                    text, remedy = f"{installed} is older than {minimum}", f"pip install '{name}>={minimum}'"
                    return Finding(WARNING, name, text, remedy)
    return Finding(OK, name, installed)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split("+")[0].split(".") if part.isdigit()]


def _processor() -> Iterator[Finding]:
    lines = _lines(Path("/proc/cpuinfo"))
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown model")
    features = [name for flag, name in _FEATURES.items() if flag in flags]
    missing = [name for flag, name in _FEATURES.items() if flag not in flags]
    text = f"{model}: {', '.join(features) or 'no vector extensions'}" if flags else platform.processor() or model
    text += f" (without {', '.join(missing)})" if flags and missing else ""
    slow = platform.machine() in ("x86_64", "AMD64") and bool(flags) and "avx2" not in flags
    yield Finding(
        WARNING if slow else OK, "processor", text, "without AVX2 encoding is several times slower" if slow else ""
    )
    cores, limit = usable_cores(), _core_limit()
    text = f"{cores} usable of {os.cpu_count()}" + (f", limited to the time of {limit:g} by a cgroup" if limit else "")
    few = limit is not None and limit < cores
    yield Finding(
        WARNING if few else OK, "cores", text, f"set OMP_NUM_THREADS={max(1, int(limit or 1))}" if few else ""
    )


def _memory() -> Iterator[Finding]:
    total, free = total_memory(), memory_amounts().get("MemAvailable") or free_system_memory()
    limit, used = _number_in("memory.max", "memory/memory.limit_in_bytes"), _number_in("memory.current")
    text = f"{format_size(free)} free of {format_size(total)}"
    if limit is not None and limit < total:
        free = min(free, limit - (used or 0))
        text = (
            f"{format_size(free)} free of a limit of {format_size(limit)} (cgroup), {format_size(total)} in the machine"
        )
    short = free < MIN_MEMORY
    yield Finding(WARNING if short else OK, "memory", text, "end other programs, or raise the limit" if short else "")
    shared = Path("/dev/shm")
    if shared.is_dir():
        space = shutil.disk_usage(shared)
        short = space.free < MIN_SHARED
        remedy = "Ray stores objects there and spills to disk if it is full; raise it with docker run --shm-size"
        text = f"{format_size(space.free)} free of {format_size(space.total)}"
        yield Finding(WARNING if short else OK, "/dev/shm", text, remedy if short else "")


def _devices() -> Iterator[Finding]:
    program = shutil.which("nvidia-smi")
    if program is None:
        yield Finding(OK, "devices", "no GPU: everything runs on the CPU")
        return
    command = [program, "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=REQUEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        text = f"nvidia-smi gives no answer within {REQUEST_SECONDS:g} s"
        yield Finding(ERROR, "devices", text, "restart the driver")
        return
    if done.returncode:
        yield Finding(
            ERROR, "devices", f"nvidia-smi: {' '.join(done.stdout.split())[:200]}", "repair or reinstall the driver"
        )
        return
    for number, line in enumerate(done.stdout.splitlines()):
        yield Finding(OK, f"GPU {number}", line.strip())
    with suppress(PackageNotFoundError):
        if version("torch").endswith("+cpu"):
            yield Finding(WARNING, "devices", "torch is built without CUDA", "see docs/how-to/install.md")


def _ray() -> Finding:
    address = os.environ.get("RAY_ADDRESS", "")
    about = f"RAY_ADDRESS={masked(address)}"
    if address in ("", "local"):
        return Finding(
            OK, "Ray", "RAY_ADDRESS is not set: each command starts Ray on this machine and stops it at the end"
        )
    if address == "auto":
        return Finding(OK, "Ray", f"{about}: the cluster that runs on this machine is used")
    remedy = "start it with `ray start --head`, or unset RAY_ADDRESS"
    try:
        parts = urlsplit(address if "://" in address else f"ray://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        return Finding(ERROR, "Ray", f"{about} is not an address", "set RAY_ADDRESS to HOST:PORT, or unset it")
    try:
        socket.create_connection((host, port), REQUEST_SECONDS).close()
    except OSError as error:
        return Finding(ERROR, "Ray", f"{about} does not answer ({error})", remedy)
    if parts.scheme == "ray" and "://" in address:
        return Finding(OK, "Ray", f"{about} accepts connections")
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", f"{host}:{port}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=REQUEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Finding(ERROR, "Ray", f"{about} accepts connections but does not answer", remedy)
    if done.returncode:
        remedy = "set it to the address of a Ray head; if the head requires a token, set RAY_AUTH_MODE=token"
        return Finding(ERROR, "Ray", f"{about} is not a healthy Ray head of this version", remedy)
    return Finding(OK, "Ray", f"{about} is healthy")


def _mlflow() -> Finding:
    uri = tracking_uri()
    masked_uri = masked(uri)
    try:
        check_uri(uri)
    except UserError as error:
        return Finding(ERROR, "MLflow", f"{masked_uri}: {error.what}", error.remedy or "")
    if not uri.startswith(("http://", "https://")):
        return Finding(OK, "MLflow", f"{masked_uri} can be used")
    remedy = "start it with `mlflow server`, or correct MLFLOW_TRACKING_URI"
    parts = urlsplit(uri)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl().rstrip("/")
    try:
        with urllib.request.urlopen(f"{bare}/health", timeout=REQUEST_SECONDS):
            return Finding(OK, "MLflow", f"{masked_uri} answers")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):  # the answer of MLflow to a request without a password
            return Finding(OK, "MLflow", f"{masked_uri} answers and requires a password")
        else:
            return Finding(
                ERROR, "MLflow", f"{masked_uri} answers with status {error.code}, so it is not an MLflow server", remedy
            )
    except (OSError, ValueError) as error:
        reason = masked(str(getattr(error, "reason", None) or error))
        return Finding(ERROR, "MLflow", f"{masked_uri} does not answer ({reason})", remedy)


def _trackers() -> Iterator[Finding]:
    try:
        for title, problem in examine_installed(REQUEST_SECONDS).items():
            yield Finding(WARNING if problem else OK, title, problem or "can be used")
    except OSError as error:
        yield Finding(WARNING, "trackers", f"cannot be checked ({error})")


def _disks() -> Iterator[Finding]:
    name = "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"
    if len(os.fsencode(os.environ.get(name, ""))) > LONGEST_TEMPORARY:
        remedy = f"set RAY_TMPDIR to a folder of at most {LONGEST_TEMPORARY} bytes"
        yield Finding(ERROR, "sockets", f"{name}={os.environ[name]} is too long for the sockets of Ray", remedy)
    former, home = ensure_home(), os.path.expanduser("~")
    if former is None:
        yield Finding(OK, "home", f"{home} can be written")
    elif home != former:
        yield Finding(OK, "home", f"{former} is no folder that can be written: {home} is used in its place")
    else:
        yield Finding(ERROR, "home", f"{former} cannot be written", "set HOME or RAYTRIEVER_CACHE to a folder of yours")
    for about, path in (("runs", runs_folder()), ("cache", cache_folder()), ("temporary", Path(tempfile.gettempdir()))):
        try:
            check_writable(path)
        except UserError as error:
            yield Finding(ERROR, about, f"{path}: {error.what}", error.remedy or "")
            continue
        existing = Path(os.path.abspath(path))
        while not existing.exists():
            existing = existing.parent
        space = shutil.disk_usage(existing)
        text = f"{path}: {format_size(space.free)} free of {format_size(space.total)}"
        short = space.free < MIN_FREE
        remedy = "free space: `raytriever runs clean`, `raytriever cache prune`" if short else ""
        yield Finding(WARNING if short else OK, about, text, remedy)


def _compiler() -> Iterator[Finding]:
    name = os.environ.get("CC")
    path = shutil.which(name) if name else next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if path:
        yield Finding(OK, "compiler", path)
    else:
        text = f"CC={name} is not a program" if name else "there is no C compiler"
        yield Finding(WARNING, "compiler", text, "install one, such as gcc, for packages that compile code")


def _locks() -> Iterator[Finding]:
    count = 0
    for folder in (runs_folder(), cache_folder(), cache_folder() / "datasets", cache_folder() / "embeddings"):
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            owner = owner_of(path)
            if owner is not None:
                count += 1
                yield Finding(OK, "lock", f"{path}: in use by {owner}")
    if not count:
        yield Finding(OK, "locks", "no run and no cache entry is locked")


def _tokens() -> Iterator[Finding]:
    home = expanded(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    files = {
        "Ray": expanded(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"),
        "the hub": expanded(os.environ.get("HF_TOKEN_PATH") or home / "token"),
        "MLflow": expanded("~/.mlflow/credentials"),
    }
    count = 0
    for owner, file in files.items():
        if not file.is_file():
            continue
        count += 1
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            text = f"{file}, the token of {owner}, is readable by other users (mode {mode:04o})"
            yield Finding(WARNING, "token", text, shlex.join(["chmod", "600", str(file)]))
        else:
            yield Finding(OK, "token", f"{file}, the token of {owner}, is readable by its owner only")
    if not count:
        yield Finding(OK, "tokens", "no token file")


def _core_limit() -> float | None:
    """Return the CPU time that a cgroup allows, in cores; None without a limit."""
    words = " ".join(_lines(Path("/sys/fs/cgroup/cpu.max"))).split()
    if len(words) == 2 and words[0].isdigit():
        return int(words[0]) / int(words[1])
    quota = _lines(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
    period = _lines(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
    return int(quota[0]) / int(period[0]) if quota and period and quota[0].isdigit() else None


def _number_in(*names: str) -> int | None:
    """Return a number of the cgroup from the first of the files that has one; None without a limit."""
    for name in names:
        lines = _lines(Path("/sys/fs/cgroup") / name)
        if lines and lines[0].isdigit() and int(lines[0]) < _UNLIMITED:
            return int(lines[0])
    return None


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of the kernel; an empty list if this kernel has no such file."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "versions": _versions,
    "processor": _processor,
    "memory": _memory,
    "devices": _devices,
    "Ray": lambda: iter((_ray(),)),
    "MLflow": lambda: iter((_mlflow(),)),
    "trackers": _trackers,
    "disks": _disks,
    "compiler": _compiler,
    "locks": _locks,
    "tokens": _tokens,
}
