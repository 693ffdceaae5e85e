"""User errors of `launch`, before a server starts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cluster.launch import LaunchedServer

ErrorLine = Callable[..., str]


def _refuse_to_start(*arguments: object) -> None:
    raise AssertionError("a server is started")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "--host 0.0.0.0",
            "--host: 0.0.0.0 lets anyone who reaches this machine run programs on it; add --auth, so that",
        ),
        ("--mlflow-port 0", "--mlflow-port: 0 is out of range; give 1 to 65535"),
        ("--timeout nan", "--timeout: nan is out of range; give seconds above 0"),
        ("--num-cpus 0", "--num-cpus: 0 is out of range; give a value at least 1"),
        ("--dashboard-port 6379", "--ray-port, --dashboard-port, --mlflow-port: the same port twice; give three"),
        (f"--database HERE/{'n' * 300}", f"HERE/{'n' * 300}: the name is too long; give a shorter name"),
        ("--database HERE", "HERE: a folder is in the way; give the path of a file"),
        ("--artifacts HERE/circle", "HERE/circle: symbolic links lead in a circle; remove the link"),
        ("--artifacts HERE/file", "HERE/file: a part of the path is a file; give a path whose parents"),
    ],
)
def test_launch_refuses(
    error_line: ErrorLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, expected: str
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(LaunchedServer, "__init__", _refuse_to_start)
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").touch()
    words, expected = (text.replace("HERE", str(tmp_path)) for text in (words, expected))
    # Ports of their own, so that whatever runs on this machine is not in the way.
    free = [] if "port" in words else ["--ray-port", "16379", "--dashboard-port", "18265", "--mlflow-port", "15000"]
    assert error_line("launch", *free, *words.split()).startswith(expected)


def test_a_path_is_refused_before_a_port(error_line: ErrorLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = error_line("launch", "--mlflow-port", taken.getsockname()[1], "--database", "n" * 300)
    assert line.endswith("the name is too long; give a shorter name")


def test_a_port_in_use(error_line: ErrorLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = error_line("launch", "--mlflow-port", port, "--ray-port", "16379", "--dashboard-port", "18265")
    assert line == f"--mlflow-port: 127.0.0.1:{port}: Address already in use; give another"
