"""One thread sends what the runs of a driver have told: in order, again and again while the server is away.

What is told waits on the disk, so memory does not grow with an outage, and nobody who tells waits for a server. A
server that is lost is told of once, and once when it is back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from raytriever.masking import masked
from raytriever.tracking.outbox import Connect, Outbox
from raytriever.tracking.tracker import Backlog

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 20.0  # seconds before a message is tried again, doubled each time
END_PAUSE = 2.0  # the longest pause once all is told and only the server is waited for
LOST_AFTER = 2  # failures in a row before anybody is told: a database may be locked for a moment


class Sender:
    """Sends until it is closed.

    Args:
        connect: makes or continues a run.
        say: hears lines for the person; called from the thread.
        where: the server's address, as it may be shown.
    """

    def __init__(self, connect: Connect, say: Callable[[str], None], where: str) -> None:
        self._connect, self._say, self._where = connect, say, where
        self._outboxes: list[Outbox] = []
        self._changed = threading.Condition()
        self._over = self._ending = False
        self._in_a_row = 0
        self._failing_since: float | None = None
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="raytriever-tracking", daemon=True)

    def add(self, outbox: Outbox) -> None:
        """Send what is put into an outbox, after that of the ones before; starts the thread."""
        with self._changed:
            self._outboxes.append(outbox)
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify_all()

    def wake(self) -> None:
        """Something was put into an outbox."""
        with self._changed:
            self._changed.notify_all()

    def backlog(self) -> Backlog:
        """How much waits, in all outboxes."""
        parts = [outbox.backlog() for outbox in self._outboxes]
        return Backlog(
            sum(part.points for part in parts),
            sum(part.files for part in parts),
            max((part.seconds for part in parts), default=0.0),
            self.failures,
        )

    def close(self, patience: float) -> bool:
        """Wait until all is sent, and send no more; answers whether all was.

        Args:
            patience: seconds of a server that fails which are waited for; one that takes what is sent is waited for.
        """
        began = time.monotonic()
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            while self._waiting() is not None and self._thread.is_alive():
                since = self._failing_since
                if since is not None and time.monotonic() - max(began, since) >= patience:
                    break
                self._changed.wait(0.1)
            self._over = True
            self._changed.notify_all()
        return self._waiting() is None

    def _waiting(self) -> Outbox | None:
        return next((outbox for outbox in self._outboxes if outbox.waits), None)

    def _due(self) -> Outbox | None:
        """The first whose messages are to be sent now; at the end, the first that has any."""
        return next((outbox for outbox in self._outboxes if outbox.waits and (self._ending or not outbox.due_in)), None)

    def _rest(self) -> float | None:
        """Seconds until one is due, as far as is known."""
        return min((outbox.due_in for outbox in self._outboxes if outbox.waits), default=None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (outbox := self._due()) is None and not self._over:
                    self._changed.wait(self._rest())
                if outbox is None or self._over:
                    return
            try:
                outbox.send(self._connect)
            except Exception as error:  # whatever it is, the run goes on, and it is told
                self._failed(error)
            else:
                self._took()

    def _took(self) -> None:
        if self._in_a_row >= LOST_AFTER and self._failing_since is not None:
            seconds = time.monotonic() - self._failing_since
            self._say(f"{self._where}: MLflow answers again after {seconds:.0f} s; what waited is being sent")
        with self._changed:
            self._in_a_row, self._failing_since = 0, None
            self._changed.notify_all()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._in_a_row += 1
        if self._in_a_row == LOST_AFTER:
            reason = " ".join(masked(str(error) or type(error).__name__).split())
            self._say(f"{reason}; the run goes on, and what it tells is kept and sent later")
        with self._changed:
            if self._failing_since is None:
                self._failing_since = time.monotonic()
            pause = min(FIRST_PAUSE * 2 ** (self._in_a_row - 1), LONGEST_PAUSE)
            end = time.monotonic() + pause
            while not self._over and (left := end - time.monotonic()) > 0:
                if self._ending:
                    left = min(left, END_PAUSE)
                    end = min(end, time.monotonic() + END_PAUSE)
                self._changed.wait(left)
