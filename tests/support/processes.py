"""Starts the workers of a process group, and finds processes of this machine, to wait for them and to end them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any


def processes(part: str, which: Callable[[int], bool]) -> list[int]:
    """Processes whose command line holds `part`, of those asked for."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and which(int(entry.name)):
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                found += [int(entry.name)] if line and part in line else []
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def children_of(pid: int) -> Callable[[int], bool]:
    """Whether that process started another."""
    return lambda other: parent(other) == pid


def wait_for(what: Callable[[], Any], seconds: float, process: subprocess.Popen[str]) -> Any:
    """What is found, as soon as something is; fails where the process ends before, or it takes too long."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
    return found


def run_workers(commands: Iterable[Sequence[object]], seconds: float = 280) -> None:
    """Run a Python process for each list of arguments until all have ended; fails with the errors of one that fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    group = [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arguments in commands
    ]
    try:
        for process in group:
            _, errors = process.communicate(timeout=seconds)
            assert process.returncode == 0, errors
    finally:
        for process in group:
            process.kill()
