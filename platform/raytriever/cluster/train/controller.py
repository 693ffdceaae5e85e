"""Callbacks in Ray Train's controller: introduce the controller, clean up worker groups, report failures.

Imports nothing heavy, because the controller loads it. An interrupted driver ends the controller, since a thread still
inside `fit` crashes the process when the session ends. Ray Train forgets the placement group of a worker group that
failed before training; `Housekeeping` releases it, so that the next group finds a place on a full cluster."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.train import UserCallback
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback


class Introduction(ControllerCallback):
    """Sends the handle of the controller to the event queue when the controller starts.

    Args:
        queue: of `open_event_queue`.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def after_controller_start(self, train_run_context: Any) -> None:
        """Called in the controller, before it starts a worker."""
        self._queue.set_controller(ray.get_runtime_context().current_actor)


class Housekeeping(ControllerCallback, WorkerGroupCallback):
    """Shuts a forgotten group down, before another one begins or the controller ends. Has to come before Ray Train's
    own callbacks, after one of which that fails no other is told that there is a group; see `FIRST`."""

    def __init__(self) -> None:
        self._group: Any = None

    def after_worker_group_start(self, worker_group: Any) -> None:
        """There is a group, whose workers are not joined yet."""
        self._group = worker_group

    def after_worker_group_shutdown(self, worker_group_context: Any) -> None:
        """There is none."""
        self._group = None

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Another one is to begin."""
        self._leave_none()

    async def before_controller_shutdown(self) -> None:
        """None is to begin any more."""
        self._leave_none()

    def _leave_none(self) -> None:
        if self._group is not None:
            self._group.shutdown()


# In the environment of who makes the trainer: callbacks that come first.
FIRST = {"RAY_TRAIN_CALLBACKS": f"{Housekeeping.__module__}.{Housekeeping.__name__}"}


def end_controller(queue: Any) -> None:
    """End the controller and with it its workers, where it has told of itself; nothing where nobody can be asked."""
    try:
        controller = queue.controller()
        if controller is not None:
            ray.kill(controller)
    except RayError:
        return


class Failures(UserCallback):
    """Hears in Ray Train's controller of every group that failed, before the next one begins."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Record the failure in the event queue."""
        died = False
        reasons: list[str] = []
        for rank, error in sorted(worker_exceptions.items()):
            cause = getattr(error, "health_check_failure", error)
            if isinstance(cause, RayActorError):
                died = True
                reasons.insert(0, f"worker {rank} died{' with its node' if 'node' in str(cause) else ''}")
            else:
                reasons.append(f"worker {rank}: {type(cause).__name__}: {cause}")
        self._queue.record_failure("\n".join(reasons), died)
