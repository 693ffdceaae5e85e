"""News from the first worker to the driver, without making any step wait.

Ray Train's own `report` is a barrier of all workers, too dear for every step. Here the worker sends and forgets;
the driver asks several times a second, shows the progress and writes to the tracker, so there is one writer only.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from raytriever.errors import UserError

POLL_SECONDS = 0.25


@ray.remote(num_cpus=0)
class Mailbox:
    """Keeps what was sent until it is asked for."""

    def __init__(self) -> None:
        self._news: deque[Any] = deque()
        self._mistaken = False

    def send(self, item: Any) -> None:
        """Put one item at the end."""
        self._news.append(item)
        self._mistaken |= isinstance(item, UserError)

    def has_mistake(self) -> bool:
        """Whether a mistake was ever sent that only a user can mend."""
        return self._mistaken

    def empty(self) -> list[Any]:
        """Take everything out, in the order it came."""
        items = list(self._news)
        self._news.clear()
        return items


@contextmanager
def listening(hear: Callable[[Any], None]) -> Iterator[Any]:
    """A mailbox whose items are heard, in order, on a thread of the driver; all of them when the block ends.

    Raises:
        Exception: whatever `hear` raised; it is raised again at the end of the block.
    """
    mailbox = Mailbox.remote()  # type: ignore[attr-defined]
    over = threading.Event()
    failures: list[BaseException] = []

    def listen() -> None:
        while True:
            last = over.wait(POLL_SECONDS)
            for item in ray.get(mailbox.empty.remote()):
                if not failures:
                    try:
                        hear(item)
                    except Exception as error:  # handed to the block's own thread below
                        failures.append(error)
            if last:
                return

    thread = threading.Thread(target=listen, name="raytriever-monitor", daemon=True)
    thread.start()
    try:
        yield mailbox
    finally:
        over.set()
        thread.join()
        ray.kill(mailbox)
    if failures:
        raise failures[0]
