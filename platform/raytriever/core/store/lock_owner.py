"""Owner of a lock or a lease: the process that writes a path. The lock file describes it to other commands."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from raytriever.core.machine import start_of_process

BY_KERNEL, BY_FILE = "kernel", "file"
RECORD_BYTES = 1_024  # size of every record; it is written in one piece, so that no reader sees half of a record


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock."""

    host: str
    pid: int
    command: str
    since: float  # Time at which the lock was taken, in seconds since 1970
    token: str  # Random text, which differs for every lock that is ever acquired
    kind: str = BY_KERNEL  # `BY_KERNEL` or `BY_FILE`
    started: int = 0  # Start time of the process (see `start_of_process`); 0 if it is unknown

    def __str__(self) -> str:
        now = time.time()
        pattern = "%H:%M:%S" if now - self.since < 12 * 3600 else "%Y-%m-%d %H:%M:%S"
        at = time.strftime(pattern, time.localtime(self.since))
        return f"'{self.command}' on host {self.host}, pid {self.pid}, since {at} ({_duration(now - self.since)})"


UNKNOWN = Owner("unknown", 0, "unknown", 0.0, "")


def has_ended_here(owner: Owner) -> bool:
    """Return True if the owner was a process of this host and has ended."""
    return owner.host == socket.gethostname() and start_of_process(owner.pid) != owner.started


def this_process(kind: str) -> Owner:
    """Return this process as the owner of a new lock."""
    pid = os.getpid()
    return Owner(
        socket.gethostname(), pid, _command(), time.time(), secrets.token_hex(8), kind, start_of_process(pid) or 0
    )


def _command() -> str:
    program = Path(sys.argv[0] if sys.argv else "")
    if program.name == "raytriever" and len(sys.argv) > 1:
        return f"raytriever {sys.argv[1]}"
    return f"raytriever {program.stem}" if program.parent.name == "jobs" else program.name or "python"


def record_of(owner: Owner) -> bytes:
    """Return the content of a lock's file."""
    return (json.dumps(asdict(owner)) + "\n").encode().ljust(RECORD_BYTES)


def read_owner(file: Path) -> Owner:
    """Return the owner that the lock file names. Return `UNKNOWN` if it names none, as just after its creation."""
    try:
        return parsed_owner(file.read_bytes())
    except OSError:
        return UNKNOWN


def parsed_owner(record: bytes) -> Owner:
    """Return the owner that a record describes. Return `UNKNOWN` if the record is damaged."""
    try:
        return Owner(**json.loads(record))  # noqa: TID251 - a broken record is an unknown owner
    except (ValueError, TypeError):
        return UNKNOWN


def _duration(seconds: float) -> str:
    for unit, size, least in (("days", 86400, 2), ("h", 3600, 2), ("min", 60, 1)):
        if seconds >= least * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
