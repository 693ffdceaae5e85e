"""A real S3 server on this machine (SeaweedFS), with a key that may write and one that may only read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from processes import free_ports

from raytriever.core.store import object_stores

TRIES = 3
WRITER, READER = ("writer", "writer-secret"), ("reader", "reader-secret")


class ObjectStore:
    """A running server.

    Args:
        folder: of its data.
        host: address that it listens at.
        enter: command that runs a program where the address is.
        limits: further flags of `weed mini`.
    """

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", enter: Sequence[str] = (), limits: Sequence[str] = ()
    ) -> None:
        actions = {WRITER: ["Admin", "Read", "Write", "List"], READER: ["Read", "List"]}
        identities = [
            {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": allowed}
            for (key, secret), allowed in actions.items()
        ]
        (folder / "keys.json").write_text(json.dumps({"identities": identities}))
        program = shutil.which("weed", path=str(Path(sys.executable).parent)) or "weed"
        # Of every program that `weed mini` starts, so that several servers run at once.
        flags = [f"{name}.port" for name in ("master", "volume", "filer", "s3", "admin", "webdav")]
        ports = dict(zip((*flags, "s3.port.iceberg", "s3.port.lance"), free_ports(8), strict=True))
        self.endpoint = f"http://{host}:{ports['s3.port']}"
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(*enter, program, "mini", f"-dir={folder}", f"-s3.config={folder / 'keys.json'}", f"-ip={host}"),
                    *(f"-{flag}={port}" for flag, port in ports.items()),
                    *limits,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def environment(self, credentials: tuple[str, str] = WRITER) -> dict[str, str]:
        """Return the variables with which a process reaches the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": credentials[0],
            "AWS_SECRET_ACCESS_KEY": credentials[1],
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def use(self, monkeypatch: pytest.MonkeyPatch, credentials: tuple[str, str] = WRITER) -> None:
        """Let this process reach the server."""
        for name, value in self.environment(credentials).items():
            monkeypatch.setenv(name, value)
        object_stores._store.cache_clear()

    def wait(self) -> None:
        """Return when the server answers."""
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            with suppress(OSError):
                try:
                    urllib.request.urlopen(f"{self.endpoint}/status", timeout=1)
                except urllib.error.HTTPError:
                    return
                return
            time.sleep(0.1)
        raise RuntimeError("the object store does not answer")

    def pause(self) -> None:
        """Stop the server for now: it accepts connections and does not answer."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the server."""
        os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def object_store(folder: Path, *limits: str) -> Iterator[ObjectStore]:
    """Run a server for the length of a block."""
    store = _started(folder, limits)
    try:
        yield store
    finally:
        _end(store)


def _started(folder: Path, limits: tuple[str, ...]) -> ObjectStore:
    """Start a server; try other ports if another process takes one of them meanwhile."""
    for number in range(TRIES):
        (data := folder / f"try-{number}").mkdir()
        store = ObjectStore(data, limits=limits)
        try:
            store.wait()
            return store
        except BaseException as error:
            _end(store)
            if not isinstance(error, RuntimeError) or number + 1 == TRIES:
                raise
    raise AssertionError


def _end(store: ObjectStore) -> None:
    store.process.kill()
    store.process.wait()
