"""A server of another program's as a child: its log, its readiness, and its end, with all that it started."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from raytriever.errors import ConfigError, UserError

END_SECONDS = 15.0  # in which a server ends by itself when it is asked to
LAST_LINES = 3
ANSWER_SECONDS = 2.0  # of one request


class LaunchError(UserError):
    """A server did not start, or ended by itself."""


class Launched:
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
