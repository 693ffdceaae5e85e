"""Fit under Ray Train to an end that is the run's: begun again where Ray Train gives up and need not.

It begins a group again that failed while it trained, and one that a worker of died while it was made; where one dies
while it is sent what to run, in between, it ends the fit.
"""

from __future__ import annotations

from collections.abc import Callable

import ray
from ray.exceptions import RayActorError
from ray.train import ControllerError
from ray.train.torch import TorchTrainer

from raytriever.cluster.controller import end_controller
from raytriever.cluster.fit_thread import FitThread
from raytriever.cluster.monitor import Listening


def fit(make: Callable[[], TorchTrainer], listener: Listening) -> Exception | None:
    """Fit until it ends, or until somebody else's mistake is heard of; what it failed with, or None.

    An interruption ends it, and so does anything else that goes wrong here.

    Args:
        make: the trainer of one attempt.
        listener: hears of the run, and decides whether it may begin again.
    """
    while True:
        attempt = FitThread(make().fit)
        attempt.start()
        try:
            attempt.wait(listener.broken)
        finally:
            attempt.end(lambda: end_controller(listener.mailbox))
        if listener.broken.is_set() or not _died_between(attempt.failure):
            return attempt.failure
        end_controller(listener.mailbox)  # else its process stays as long as its failure is held
        ray.get(listener.mailbox.fail.remote("a worker died before it could begin", True))
        if not ray.get(listener.mailbox.begin.remote()):
            return attempt.failure


def _died_between(failure: Exception | None) -> bool:
    return isinstance(failure, ControllerError) and isinstance(failure.controller_failure, RayActorError)
