"""A process that has imported everything heavy and forks once for each command, so that a case takes a moment.

It prints its port. A connection is one request: a line of JSON, and a line with the exit code and what was left."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing.util
import os
import pkgutil
import resource
import select
import signal
import socketserver
import sys
import threading
import time
import traceback
from typing import Any

NOBODY = 65534
# What a command started must have ended so soon after it. A server of processes first imports what it was asked for,
# which takes long where all cores are busy. Ray's agents that were starting when their raylet ended took 61 s.
AFTER_SECONDS = 90.0
HEAVY = (
    "multiprocessing.forkserver",
    "torch",
    "transformers",
    "transformers.models.bert.modeling_bert",
    "tokenizers",
    "safetensors.torch",
    "pyarrow.parquet",
    "pyarrow.fs",
    "ray",
    "ray.data",
    "ray.train",
    "faiss",
    "bm25s",
    "numba",
    "mlflow",
    "sqlalchemy.dialects.sqlite",
    "huggingface_hub",
    "aiohttp",
    "matplotlib.pyplot",
)


class Connection(socketserver.StreamRequestHandler):
    """Runs one command, and waits for it and for what it started."""

    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        child = os.fork()
        if child == 0:
            self.server.socket.close()
            self.connection.close()
            _command(request)
        code = _wait(child, request["seconds"])
        if left := _group_lives(child):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        self.wfile.write(json.dumps([code, left]).encode() + b"\n")


def main() -> None:
    """Import, then serve until the process is ended."""
    for name in HEAVY:
        importlib.import_module(name)
    import raytriever

    for module in pkgutil.walk_packages(raytriever.__path__, "raytriever."):
        if not module.name.startswith(
            ("raytriever.retrieval.index.approximate.vamana", "raytriever.training.parallel.strategies")
        ):
            importlib.import_module(module.name)
    with socketserver.ForkingTCPServer(("127.0.0.1", 0), Connection) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


def _wait(child: int, seconds: float) -> int | None:
    """The exit code of a child, negative for a signal; None where it had to be killed at its limit."""
    descriptor = os.pidfd_open(child)
    ended, _, _ = select.select([descriptor], [], [], seconds)
    os.close(descriptor)
    if not ended:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


def _group_lives(group: int) -> bool:
    end = time.monotonic() + AFTER_SECONDS
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.02)
    return True


def _command(request: dict[str, Any]) -> None:
    """Become the command: folder, environment, limits, user, then the console script's entry."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    for number, (path, flags) in enumerate(
        [
            (os.devnull, os.O_RDONLY),
            (request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (request["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ]
    ):
        descriptor = os.open(path, flags, 0o666)
        os.dup2(descriptor, number)
        os.close(descriptor)
    for name, value in request["limits"].items():
        kind = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
    if request["unprivileged"] and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    sys.argv = ["raytriever", *request["words"]]
    code = 1
    try:
        from raytriever.cli.main import run

        code = run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    # As Python ends: first its threads, which may hold semaphores of a pool, then the semaphores.
    threading._shutdown()  # type: ignore[attr-defined]
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
