"""Process pools and single processes. They end with their parent, and do not run the user's script a second time."""

from __future__ import annotations

import gc
import importlib
import math
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Self, TypeVar

from raytriever.core.interruption import end_with_parent
from raytriever.core.machine import clean_processes, safe_imports, usable_cores

TRIES = 3  # number of processes that die over one item before `ProcessDeath` is raised
Item = TypeVar("Item")
Result = TypeVar("Result")


class ProcessDeath(Exception):
    """`TRIES` processes died while they worked on one item. The item is the exception's only argument."""


def map_in_processes(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    preload: list[str],
    begin: Callable[..., None] | None = None,
    *arguments: Any,
) -> Iterator[Result]:
    """Call a function with each item in a pool of processes, one for each core; yield the results as they arrive.

    If a process dies, its pool ends. The items of the pool are then repeated one at a time, to find the item that
    kills a process. So a call may run a second time, even if it had finished. Raise `ProcessDeath` if `TRIES` processes
    died while they worked on one item.

    Args:
        function: function that is defined at the top level of a module.
        items: argument of each call. At most two items per process are read ahead.
        preload: modules that are imported once and shared by the processes; only the first pool's modules are used.
        begin: function that each process calls with `arguments` when it starts; None to call nothing.
        arguments: arguments of `begin`.
    """
    rest = iter(items)

    def run(workers: int, items: Iterator[Item]) -> Generator[Result, None, list[Item]]:
        """Yield results until all items are done, or a process dies. Return the items that then have no result."""
        waiting: dict[Any, Item] = {}
        with _pool(workers, preload, begin, *arguments) as pool:
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

    while lost := (yield from run(usable_cores(), rest)):
        for item in lost:
            tries = 1
            while (yield from run(1, iter([item]))):
                tries += 1
                if tries == TRIES:
                    raise ProcessDeath(item)


def _pool(workers: int, preload: list[str], begin: Callable[..., None] | None, *arguments: Any) -> Any:
    # loky starts all processes before the first call. The pool of the standard library starts them one by one; in
    # Python 3.11 it waits forever if one dies while another starts.
    from loky import ProcessPoolExecutor

    # Fork the processes from an empty server, because this process may have threads, and spawning is slow.
    context = clean_processes()
    context.set_forkserver_preload([*preload, "loky.process_executor"])
    try:
        with _clean_start():
            return ProcessPoolExecutor(workers, context=context, initializer=_begin, initargs=(begin, arguments))
    except OSError as error:  # too many open files: close the pool's files, so that the caller can clean up
        traceback.clear_frames(error.__traceback__)
        raise


class ChildProcess:
    """Process for calls that may take too long, need too much memory or crash.

    The process starts at the first call. If it has died, the next call starts it again. Use it as a context manager.

    Args:
        preload: module that is imported once and shared by all such processes. Only the first object's module is used.
        memory: bytes that the process may allocate for data; None for no limit.
    """

    def __init__(self, preload: str, memory: int | None = None) -> None:
        self._preload, self._memory = preload, memory
        self._process: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def call(self, seconds: float | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a call. Raise `TimeoutError` if it took more than `seconds`. Raise `MemoryError` if it
        needed more than `memory`. Raise `ChildProcessError` if the process died.

        Args:
            seconds: limit of the call's CPU time, at least 1; None for no limit.
            function: Function of a module; its errors are raised here.
        """
        if self._process is None:
            self._process = _pool(1, [self._preload], _limit_data, self._preload, self._memory)
        try:
            with _clean_start():
                call = self._process.submit(_limited, seconds, function, arguments)
            error = call.exception()
        except BaseException:  # such as Ctrl-C
            self._close()
            raise
        if isinstance(error, BrokenProcessPool):
            self._close()
            code = re.search(r"\{(\w+)\(", str(error))
            if code and code[1] == signal.SIGXCPU.name:
                raise TimeoutError
            raise ChildProcessError(code[1] if code else str(error))
        if error is not None:
            raise error
        return call.result()

    def _close(self) -> None:
        if self._process is not None:
            self._process.shutdown(kill_workers=True)
            self._process = None


def _limit_data(preload: str, memory: int | None) -> None:
    import resource

    importlib.import_module(preload)  # not in a call, whose time is limited; the fork server may not have it
    _limit(resource.RLIMIT_CORE, 0)  # otherwise SIGXCPU would write a core file
    if memory is not None:
        _limit(resource.RLIMIT_DATA, memory)


def _limited(seconds: float | None, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    import resource

    if seconds is not None:
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds))
    with suppress(MemoryError):  # with its traceback, the error would keep the memory full and could not be reported
        return function(*arguments)
    gc.collect()
    raise MemoryError


def _limit(kind: int, value: int) -> None:
    """Set the soft limit of a resource, at most to this process's hard limit."""
    import resource

    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


@contextmanager
def _clean_start() -> Iterator[None]:
    """Hide the main module and the working folder while a process starts. A `multiprocessing` process runs the main
    module again. So a user's script without `if __name__ == "__main__"` would do its work in each process, and wait
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
    # The parent handles Ctrl-C. There is one process per core, so a tokenizer needs no threads of its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = "1"
    if begin is not None:
        begin(*arguments)
