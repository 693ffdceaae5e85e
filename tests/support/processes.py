"""Processes of this machine, to wait for them and to end them, and what a run has logged so far."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import raytriever


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


def of_session(session: int, part: str = "") -> list[int]:
    """Processes of a session whose command line holds `part`."""
    return processes(part, lambda pid: os.getsid(pid) == session)


def run_python(
    *words: str | Path, code: int = 0, variables: Mapping[str, str] | None = None, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with words such as `-c` and a program; fails where it ends with another code."""
    settings.setdefault("env", _environment() | dict(variables or {}))
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, **settings)
    assert done.returncode == code, done.stderr
    return done


def _environment() -> dict[str, str]:
    """The variables of this process, with which another one imports the same package."""
    paths = [str(Path(raytriever.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def ended(process: subprocess.Popen[str], seconds: float = 280, code: int = 0) -> tuple[str, str]:
    """Wait for the end of a process; return what it printed, and its errors. Fails where it ends with another code."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == code, err
    return out, err


@contextmanager
def running_python(program: str, *words: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program that may read its input; yield it with the first line that it prints, and kill it at the end."""
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, text=True, env=_environment(), **pipes) as process:
        try:
            yield process, process.stdout.readline().strip()  # type: ignore[union-attr]
        finally:
            process.kill()


def wait_for(what: Callable[[], Any], seconds: float = 60, process: subprocess.Popen[str] | None = None) -> Any:
    """What is found, as soon as something is; fails where the process ends before, or it takes too long."""
    end = time.monotonic() + seconds
    while not (result := what()):
        if process is not None:
            assert process.poll() is None, process.communicate()[1] if process.stderr else "it ended"
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return result


def free_port() -> int:
    [port] = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Different ports at which no process listens now."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in servers]


def steps(run: Path) -> dict[int, dict[str, float]]:
    """What was logged of every step, nothing of it twice; a line that is being written is left out."""
    measured: dict[int, dict[str, float]] = {}
    for line in (run / "steps.jsonl").read_text().split("\n")[:-1]:
        entry = json.loads(line)
        values = measured.setdefault(entry["step"], {})
        assert not values.keys() & entry["metrics"].keys(), f"step {entry['step']} was logged twice"
        values |= entry["metrics"]
    return measured


def losses(run: Path) -> dict[int, float]:
    """The loss of every step."""
    return {step: values["loss"] for step, values in steps(run).items() if "loss" in values}
