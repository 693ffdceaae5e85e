"""Process groups of tests: workers are forked from a process that has imported torch and the training loop.

A worker that imports them itself takes some five seconds of a processor; a forked one takes a few milliseconds. The
process from which they are forked has one thread, as fork requires."""

from __future__ import annotations

import atexit
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

IMPORTS = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "numba",
    "pyarrow",
    "raytriever.data.prepare.open_dataset",
    "raytriever.training.loop",
)
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_started: list[tuple[subprocess.Popen[bytes], Connection]] = []


def run_groups(script: Path, sizes: tuple[int, ...], *arguments: object, seconds: float = 280) -> list[list[Any]]:
    """Run `main(*arguments)` of a script in process groups that run at the same time.

    Args:
        script: defines `main`. Its arguments and its result can be pickled.
        sizes: number of workers of each group; a worker of a group of one has no process group.
        arguments: passed to every worker.
        seconds: after which the test fails.

    Returns:
        The results of each group's workers, by rank.

    Raises:
        AssertionError: a worker fails or takes too long; the text is its traceback.
    """
    if not _started:
        _started.append(_start())
    try:
        _send(_started[0][1], (script, sizes, arguments, seconds, dict(os.environ)))
        error, results = _receive(_started[0][1])
    except BaseException:
        _end()
        raise
    assert not error, error
    return results


def run_group(script: Path, size: int, *arguments: object, seconds: float = 280) -> list[Any]:
    """Run `main(*arguments)` of a script in one process group; see `run_groups`."""
    return run_groups(script, (size,), *arguments, seconds=seconds)[0]


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    here, there = Pipe()
    with there:
        process = subprocess.Popen(
            [sys.executable, __file__, str(there.fileno())],
            pass_fds=[there.fileno()],
            stdout=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,
        )
    return process, here


def _send(connection: Connection, content: object) -> None:
    # `Connection.send` would leave tensors in memory that ends with this process.
    connection.send_bytes(pickle.dumps(content))


def _receive(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())  # noqa: S301 - from a process that this file has started


@atexit.register
def _end() -> None:
    while _started:
        process, connection = _started.pop()
        connection.close()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _serve(requests: Connection) -> None:
    """Run the groups that the process of the tests asks for, until it ends."""
    for name in IMPORTS:
        importlib.import_module(name)
    while True:
        try:
            request = _receive(requests)
        except EOFError:
            return
        with TemporaryDirectory() as folder:
            _send(requests, _run(Path(folder), *request))


def _run(
    folder: Path,
    script: Path,
    sizes: tuple[int, ...],
    arguments: tuple[object, ...],
    seconds: float,
    environment: dict[str, str],
) -> tuple[str, list[list[Any]]]:
    """Return the text of the first error, and the results of each group's workers."""
    os.environ |= environment | ONE_THREAD
    pids, workers = list[int](), dict[Connection, tuple[int, int]]()
    results: list[list[Any]] = [[None] * size for size in sizes]
    for group, size in enumerate(sizes):
        for rank in range(size):
            here, there = Pipe()
            pid = os.fork()
            if not pid:
                _work(there, folder / str(group), script, rank, size, arguments)
            there.close()
            pids.append(pid)
            workers[here] = (group, rank)
    end, error = time.monotonic() + seconds, ""
    while workers and not error:
        ready = wait(list(workers), end - time.monotonic())
        if not ready:
            error = f"not finished after {seconds} s: {list(workers.values())} (group, rank)"
        for connection in ready:
            group, rank = workers.pop(connection)
            try:
                error, results[group][rank] = _receive(connection)
            except EOFError:
                error = f"worker {rank} of group {group} died"
            if error:
                break
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return error, results


def _work(
    connection: Connection, store: Path, script: Path, rank: int, size: int, arguments: tuple[object, ...]
) -> None:
    """Run one worker, and end this process."""
    import torch
    from torch import distributed

    try:
        torch.set_num_threads(1)
        if size > 1:
            distributed.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=200)
            )
        sys.path[:0] = [str(script.parent), str(Path(__file__).parent)]
        result = importlib.import_module(script.stem).main(*arguments)
        _send(connection, ("", result))
    except BaseException:
        _send(connection, (traceback.format_exc(), None))
    os._exit(0)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
