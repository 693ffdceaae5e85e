"""Facts about this machine that Linux and other systems report in different ways: cores, memory, processes, home.

On Linux the facts come from `/proc`, cgroups and `sched_getaffinity`; elsewhere from `sysconf` and the program `ps`."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
_HUB = Path(".cache", "huggingface")  # downloaded models in `HOME`; `ensure_home` keeps the folder in use
LONGEST_TEMPORARY = 40  # maximum bytes of the temporary folder's path; see `shorten_temporary_folder`
SAFE_PATH = "PYTHONSAFEPATH"  # if set, Python does not add the working folder to `sys.path` of a new process
UNKNOWN_FRACTION = 0.5  # fraction of the memory that counts as free if the system does not report the free memory


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_system_memory() -> int:
    """Return how many bytes this process can still allocate, if other processes allocate nothing meanwhile."""
    amounts = memory_amounts()
    if "MemAvailable" not in amounts:
        return int(total_memory() * UNKNOWN_FRACTION)
    available = amounts["MemAvailable"]
    with suppress(OSError, ValueError):  # the file contains "max" if there is no limit
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, limit - used)
    return available


def total_memory() -> int:
    """Return the memory size of this machine in bytes."""
    return memory_amounts().get("MemTotal") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_amounts() -> dict[str, int]:
    """Return the entries of `/proc/meminfo` in bytes; empty if the system has no such file."""
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def start_of_process(pid: int) -> int | None:
    """Return the start time of a process on this machine; None if there is no such process. On Linux, the time is in
    ticks since the machine started; elsewhere, in seconds since 1970."""
    if (PROC / "self" / "stat").exists():
        try:
            return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
        except (OSError, ValueError, IndexError):
            return None
    import subprocess

    # `LC_ALL=C`, because `strptime` expects English names of months.
    command, environment = ["ps", "-o", "lstart=", "-p", str(pid)], {**os.environ, "LC_ALL": "C"}
    started = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout.strip()
    return int(time.mktime(time.strptime(started, "%a %b %d %H:%M:%S %Y"))) if started else None


def clean_processes() -> BaseContext:
    """Return a `multiprocessing` context whose processes inherit no threads and no open files. Processes of a fork
    server start faster than spawned ones."""
    import multiprocessing  # it takes 0.1 s, and the command line does not need it

    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")


@contextmanager
def safe_imports() -> Iterator[None]:
    """Import nothing from the working folder in this block, or in processes that start in the block.

    The working folder may hold somebody else's data set or model, with files such as `signal.py`. Folders in the
    user's `PYTHONPATH` stay importable."""
    here, variable = os.path.realpath("."), os.environ.get(SAFE_PATH)
    hidden = [
        (index, entry)
        for index, entry in enumerate(sys.path)
        if not entry or (index == 0 and not sys.flags.safe_path and os.path.realpath(entry) == here)
    ]
    for index, _ in reversed(hidden):
        del sys.path[index]
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        for index, entry in hidden:
            sys.path.insert(index, entry)
        if variable is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = variable


@cache
def ensure_home() -> None:
    """Set `HOME` to a writable folder, unless `HOME` already names one.

    In a container, `--user 12345` has no home. numba, Ray, Matplotlib, Transformers and MLflow write below `HOME`,
    and fail or warn if they cannot. The new folder is in the cache, or in the temporary folder."""
    former = os.path.expanduser("~")
    if os.path.isabs(former) and os.path.isdir(former) and os.access(former, os.W_OK | os.X_OK):
        return
    home = _own_folder()
    if home is not None:
        if (Path(former) / _HUB).is_dir():
            os.environ.setdefault("HF_HOME", str(Path(former) / _HUB))
        os.environ["HOME"] = str(home)


def shorten_temporary_folder() -> None:
    """Replace a long `TMPDIR`, such as Slurm and CI set, by a short link to it. Ray and Python create sockets below it.

    A socket's path has at most 107 bytes, and Ray adds 64 bytes to `TMPDIR`. Files still go to the user's folder.
    The link is never removed, because Ray's programs keep running and use it."""
    folder = os.environ.get("TMPDIR", "")
    if len(os.fsencode(folder)) <= LONGEST_TEMPORARY or not os.path.isdir(folder):
        return
    import hashlib

    links = _private(Path("/tmp") / f"raytriever-{os.getuid()}")
    if links is not None:
        link = links / hashlib.sha256(os.fsencode(os.path.abspath(folder))).hexdigest()[:8]
        with suppress(OSError):  # another process has made the link, or the disk is full
            link.symlink_to(os.path.abspath(folder))
        if os.path.realpath(link) == os.path.realpath(folder):
            os.environ["TMPDIR"] = str(link)
            tempfile: Any = sys.modules.get("tempfile")
            if tempfile is not None and tempfile.tempdir == folder:  # tempfile has stored the folder already
                tempfile.tempdir = str(link)


def _own_folder() -> Path | None:
    import tempfile

    shared, name = os.environ.get("RAYTRIEVER_CACHE"), f"home-{os.getuid()}"
    in_cache = _private(Path(shared).absolute() / name) if shared else None
    try:
        temporary = Path(tempfile.gettempdir())
        return (
            in_cache
            or _private(temporary / f"raytriever-{name}")
            or Path(tempfile.mkdtemp(prefix=f"raytriever-{name}-"))
        )
    except OSError:
        return None


def _private(folder: Path) -> Path | None:
    """Return a folder in which only this user can write, and make it if it is missing. Return None if that fails.
    numba unpickles files in it, so a folder that somebody else has made is not used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if is_own else None
