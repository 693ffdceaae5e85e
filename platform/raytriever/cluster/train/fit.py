"""Run `fit` of Ray Train or Ray Tune on its own thread, and repeat it where Ray Train gives up and need not.

On the main thread `fit` takes over Ctrl-C. Here an interruption reaches the waiting thread, which ends the fit before
the Ray session ends; a process that is in a call to Ray then would crash. Ray Train restarts a group that failed during
training or during its creation, but ends the fit when a worker dies in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ray.exceptions import RayActorError
from ray.train import ControllerError
from ray.train.torch import TorchTrainer

from raytriever.cluster.event_queue import OpenQueue
from raytriever.cluster.ray_private import forbid_auto_connect
from raytriever.cluster.train.controller import end_controller
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
            forbid_auto_connect()


def fit(make: Callable[[], TorchTrainer], events: OpenQueue) -> Exception | None:
    """Fit until it ends, or until somebody else's mistake is heard of; what it failed with, or None.

    An interruption ends it, and so does anything else that goes wrong here.

    Args:
        make: the trainer of one attempt.
        events: event queue of the run; it decides whether the run may start again.
    """
    while True:
        attempt = FitThread(make().fit)
        attempt.start()
        try:
            attempt.wait(events.has_failed)
        finally:
            attempt.end(lambda: end_controller(events.queue))
        if events.has_failed.is_set() or not _died_between(attempt.failure):
            return attempt.failure
        end_controller(events.queue)  # else its process stays as long as its failure is held
        events.queue.record_failure("a worker died before it could begin", process_died=True)
        if not events.queue.may_start():
            return attempt.failure


def _died_between(failure: Exception | None) -> bool:
    return isinstance(failure, ControllerError) and isinstance(failure.controller_failure, RayActorError)
