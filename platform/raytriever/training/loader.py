"""Batches are made ahead of the step that takes them, by one thread.

1. The thread makes the batch of step t by a pure function of t, so what is thrown away costs nothing but time.
2. It may have begun at most `depth` batches that were not yet taken; then it sleeps until one is.
3. How long a step waited for its batch is measured, because that is all a loader can cost.

A thread, not a process: what a batch takes is slicing memory-mapped tokens into arrays, a millisecond or two, less
than sending it between processes. It calls numpy rather than torch, which would give each thread its own pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
DEPTH = 2


@dataclass(frozen=True)
class _Made(Generic[T]):
    """A batch, or why there is none."""

    batch: T | None = None
    error: BaseException | None = None


class Prefetcher(Generic[T]):
    """An iterator over `make(step)` for the given steps, in order; to be used in a `with` statement.

    What `make` raises is raised where its batch would be taken, and ends the iteration. On leaving, by whatever
    way, the thread finishes the batch it is making and ends.

    Args:
        make: the batch of a step, the same whenever and in whatever thread it is called.
        steps: which batches, in order.
        depth: batches made ahead, at least 1.

    Attributes:
        waited: seconds for which the last batch taken was waited for.
    """

    def __init__(self, make: Callable[[int], T], steps: Iterable[int], depth: int = DEPTH) -> None:
        self.waited = 0.0
        self._make = make
        self._steps = steps
        # Both queues are C code that an interrupt cannot leave half-locked, and sleep without polling.
        self._places: SimpleQueue[bool] = SimpleQueue()
        self._made: SimpleQueue[_Made[T] | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._run, name="loader", daemon=True)
        for _ in range(depth):
            self._places.put(True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed = True
        self._places.put(True)
        self._thread.join()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._closed:
            raise StopIteration
        began = perf_counter()
        made = self._made.get()
        self.waited = perf_counter() - began
        if made is None:
            self._closed = True
            raise StopIteration
        if made.error is not None:
            self._closed = True
            raise made.error
        self._places.put(True)
        return made.batch  # type: ignore[return-value]

    def _run(self) -> None:
        """The thread. It may end before its last batches are taken, but never without having put an end."""
        try:
            for step in self._steps:
                self._places.get()
                if self._closed:
                    break
                self._made.put(_Made(self._make(step)))
        except BaseException as error:
            self._made.put(_Made(error=error))
        self._made.put(None)
