"""`fit` of Ray Train or Ray Tune on a thread of its own.

On the main one it takes over Ctrl-C and ends the process with a code that says nothing; here an interruption reaches
whoever waits, and the end of the Ray session ends the workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

LOOK_SECONDS = 0.2


class FitThread(threading.Thread):
    """Runs `fit` once started; `failure` is what it ended with, None where it ended well or has not ended.

    Args:
        fit: of a trainer or a tuner.
    """

    def __init__(self, fit: Callable[[], object]) -> None:
        super().__init__(name="raytriever-fit", daemon=True)
        self._fit = fit
        self.failure: Exception | None = None

    def run(self) -> None:
        """Run it."""
        try:
            self._fit()
        except Exception as failure:  # for the caller's thread
            self.failure = failure

    def wait(self, broken: threading.Event) -> None:
        """Come back when `fit` has ended or `broken` is set."""
        while self.is_alive() and not broken.is_set():
            self.join(LOOK_SECONDS)
