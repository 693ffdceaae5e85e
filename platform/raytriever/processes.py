"""Processes that end with their parent, and start without running a user's script again: pools, and single calls."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from raytriever.interruption import end_with_parent
from raytriever.machine import clean_processes


def worker_pool(
    workers: int, preload: list[str], begin: Callable[..., None] | None = None, *arguments: Any
) -> ProcessPoolExecutor:
    """Return a pool of processes; use it with `submit`.

    Args:
        workers: number of processes.
        preload: modules that the processes share; the first pool of this process decides.
        begin: called with `arguments` when a process starts; None for nothing.
        arguments: Arguments of `begin`.
    """
    # Forked from an empty server: this process may have threads, and spawning is slow.
    context = clean_processes()
    context.set_forkserver_preload(preload)
    return ProcessPoolExecutor(workers, context, _begin, (begin, arguments))


def submit(pool: ProcessPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Submit a call to a pool of `worker_pool`."""
    with _without_main():
        return pool.submit(function, *arguments)


def call_within(seconds: float | None, preload: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call in a process of its own, which is killed after some seconds, if given.

    Args:
        seconds: time limit of the call and the start of the process; None for none.
        preload: module that such processes share.
        function: Function of a module; its errors are raised here.
        arguments: Arguments of the function.

    Raises:
        TimeoutError: the call took longer.
        ChildProcessError: the process died.
    """
    context = clean_processes()
    context.set_forkserver_preload([preload])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))  # type: ignore[attr-defined]
    with _without_main():
        process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise TimeoutError
        result, error = receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        raise ChildProcessError(f"signal {-code}" if code < 0 else f"exit code {code}") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if error is not None:
        raise error
    return result


def _answer(sender: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    _begin(None, ())
    answer: tuple[Any, Exception | None]
    try:
        answer = function(*arguments), None
    except Exception as error:
        answer = None, error
    sender.send(answer)


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module while a process starts.

    A process of `multiprocessing` runs the main module again. A user's script without `if __name__ == "__main__"` would
    do its work again in each process, and wait for itself forever.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin(begin: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    end_with_parent()
    # The parent handles Ctrl-C. Every core has a process, so a tokenizer needs no threads.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = "1"
    if begin is not None:
        begin(*arguments)
