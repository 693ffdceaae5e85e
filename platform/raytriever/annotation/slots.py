"""Requests that may be under way at once, and which of those that wait goes next.

The one of the earliest step goes first. The steps of a query can only be asked one after another, so a query that is
begun late ends alone: begun first, the steps that others have left keep the service at work until the very end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count


class Slots:
    """A semaphore whose waiters go by their step, and by their turn within one.

    Args:
        free: how many may hold a slot at once, at least 1.
    """

    def __init__(self, free: int) -> None:
        self._free = free
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._turns = count()

    @asynccontextmanager
    async def taken(self, step: int) -> AsyncIterator[None]:
        """Wait for a slot, and hold it; `step` counts from 0."""
        if self._free:
            self._free -= 1
        else:
            given = asyncio.get_running_loop().create_future()
            heappush(self._waiting, (step, next(self._turns), given))
            try:
                await given
            except asyncio.CancelledError:
                if given.done() and not given.cancelled():  # given just before
                    self._give()
                raise
        try:
            yield
        finally:
            self._give()

    def _give(self) -> None:
        while self._waiting:
            given = heappop(self._waiting)[2]
            if not given.done():
                given.set_result(None)
                return
        self._free += 1
