"""Start a Ray head and an MLflow server on this machine and stop them together.

1. `access` decides first who may reach them. Only Ray is ever opened to other machines, and only with its token.
2. MLflow answers to its own name only (`--allowed-hosts`, against DNS rebinding), unpickles nothing, and has one
   process and one database under an absolute path.
3. Both end together: by Ctrl-C, SIGTERM or SIGHUP, or because one of them has ended. A server that is not ready is
   named every few seconds. MLflow may be late, because runs keep what it does not have. When it has ended, the launcher
   ends too, so that a supervisor starts both again."""

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
from raytriever.errors import ConfigError, UserError
from raytriever.interruption import check_interrupted
from raytriever.storage import cache_folder, check_writable, disk_errors

END_SECONDS = 15.0  # in which a server ends by itself when it is asked to
LAST_LINES = 3
ANSWER_SECONDS = 2.0  # of one request


class LaunchError(UserError):
    """A server did not start, or ended by itself."""


class LaunchedServer:
    """One server, running.

    Args:
        name: for the person.
        command: of the program; no shell reads it.
        environment: all of it.
        log: a file of its own.
        address: at which it answers HTTP requests once it is ready.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, address: str
    ) -> None:
        self.name, self.log, self.address, self._answered = name, log, address, False
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as stream:
            # A session of its own: Ctrl-C reaches the launcher alone, which ends the servers in order.
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
        """Of the program; also the id of its session."""
        return self._process.pid

    def check(self) -> None:
        """Raise `LaunchError` if it has ended."""
        code = self._process.poll()
        if code is not None:
            lines = self.log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
            said = " / ".join(line.strip() for line in lines) or "nothing"
            raise LaunchError(f"{self.name} ended with code {code}, having said: {said}", str(self.log), "see there")

    def has_answered(self) -> bool:
        """Return whether it has answered at its address, if only that the caller must identify itself; ask once more
        where it has not.

        Raises:
            LaunchError: it has ended.
        """
        self.check()
        if not self._answered:
            try:
                with urllib.request.urlopen(self.address, timeout=ANSWER_SECONDS):
                    self._answered = True
            except urllib.error.HTTPError as error:
                self._answered = error.code in (401, 403)
            except (OSError, http.client.HTTPException):  # nothing listens yet, or not for requests
                pass
        return self._answered

    def end(self) -> None:
        """End it and all that it started; what does not end when asked to is killed."""
        everyone = self._session()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        for pid in everyone | self._session():
            with suppress(ProcessLookupError):
                if _session_of(pid) == self.pid:
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _session(self) -> set[int]:
        numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return {number for number in numbers if _session_of(number) == self.pid}


def check_free(host: str, port: int, flag: str) -> None:
    """Raise `ConfigError` where a port is taken, or this host is not of this machine."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"{host}:{port}: {error.strerror}", flag, "give another") from error


def free_port() -> int:
    """A port of this machine that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


LOOK_SECONDS = 0.2
# How often a server that is not ready is named: at first, and after `LaunchSettings.timeout`.
LINE_SECONDS, LATE_SECONDS = 5.0, 60.0
LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class LaunchSettings:
    """What is started.

    Args:
        host: where Ray's dashboard listens.
        authenticate: whether Ray asks for a token.
        ray_port, dashboard_port, mlflow_port: of the Ray head, its dashboard with the jobs, and MLflow.
        database: MLflow's, an SQLite file.
        artifacts: MLflow's folder of files.
        num_cpus: as which Ray counts this machine; None for those it has.
        timeout: seconds in which Ray must be ready; MLflow may take longer.
    """

    host: str
    authenticate: bool
    ray_port: int
    dashboard_port: int
    mlflow_port: int
    database: Path
    artifacts: Path
    num_cpus: int | None = None
    timeout: float = 120.0


def launch(asked: LaunchSettings, say: Callable[[str], None]) -> None:
    """Start both and watch over them until they are stopped.

    Args:
        asked: the settings.
        say: hears where they are, and what to export.

    Raises:
        ConfigError: a host, port or path that cannot be, or a host that would be open to everybody.
        LaunchError: one did not start, or has ended.
        KeyboardInterrupt: somebody stopped them, in an `interruptible` block by SIGTERM or SIGHUP too.
    """
    ports = {"--ray-port": asked.ray_port, "--dashboard-port": asked.dashboard_port, "--mlflow-port": asked.mlflow_port}
    if len(set(ports.values())) < len(ports):
        raise ConfigError("the same port twice", ", ".join(ports), "give three different ones")
    _check_database(asked.database)
    check_writable(asked.artifacts)
    doors = decide_access(asked.host, asked.authenticate, os.environ)
    for flag, port in ports.items():
        check_free(asked.host if flag == "--dashboard-port" else LOCAL, port, flag)
    if doors.token_file is not None:
        ensure_token(doors.token_file)
    logs = cache_folder() / "launch"
    with disk_errors(logs):
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as running:
        servers: dict[str, LaunchedServer] = {}
        for name, command, environment, address in (
            ("MLflow", mlflow_command(asked), mlflow_environment(), f"http://{LOCAL}:{asked.mlflow_port}/health"),
            (
                "Ray",
                ray_command(asked, doors),
                ray_environment(asked, doors),
                _dashboard(asked, doors) + "/api/version",
            ),
        ):
            servers[name] = LaunchedServer(
                name, command, environment, logs / f"{name.lower()}-{asked.mlflow_port}.log", address
            )
            running.callback(servers[name].end)
        ray, mlflow = servers["Ray"], servers["MLflow"]
        say(f"starting Ray and MLflow; logs {ray.log} and {mlflow.log}")
        waiting = ReadinessMonitor(servers.values(), say)
        while not (ray.has_answered() and mlflow.has_answered()):
            waiting.look(LINE_SECONDS)
            if waiting.seconds >= asked.timeout:
                break
        if not ray.has_answered():
            raise LaunchError(
                f"Ray does not answer at {ray.address} after {waiting.seconds:.0f} s",
                str(ray.log),
                "see there; give a busy machine longer with --timeout SECONDS",
            )
        for line in summary_lines(asked, doors, logs, None if mlflow.has_answered() else mlflow.log):
            say(line)
        with quiet():
            while True:
                waiting.look(LATE_SECONDS)


class ReadinessMonitor:
    """Watches servers, and reports those that are not ready.

    Args:
        servers: which have just been started.
        say: is called with a line when a server is ready, and with the ones that are not.
    """

    def __init__(self, servers: Iterable[LaunchedServer], say: Callable[[str], None]) -> None:
        self._servers, self._say = list(servers), say
        self._ready: set[str] = set()
        self._began = self._reported = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def look(self, interval: float) -> None:
        """Look at each server once, and sleep for a moment.

        Args:
            interval: seconds between two lines about a server that is not ready.

        Raises:
            LaunchError: one has ended.
            KeyboardInterrupt: see `check_interrupted`.
        """
        late = [server for server in self._servers if not server.has_answered()]
        for server in self._servers:
            if server not in late and server.name not in self._ready:
                self._ready.add(server.name)
                self._say(f"{server.name} is ready after {self.seconds:.0f} s")
        if late and time.monotonic() - self._reported >= interval:
            self._reported = time.monotonic()
            for server in late:
                self._say(f"{server.name} is not ready yet: {self.seconds:.0f} s")
        check_interrupted()
        time.sleep(LOOK_SECONDS)


def ray_command(asked: LaunchSettings, doors: AccessPolicy) -> list[str]:
    """The Ray head, as a child that ends when it is told to."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += [f"--node-ip-address={doors.address}", f"--port={asked.ray_port}"]
    command += [f"--dashboard-host={doors.host}", f"--dashboard-port={asked.dashboard_port}"]
    if asked.num_cpus:
        command.append(f"--num-cpus={asked.num_cpus}")
    if doors.is_local:
        # Nobody has to know the rest of its ports, and Ray's own ranges may be another cluster's on this machine.
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        command += [f"--{what}-port={free_port()}" for what in ("ray-client-server", "dashboard-agent-listen")]
    return command


