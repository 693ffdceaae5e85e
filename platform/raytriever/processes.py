"""Processes that end with their parent, and start without running a user's script again: pools, and single calls."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

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
    with _clean_start():
        pool = ProcessPoolExecutor(workers, context=context, initializer=_begin, initargs=begin)
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
    with _clean_start():
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
def _clean_start() -> Iterator[None]:
    """Hide the main module and the working folder while a process starts.

    A process of `multiprocessing` runs the main module again. A user's script without `if __name__ == "__main__"` would
    do its work again in each process, and wait for itself forever.
    """
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
