"""Start a Ray head and an MLflow server on this machine and stop them together.

1. `access` decides first who may reach them. Only Ray is ever opened to other machines, and only with its token.
2. MLflow answers to its own name only (`--allowed-hosts`, against DNS rebinding), unpickles nothing, and has one
   process and one database under an absolute path.
3. Both end together: by Ctrl-C, SIGTERM or SIGHUP, or because one of them has ended. A server that is not ready is
   logged every few seconds. MLflow may start late, because runs store the data that it does not have yet. When it has
   ended, the launcher ends too, so that a supervisor starts both again."""

from __future__ import annotations

import errno
import http.client
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from raytriever.activity import quiet
from raytriever.cluster.access import AccessPolicy, decide_access, ensure_token
from raytriever.errors import ConfigError, UserError, setting
from raytriever.interruption import check_interrupted
from raytriever.machine import process_ids
from raytriever.store.cache import cache_folder
from raytriever.store.disk import check_writable, disk_errors

LOCAL = "127.0.0.1"
STOP_SECONDS = 15.0  # in which a server must end after SIGTERM
REQUEST_SECONDS = 2.0
POLL_SECONDS = 0.2
# Seconds between two lines about a server that is not ready: at first, and after `LaunchSettings.timeout`.
WAIT_SECONDS, LATE_SECONDS = 5.0, 60.0
LAST_LINES = 3  # of a server's log in the error message


class LaunchError(UserError):
    """A server did not start, or it ended unexpectedly."""


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of the two servers; without `num_cpus` Ray may use all, and MLflow may take longer than `timeout`."""

    host: str
    authenticate: bool
    ray_port: int
    dashboard_port: int
    mlflow_port: int
    database: Path
    artifacts: Path
    num_cpus: int | None = None
    timeout: float = 120.0


def launch(settings: LaunchSettings, log: Callable[[str], None]) -> None:
    """Start both servers and monitor them until they are stopped.

    Raises:
        ConfigError: a host, port or path is not usable, or Ray would be exposed to other machines without a token.
        LaunchError: a server did not start, or has ended.
        KeyboardInterrupt: the user stopped them; in an `interruptible` block by SIGTERM or SIGHUP too.
    """
    ports = {name: getattr(settings, name) for name in ("ray_port", "dashboard_port", "mlflow_port")}
    if len(set(ports.values())) < len(ports):
        raise ConfigError("the same port twice", ", ".join(map(setting, ports)), "give three different ones")
    _check_database(settings.database)
    check_writable(settings.artifacts)
    policy = decide_access(settings.host, settings.authenticate, os.environ)
    for name, port in ports.items():
        check_free(settings.host if name == "dashboard_port" else LOCAL, port, name)
    if policy.token_file is not None:
        ensure_token(policy.token_file)
    logs = cache_folder() / "launch"
    with disk_errors(logs):
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as running:
        servers: dict[str, LaunchedServer] = {}
        for name, command, environment, address in (
            ("MLflow", mlflow_command(settings), mlflow_environment(), f"http://{LOCAL}:{settings.mlflow_port}/health"),
            (
                "Ray",
                ray_command(settings, policy),
                ray_environment(settings, policy),
                _dashboard(settings, policy) + "/api/version",
            ),
        ):
            servers[name] = LaunchedServer(
                name, command, environment, logs / f"{name.lower()}-{settings.mlflow_port}.log", address
            )
            running.callback(servers[name].end)
        ray, mlflow = servers["Ray"], servers["MLflow"]
        log(f"starting Ray and MLflow; logs {ray.log} and {mlflow.log}")
        monitor = ReadinessMonitor(servers.values(), log)
        while not (ray.has_answered() and mlflow.has_answered()):
            monitor.poll(WAIT_SECONDS)
            if monitor.seconds >= settings.timeout:
                break
        if not ray.has_answered():
            raise LaunchError(
                f"Ray does not answer at {ray.address} after {monitor.seconds:.0f} s",
                str(ray.log),
                f"read this log; give a busy machine more time with {setting('timeout')} SECONDS",
            )
        for line in summary_lines(settings, policy, logs, None if mlflow.has_answered() else mlflow.log):
            log(line)
        with quiet():
            while True:
                monitor.poll(LATE_SECONDS)


class LaunchedServer:
    """One running server process."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, address: str
    ) -> None:
        self.name, self.log, self.address, self._is_ready = name, log, address, False
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as stream:
            # In a session of its own: Ctrl-C reaches only the launcher, which stops the servers in order.
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the program, and id of its session."""
        return self._process.pid

    def check(self) -> None:
        """Raise `LaunchError` if the server has ended."""
        code = self._process.poll()
        if code is not None:
            lines = self.log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
            last = " / ".join(line.strip() for line in lines) or "nothing"
            raise LaunchError(f"{self.name} ended with code {code}; it printed: {last}", str(self.log), "read this log")

    def has_answered(self) -> bool:
        """Return whether the server has ever answered at its address. A refusal for a missing token is an answer."""
        self.check()
        if not self._is_ready:
            try:
                with urllib.request.urlopen(self.address, timeout=REQUEST_SECONDS):
                    self._is_ready = True
            except urllib.error.HTTPError as error:
                self._is_ready = error.code in (401, 403)
            except (OSError, http.client.HTTPException):  # it does not listen yet, or does not serve requests yet
                pass
        return self._is_ready

    def end(self) -> None:
        """Stop the server and all processes that it started; those that do not end by SIGTERM are killed."""
        processes = self._session()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        for pid in processes | self._session():
            with suppress(ProcessLookupError):
                if _session_of(pid) == self.pid:
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _session(self) -> set[int]:
        return {number for number in process_ids() if _session_of(number) == self.pid}


class ReadinessMonitor:
    """Polls servers, and logs when they are ready and while they are not."""

    def __init__(self, servers: Iterable[LaunchedServer], log: Callable[[str], None]) -> None:
        self._servers, self._log = list(servers), log
        self._ready: set[str] = set()
        self._began = self._reported = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def poll(self, interval: float) -> None:
        """Check each server once, report late ones every `interval` seconds, then sleep for `POLL_SECONDS`.

        Raises:
            KeyboardInterrupt: see `check_interrupted`.
        """
        late = [server for server in self._servers if not server.has_answered()]
        for server in self._servers:
            if server not in late and server.name not in self._ready:
                self._ready.add(server.name)
                self._log(f"{server.name} is ready after {self.seconds:.0f} s")
        if late and time.monotonic() - self._reported >= interval:
            self._reported = time.monotonic()
            for server in late:
                self._log(f"{server.name} is not ready yet: {self.seconds:.0f} s")
        check_interrupted()
        time.sleep(POLL_SECONDS)


def ray_command(settings: LaunchSettings, policy: AccessPolicy) -> list[str]:
    """Return the command of the Ray head, which runs until it is stopped."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += [f"--node-ip-address={policy.address}", f"--port={settings.ray_port}"]
    command += [f"--dashboard-host={policy.host}", f"--dashboard-port={settings.dashboard_port}"]
    if settings.num_cpus:
        command.append(f"--num-cpus={settings.num_cpus}")
    if policy.is_local:
        # No client needs the other ports, and another cluster on this machine may use Ray's default ranges.
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        command += [f"--{name}-port={free_port()}" for name in ("ray-client-server", "dashboard-agent-listen")]
    return command


