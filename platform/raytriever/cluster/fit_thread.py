"""`fit` of Ray Train or Ray Tune on a thread of its own.

On the main one it takes over Ctrl-C and ends the process with a code that says nothing; here an interruption reaches
whoever waits, who ends the fit before the Ray session ends: Ray crashes a process that is in a call to it then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import ray

from raytriever.interruption import check_interrupted

LOOK_SECONDS = 0.2
# A fit that is told to end has so long to do it.
END_SECONDS = 10.0


class FitThread(threading.Thread):
    """Runs `fit` once started; `failure` is what it ended with, None where it ended well or has not ended.

    Args:
        fit: of a trainer or a tuner.
    """

    def __init__(self, fit: Callable[[], object]) -> None:
        super().__init__(name="raytriever-fit", daemon=True)
        self._fit = fit
        # Not asked of the thread: an interrupted `join` takes a thread for ended that is not (bpo-45274).
        self._ended = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Run it."""
        try:
            self._fit()
        except Exception as failure:  # for the caller's thread
            self.failure = failure
        finally:
            self._ended.set()

    def wait(self, broken: threading.Event) -> None:
        """Come back when `fit` has ended or `broken` is set; raises KeyboardInterrupt also where one was lost."""
        while not broken.is_set() and not self._ended.wait(LOOK_SECONDS):
            check_interrupted()

    def end(self, hurry: Callable[[], None]) -> None:
        """Come back when `fit` has ended, or does not end in `END_SECONDS`.

        Args:
            hurry: has it end; called again and again, since there may be nothing to be ended yet.
        """
        until = time.monotonic() + END_SECONDS
        while not self._ended.is_set() and time.monotonic() < until:
            hurry()
            self._ended.wait(LOOK_SECONDS)
        if not self._ended.is_set():  # asked of a session that is over, Ray would start one
            ray._private.auto_init_hook.enable_auto_connect = False
