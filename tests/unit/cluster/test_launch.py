"""Readiness of servers that answer late, refuse or end; with small real processes and real ports."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raytriever.cluster.launch import LaunchedServer, LaunchError, ReadinessMonitor, free_port

ANSWERS = """
import http.server, sys, time
time.sleep(float(sys.argv[2]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[3]))
        self.end_headers()
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
Start = Callable[..., LaunchedServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server that answers after some seconds, with a status."""
    started = []

    def begin(name: str, after: float = 0.0, status: int = 200, program: str = ANSWERS) -> LaunchedServer:
        port = free_port()
        command = [sys.executable, "-c", program, str(port), str(after), str(status)]
        server = LaunchedServer(name, command, os.environ, tmp_path / f"{name}.log", f"http://127.0.0.1:{port}/")
        started.append(server)
        return server

    yield begin
    for server in started:
        server.end()


def poll(monitor: ReadinessMonitor, until: Callable[[], bool], interval: float = 0.3) -> None:
    end = time.monotonic() + 20
    while not until():
        assert time.monotonic() < end
        monitor.poll(interval)


def test_each_server_is_logged_until_it_is_ready(start: Start) -> None:
    lines: list[str] = []
    quick, late = start("Ray"), start("MLflow", after=1.5)
    monitor = ReadinessMonitor([quick, late], lines.append)
    poll(monitor, lambda: any(line.startswith("MLflow is ready") for line in lines))
    assert [line for line in lines if line.startswith("Ray is ready after")]
    named = [line for line in lines if line.startswith("MLflow is not ready yet: ")]
    assert len(named) >= 2
    assert lines[-1].startswith("MLflow is ready after ")
    assert len(lines) == len(set(lines)) or len(named) >= 2
    before = len(lines)
    for _ in range(3):
        monitor.poll(0.0)
    assert len(lines) == before  # ready servers are not logged


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_for_a_missing_token_is_an_answer(start: Start, status: int) -> None:
    server = start("Ray", status=status)
    lines: list[str] = []
    poll(ReadinessMonitor([server], lines.append), server.has_answered, 60)


def test_a_server_error_is_no_answer(start: Start) -> None:
    server = start("Ray", status=500)
    monitor = ReadinessMonitor([server], lambda line: None)
    for _ in range(8):
        monitor.poll(60)
    assert not server.has_answered()


def test_the_last_lines_of_an_ended_server_are_in_the_error(start: Start) -> None:
    server = start("MLflow", program="print('Detected out-of-date database schema'); raise SystemExit(3)")
    with pytest.raises(LaunchError) as caught:
        poll(ReadinessMonitor([server], lambda line: None), lambda: False)
    assert f"{server.log}: MLflow ended with code 3; it printed: Detected out-of-date database schema" in str(
        caught.value
    )
