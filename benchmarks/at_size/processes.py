"""Run of a command with samples of the memory that it and its workers use."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SECONDS = 0.2  # between two samples


@dataclass
class Usage:
    """Seconds, and the largest memory of a sample in bytes.

    Processor seconds are those of all processes up to their last sample. The driver is the process of the command,
    workers are all processes below it, added up. `anonymous` memory cannot be dropped by the kernel; `resident` also
    counts the pages of mapped files that happen to be in memory. Pages that processes share are counted in each."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    driver_anonymous: int = 0
    driver_resident: int = 0
    workers_anonymous: int = 0
    workers_resident: int = 0

    def add(self, driver: tuple[int, int], workers: tuple[int, int]) -> None:
        """Add a sample: anonymous and resident bytes."""
        self.driver_anonymous = max(self.driver_anonymous, driver[0])
        self.driver_resident = max(self.driver_resident, driver[1])
        self.workers_anonymous = max(self.workers_anonymous, workers[0])
        self.workers_resident = max(self.workers_resident, workers[1])


def measure(
    command: Sequence[str], environment: Mapping[str, str], log: Path, kill_after: float = math.inf
) -> tuple[int, Usage]:
    """Run a command with its output in a file; return its exit code and what it used.

    After `kill_after` seconds the command gets SIGKILL, and its workers are waited for."""
    usage, began = Usage(), time.monotonic()
    processor: dict[psutil.Process, float] = {}
    with (
        open(log, "w") as output,
        subprocess.Popen(command, env=dict(environment), stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            root = psutil.Process(process.pid)
            while process.poll() is None:
                children = root.children(recursive=True)
                for member in (root, *children):
                    processor[member] = max(processor.get(member, 0.0), _processor_seconds(member))
                below = [_memory(child) for child in children]
                usage.add(_memory(root), (sum(memory[0] for memory in below), sum(memory[1] for memory in below)))
                if time.monotonic() - began >= kill_after:
                    process.kill()
                    process.wait()
                    psutil.wait_procs(children, timeout=60)
                time.sleep(SECONDS)
        except psutil.NoSuchProcess:
            process.wait()
        except BaseException:
            process.terminate()
            raise
    usage.seconds = time.monotonic() - began
    usage.processor_seconds = sum(processor.values())
    return process.returncode, usage


def _memory(process: psutil.Process) -> tuple[int, int]:
    """Return the anonymous and the resident bytes of a process; zeros if it has ended."""
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0, 0
    return memory.rss - getattr(memory, "shared", 0), memory.rss


def _processor_seconds(process: psutil.Process) -> float:
    """Return the seconds that a process has computed; zero if it has ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system