def ray_environment(settings: LaunchSettings, policy: AccessPolicy) -> dict[str, str]:
    """Return this process's variables, with the authentication mode and the MLflow server of submitted jobs."""
    return {**os.environ, "MLFLOW_TRACKING_URI": f"http://{LOCAL}:{settings.mlflow_port}", **policy.environment}


def mlflow_command(settings: LaunchSettings) -> list[str]:
    """Return the command of the MLflow server, which only this machine can reach."""
    names = ",".join(f"{name}:{settings.mlflow_port}" for name in (LOCAL, "localhost"))
    return [
        *(sys.executable, "-m", "mlflow", "server", "--host", LOCAL, "--port", str(settings.mlflow_port)),
        *("--backend-store-uri", f"sqlite:///{settings.database}", "--artifacts-destination", str(settings.artifacts)),
        *("--allowed-hosts", names, "--workers", "1"),
    ]


def mlflow_environment() -> dict[str, str]:
    """Return this process's variables without the address of another server, and with unpickling disabled.

    Jobs on the server, which raytriever does not use, are off: their processes take 0.9 GB of memory.
    """
    own = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    return {**own, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def summary_lines(settings: LaunchSettings, policy: AccessPolicy, logs: Path, late: Path | None = None) -> list[str]:
    """Return the addresses of both servers and the variables that clients need; nothing secret.

    Args:
        logs: folder of the logs.
        late: log of MLflow if it does not answer yet.
    """
    head, dashboard = f"{policy.address}:{settings.ray_port}", _dashboard(settings, policy)
    exports = {
        "RAY_ADDRESS": head,
        "RAY_API_SERVER_ADDRESS": dashboard,
        "MLFLOW_TRACKING_URI": f"http://{LOCAL}:{settings.mlflow_port}",
        **policy.environment,
    }
    access = "with the token" if policy.is_authenticated else "only from this machine"
    waiting = [
        f"MLflow  does not answer yet; its log is {late}",
        "        new runs can start when it answers; running ones send their data to it later",
    ]
    return [
        f"Ray     {head}, dashboard and jobs {dashboard}, {access}",
        f"MLflow  http://{LOCAL}:{settings.mlflow_port}, only from this machine, database {settings.database}",
        *(waiting if late else []),
        f"logs    {logs}",
        "",
        "In another terminal:",
        *(f"  export {name}={shlex.quote(str(value))}" for name, value in exports.items()),
        "",
        "Ctrl-C stops both.",
    ]


def _check_database(file: Path) -> None:
    """Raise `StorageError` unless SQLite can write a database and its journal there; MLflow would try for minutes."""
    check_writable(file.parent)
    with disk_errors(file):
        for path in (file, file.with_name(f"{file.name}-journal")):
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(path.stat().st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def _dashboard(settings: LaunchSettings, policy: AccessPolicy) -> str:
    host = f"[{policy.address}]" if ":" in policy.address else policy.address
    return f"http://{host}:{settings.dashboard_port}"


def check_free(host: str, port: int, name: str) -> None:
    """Raise `ConfigError` if a port is in use, or the host is no address of this machine."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"{host}:{port}: {error.strerror}", setting(name), "give another") from error


def free_port() -> int:
    """Return a port of this machine at which no process listens now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
