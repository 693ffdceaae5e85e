"""Wait of a run for the resources of its workers: what it waits for is shown, and it ends after some minutes."""

from __future__ import annotations

import time
from collections.abc import Callable

from raytriever.cluster.event_queue import Event, GroupWanted, MissingWorkers, StatusMessage
from raytriever.cluster.placement import room_for
from raytriever.errors import UserError, setting
from raytriever.training.parallel.strategy import TrainingError

LOOK_SECONDS = 2.0  # between two questions to Ray


class ClusterError(UserError):
    """The cluster lacks resources for the run."""


class Wait:
    """Wait for the workers of each group, from the first request until all of them have started.

    Ray Train asks again and again by variables of its own, and waits without a word.

    Args:
        minutes: longest wait for one group.
        show: called with the status and the number of missing workers, in the thread of the events.
    """

    def __init__(self, minutes: float, show: Callable[[Event], None]) -> None:
        self._minutes, self._show = minutes, show
        self._wanted: GroupWanted | None = None
        self._room = 0
        self._ends = self._next_look = 0.0

    def begin(self, wanted: GroupWanted) -> None:
        """Begin to wait, unless the wait for an earlier request goes on."""
        now = time.monotonic()
        is_new, changed = self._wanted is None, wanted.room != self._room
        if is_new:
            self._ends = now + 60 * self._minutes
        self._wanted, self._room = wanted, wanted.room
        if is_new or changed:
            self._report(wanted, self._show)

    def end(self) -> None:
        """End the wait: all workers have started."""
        self._wanted = None
        self._show(MissingWorkers(0))

    def check(self, send: Callable[[Event], None]) -> None:
        """Send what is missing, if that has changed; called in another thread than that of the events.

        Raises:
            ClusterError: the wait took too long.
            TrainingError: the cluster has room, but no group has started.
        """
        wanted, now = self._wanted, time.monotonic()
        if wanted is None or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        if self._room < wanted.workers:  # else the group may have reserved what is free
            room = min(room_for(wanted.resources), wanted.workers)
            if room != self._room:
                self._room = room
                self._report(wanted, send)
        if now > self._ends and self._room == wanted.workers:
            raise TrainingError(
                f"workers died as they started, for {self._minutes:g} minutes",
                remedy="check the memory of their nodes, then run the same command again: it resumes",
            )
        if now > self._ends:
            raise ClusterError(
                f"had room for {self._room} of {_count(wanted)} for {self._minutes:g} minutes",
                "the Ray cluster",
                f"add nodes, lower {setting('num_workers')}, or wait longer by {setting('wait_minutes')}; "
                "`ray status` shows what uses its resources",
            )

    def _report(self, wanted: GroupWanted, show: Callable[[Event], None]) -> None:
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + self._ends - time.monotonic()))
        missing = f"waiting for {_count(wanted)}, the cluster has room for {self._room}; gives up at {until}"
        show(StatusMessage("starting the workers" if self._room == wanted.workers else missing))
        show(MissingWorkers(wanted.workers - self._room))


def _count(wanted: GroupWanted) -> str:
    return f"{wanted.workers} worker{'s' if wanted.workers > 1 else ''}"
