"""Finds processes of this machine, to wait for them and to end them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def processes(part: str, which: Callable[[int], bool]) -> list[int]:
    """Processes whose command line holds `part`, of those asked for."""
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and which(int(entry.name)):
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                pids += [int(entry.name)] if line and part in line else []
        except OSError:
            continue
    return pids


def parent(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def children_of(pid: int) -> Callable[[int], bool]:
    """Whether that process started another."""
    return lambda other: parent(other) == pid


def wait_for(what: Callable[[], Any], seconds: float, process: subprocess.Popen[str]) -> Any:
    """What is found, as soon as something is; fails where the process ends before, or it takes too long."""
    end = time.monotonic() + seconds
    while not (result := what()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
    return result
