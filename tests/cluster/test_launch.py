"""Launcher with real servers: exposed interfaces, authentication, and the end of both servers."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from processes import free_port, wait_for

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Launcher:
    """A running launcher."""

    process: subprocess.Popen[str]
    said: Path
    folder: Path
    ports: dict[str, int]

    @property
    def text(self) -> str:
        return self.said.read_text()

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text()

    def family(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.process.pid).children(recursive=True) if child.is_running()]

    def answer(self, port: str, path: str, **headers: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}", headers=headers)
        try:
            return int(urllib.request.urlopen(request, timeout=30).status)
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Launcher]]:
    """Start launchers with their own ports, token and folder of Ray; stop those that still run at the end."""
    started: list[Launcher] = []

    def begin(*words: str, then: Callable[[subprocess.Popen[str]], object] = lambda process: None) -> Launcher:
        folder = tmp_path_factory.mktemp("launch")
        ports = {name: free_port() for name in ("ray", "dashboard", "mlflow")}
        own = {
            "RAY_TMPDIR": f"/tmp/launch-{ports['ray']}",  # a socket's path has to be short
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAYTRIEVER_CACHE": str(folder / "cache"),
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | own
        Path(own["RAY_TMPDIR"]).mkdir()
        said = folder / "said"
        command = [sys.executable, str(REPOSITORY / "jobs" / "launch.py"), "--num-cpus", "1", *words]
        for name, port in ports.items():
            command += [f"--{name}-port", str(port)]
        with said.open("w") as stream:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT, text=True
            )
        launcher = Launcher(process, said, folder, ports)
        started.append(launcher)
        then(process)
        wait_for(lambda: "Ctrl-C stops both" in launcher.text or process.poll() is not None, 120)
        assert process.poll() is None, launcher.text
        return launcher

    yield begin
    for launcher in started:
        if launcher.process.poll() is None:
            launcher.process.send_signal(signal.SIGTERM)
            launcher.process.wait(60)
        subprocess.run(["rm", "-rf", f"/tmp/launch-{launcher.ports['ray']}"], check=True)


@pytest.mark.slow
def test_only_this_machine_and_clients_with_the_token_have_access(start: Callable[..., Launcher]) -> None:
    launcher = start("--auth")
    family = launcher.family()
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")  # an IPv4 address, as a socket for both kinds tells it
        for process in family
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening
    assert listening <= {"127.0.0.1", "::1"}

    assert stat.S_IMODE((launcher.folder / "token").stat().st_mode) == 0o600
    assert launcher.token not in launcher.text
    for process in family:
        assert launcher.token not in " ".join(process.cmdline())
    logs = list((launcher.folder / "cache" / "launch").iterdir())
    assert len(logs) == 2
    assert all(stat.S_IMODE(log.stat().st_mode) == 0o600 for log in logs)
    assert all(launcher.token not in log.read_text(errors="replace") for log in logs)

    # Jobs are refused without the token and with a wrong one.
    assert launcher.answer("dashboard", "/api/jobs/") == 401
    assert launcher.answer("dashboard", "/api/jobs/", Authorization="Bearer " + "0" * 64) == 403
    assert launcher.answer("dashboard", "/api/jobs/", Authorization=f"Bearer {launcher.token}") == 200
    submit = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--", "echo", "let in"]
    exports = dict(line.split()[1].split("=", 1) for line in launcher.text.splitlines() if line.startswith("  export "))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["HOME"] = str(launcher.folder)  # without a token file
    without = {**environment, "RAY_API_SERVER_ADDRESS": exports["RAY_API_SERVER_ADDRESS"], "RAY_AUTH_MODE": "disabled"}
    refused = subprocess.run(submit, env=without, capture_output=True, text=True, check=False, timeout=120)
    assert refused.returncode != 0
    assert "let in" not in refused.stdout
    done = subprocess.run(submit, env=environment | exports, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "let in" in done.stdout

    # MLflow answers to its own name only (DNS rebinding).
    port = launcher.ports["mlflow"]
    search = "/api/2.0/mlflow/experiments/search?max_results=1"
    assert launcher.answer("mlflow", search) == 200
    assert launcher.answer("mlflow", search, Host=f"localhost:{port}") == 200
    assert launcher.answer("mlflow", search, Host="evil.example") == 403

    launcher.process.send_signal(signal.SIGINT)
    assert launcher.process.wait(60) == 0
    assert launcher.text.endswith("stopped\n")
    wait_for(lambda: not any(process.is_running() and process.status() != "zombie" for process in family), 20)


def mlflow_of(process: subprocess.Popen[str]) -> int:
    """Wait for the MLflow server and return its process id."""
    pids: list[int] = []

    def look() -> bool:
        children = psutil.Process(process.pid).children()
        pids.extend(child.pid for child in children if "mlflow" in child.cmdline())
        return bool(pids) or process.poll() is not None

    wait_for(look, 60)
    return pids[0]


@pytest.mark.slow
def test_ray_runs_while_mlflow_is_late(start: Callable[..., Launcher]) -> None:
    launcher = start("--timeout", "25", then=lambda process: os.killpg(mlflow_of(process), signal.SIGSTOP))
    assert "MLflow is not ready yet: " in launcher.text
    assert "Ray is ready after " in launcher.text
    assert "MLflow  does not answer yet; its log is " in launcher.text
    assert launcher.answer("dashboard", "/api/jobs/") == 200
    os.killpg(mlflow_of(launcher.process), signal.SIGCONT)
    wait_for(lambda: "MLflow is ready after " in launcher.text, 120)
    assert launcher.answer("mlflow", "/health") == 200


@pytest.mark.slow
def test_the_death_of_one_server_is_reported_and_ends_the_other(start: Callable[..., Launcher]) -> None:
    launcher = start()
    assert launcher.answer("dashboard", "/api/jobs/") == 200  # this machine alone
    family = launcher.family()
    [server] = [child for child in psutil.Process(launcher.process.pid).children() if "mlflow" in child.cmdline()]
    os.killpg(server.pid, signal.SIGKILL)
    assert launcher.process.wait(60) == 2
    last = launcher.text.splitlines()[-1]
    assert last.startswith("error: ")
    assert "MLflow ended with code -9" in last
    wait_for(lambda: not any(process.is_running() and process.status() != "zombie" for process in family), 20)
