"""Processes that end with their parent, and start without running a user's script again: pools, and single calls."""

from __future__ import annotations

import importlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Self, TypeVar

from raytriever.interruption import end_with_parent
from raytriever.machine import clean_processes, safe_imports, usable_cores

TRIES = 3  # processes that may die over one item
_POOL = "loky.process_executor"
Item = TypeVar("Item")
Result = TypeVar("Result")


class ProcessDeath(Exception):
    """`TRIES` processes died over one item, which is the only argument."""


def map_in_processes(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    preload: list[str],
    begin: Callable[..., None] | None = None,
    *arguments: Any,
) -> Iterator[Result]:
    """Call a function with each item in a pool of processes, one for each core; yield the results as they arrive.

    A process that dies ends its pool. The items that the pool had are done again one at a time, so the one at fault is
    known; a call that was finished may be repeated.

    Args:
        function: function of a module.
        items: read while there is room for two items for each process.
        preload: modules that the processes share; the first pool of this process decides.
        begin: called with `arguments` when a process starts; None for nothing.
        arguments: arguments of `begin`.

    Raises:
        ProcessDeath: `TRIES` processes died over one item.
    """
    rest = iter(items)

    def run(workers: int, items: Iterator[Item]) -> Generator[Result, None, list[Item]]:
        return _run_pool(workers, function, items, [*preload, _POOL], (begin, arguments))

    while lost := (yield from run(usable_cores(), rest)):
        for item in lost:
            tries = 1
            while (yield from run(1, iter([item]))):
                tries += 1
                if tries == TRIES:
                    raise ProcessDeath(item)


def _run_pool(
    workers: int,
    function: Callable[[Item], Result],
    items: Iterator[Item],
    preload: list[str],
    begin: tuple[Callable[..., None] | None, tuple[Any, ...]],
) -> Generator[Result, None, list[Item]]:
    """Yield results until all items are done; return the items that are lost because a process died."""
    # Its processes all start before the first call. The standard library's pool starts them one by one, and Python
    # 3.11 waits for ever if one dies while another starts.
    from loky import ProcessPoolExecutor

    # Forked from an empty server: this process may have threads, and spawning is slow.
    context = clean_processes()
    context.set_forkserver_preload(preload)
    waiting: dict[Any, Item] = {}
    try:
        with _clean_start():
            pool = ProcessPoolExecutor(workers, context=context, initializer=_begin, initargs=begin)
    except OSError as error:  # too many open files: those of the pool are closed, so that a caller can clean up
        traceback.clear_frames(error.__traceback__)
        raise
    with pool:
        try:
            while True:
                for item in items:
                    with _clean_start():
                        waiting[pool.submit(function, item)] = item
                    if len(waiting) == 2 * workers:
                        break
                if not waiting:
                    return []
                for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                    result = done.result()
                    del waiting[done]
                    yield result
        except BrokenProcessPool:
            return list(waiting.values())
        except BaseException:
            pool.shutdown(kill_workers=True)
            raise


class ChildProcess:
    """Process for calls that may take too long, need too much memory or crash.

    It starts with the first call, and again with the next one after it died. Use it as a context manager.

    Args:
        preload: module that such processes share; the first one decides.
        memory: bytes of data that the process may have; None for no limit.
    """

    def __init__(self, preload: str, memory: int | None = None) -> None:
        self._preload, self._memory = preload, memory
        self._process: Any = None
        self._connection: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def call(self, seconds: float | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a call.

        Args:
            seconds: limit of the call's processor time, at least 1; None for none.
            function: Function of a module; its errors are raised here.

        Raises:
            TimeoutError: the call took longer.
            MemoryError: the call needed more memory.
            ChildProcessError: the process died.
        """
        if self._process is None:
            self._start()
        try:
            self._connection.send((seconds, function, arguments))
            result, error = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            self._close()
            if code == -signal.SIGXCPU:
                raise TimeoutError from None
            raise ChildProcessError(f"signal {-code}" if code < 0 else f"exit code {code}") from None
        except BaseException:  # such as Ctrl-C: the answer would be read as that of the next call
            self._close()
            raise
        if error is not None:
            raise error
        return result

    def _start(self) -> None:
        context = clean_processes()
        context.set_forkserver_preload([self._preload])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._preload, self._memory))  # type: ignore[attr-defined]
        with _clean_start():
            self._process.start()
        theirs.close()

    def _close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


def _serve(connection: Any, preload: str, memory: int | None) -> None:
    import resource

    _begin(None, ())
    importlib.import_module(preload)  # the fork server may have been started with other modules; no call pays for it
    _limit(resource.RLIMIT_CORE, 0)  # the signal of the processor time would write a core file
    if memory is not None:
        _limit(resource.RLIMIT_DATA, memory)
    while True:
        try:
            seconds, function, arguments = connection.recv()
        except EOFError:
            return
        if seconds is not None:
            _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds))
        answer: tuple[Any, Exception | None]
        try:
            answer = function(*arguments), None
        except Exception as error:
            answer = None, error
        try:
            connection.send(answer)
        except MemoryError as error:  # of a result that was nearly too large
            answer = None, error
            connection.send(answer)


def _limit(kind: int, value: int) -> None:
    """Set the soft limit of a resource, not above the hard one that this process has."""
    import resource

    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


@contextmanager
def _clean_start() -> Iterator[None]:
    """Hide the main module and the working folder while a process starts. A process of `multiprocessing` runs the main
    module again. A user's script without `if __name__ == "__main__"` would do its work again in each process, and wait
    for itself forever."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with safe_imports():
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
