"""Run `fit` of Ray Train or Ray Tune on a thread, and repeat it if a worker died before training.

On the main thread, `fit` would handle Ctrl-C itself. With `fit` on another thread, an interruption reaches the waiting
main thread. It ends `fit` before the Ray session ends; otherwise a call of Ray would crash the process. Ray Train
restarts a group that failed during its creation or during training, but ends `fit` if a worker dies in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ray.exceptions import RayActorError
from ray.train import ControllerError
from ray.train.torch import TorchTrainer

from raytriever.cluster.events_and_restarts import OpenQueue
from raytriever.cluster.ray_private import forbid_auto_connect
from raytriever.cluster.train.controller_callbacks import end_controller
from raytriever.core.interruption import check_interrupted

POLL_SECONDS = 0.2
END_SECONDS = 10.0  # time in which `fit` must end after a request


class FitThread(threading.Thread):
    """Thread that runs `fit`. `failure` is its exception, or None if it succeeded or has not ended."""

    def __init__(self, fit: Callable[[], object]) -> None:
        super().__init__(name="raytriever-fit", daemon=True)
        self._fit = fit
        # An event instead of `join`, because an interrupted `join` marks a running thread as ended (bpo-45274).
        self._ended = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Run `fit`."""
        try:
            self._fit()
        except Exception as failure:  # the caller's thread reads it
            self.failure = failure
        finally:
            self._ended.set()

    def wait(self, broken: threading.Event, check: Callable[[], None] = lambda: None) -> None:
        """Wait until `fit` has ended or `broken` is set. A KeyboardInterrupt that Python has lost is raised here."""
        while not broken.is_set() and not self._ended.wait(POLL_SECONDS):
            check_interrupted()
            check()

    def end(self, hurry: Callable[[], None]) -> None:
        """Wait until `fit` has ended, at most `END_SECONDS`. `hurry` ends it, and is called repeatedly, because `fit`
        may not have started yet."""
        until = time.monotonic() + END_SECONDS
        while not self._ended.is_set() and time.monotonic() < until:
            hurry()
            self._ended.wait(POLL_SECONDS)
        if not self._ended.is_set():  # a call to Ray after the end of its session would start a new one
            forbid_auto_connect()


def fit(make: Callable[[], TorchTrainer], events: OpenQueue, check: Callable[[], None]) -> Exception | None:
    """Run `fit` until it ends, an event cannot be handled, or an interruption comes. Return the exception of `fit`;
    None if it succeeded."""
    while True:
        attempt = FitThread(make().fit)
        attempt.start()
        try:
            attempt.wait(events.has_failed, check)
        finally:
            attempt.end(lambda: end_controller(events.queue))
        failure = attempt.failure
        died_between = isinstance(failure, ControllerError) and isinstance(failure.controller_failure, RayActorError)
        if events.has_failed.is_set() or not died_between:
            return failure
        end_controller(events.queue)  # the controller would live as long as its exception
        events.queue.record_failure("a worker died before it could start training", process_died=True)
        if not events.queue.may_start():
            return attempt.failure