def ray_environment(asked: LaunchSettings, doors: AccessPolicy) -> dict[str, str]:
    """This process's own, with what decides whether Ray asks for a token, and the MLflow server of submitted jobs."""
    return {**os.environ, "MLFLOW_TRACKING_URI": f"http://{LOCAL}:{asked.mlflow_port}", **doors.environment}


def mlflow_command(asked: LaunchSettings) -> list[str]:
    """The MLflow server, for this machine alone."""
    names = ",".join(f"{name}:{asked.mlflow_port}" for name in (LOCAL, "localhost"))
    return [
        *(sys.executable, "-m", "mlflow", "server", "--host", LOCAL, "--port", str(asked.mlflow_port)),
        *("--backend-store-uri", f"sqlite:///{asked.database}", "--artifacts-destination", str(asked.artifacts)),
        *("--allowed-hosts", names, "--workers", "1"),
    ]


def mlflow_environment() -> dict[str, str]:
    """This process's own, without the address of another server, and with pickles refused."""
    own = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    return {**own, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}


def summary_lines(asked: LaunchSettings, doors: AccessPolicy, logs: Path, late: Path | None = None) -> list[str]:
    """Return where everything is, and the environment of its users; nothing secret.

    Args:
        asked, doors: what was started.
        logs: the folder of the logs.
        late: MLflow's log, where it does not answer yet.
    """
    head, dashboard = f"{doors.address}:{asked.ray_port}", _dashboard(asked, doors)
    exports = {
        "RAY_ADDRESS": head,
        "RAY_API_SERVER_ADDRESS": dashboard,
        "MLFLOW_TRACKING_URI": f"http://{LOCAL}:{asked.mlflow_port}",
        **doors.environment,
    }
    who = "with the token" if doors.authenticated else "from this machine alone"
    waits = [
        f"MLflow  does not answer yet, and is waited for: see {late}",
        "        runs may begin when it answers; those that have begun need it only to be sent to",
    ]
    return [
        f"Ray     {head}, dashboard and jobs {dashboard}, {who}",
        f"MLflow  http://{LOCAL}:{asked.mlflow_port}, from this machine alone, database {asked.database}",
        *(waits if late else []),
        f"logs    {logs}",
        "",
        "In another terminal:",
        *(f"  export {name}={shlex.quote(str(value))}" for name, value in exports.items()),
        "",
        "Ctrl-C stops both.",
    ]


def _check_database(file: Path) -> None:
    """Raise `StorageError` unless SQLite can write a database and its journal there: MLflow would try for minutes."""
    check_writable(file.parent)
    with disk_errors(file):
        for path in (file, file.with_name(f"{file.name}-journal")):
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(path.stat().st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def _dashboard(asked: LaunchSettings, doors: AccessPolicy) -> str:
    host = f"[{doors.address}]" if ":" in doors.address else doors.address
    return f"http://{host}:{asked.dashboard_port}"
