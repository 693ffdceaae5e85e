"""What this project adds to Ray Train's controller. Imports nothing heavy: the controller loads it.

1. A driver that is interrupted ends the controller. `fit` waits for it in a call to Ray, and a thread that is still in
   that call when the session ends takes the process down with a crash; only when the controller is gone does the call
   come back. Ray tells of it nobody but a callback that runs in it.
2. A group that did not come so far as to train gives back its place. Ray Train forgets the placement group of one that
   a worker of died while their process group was made, or while they were sent what to run; on a full cluster, no
   group would find a place again.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback


class Introduction(ControllerCallback):
    """Tells the mailbox of the controller, as soon as there is one.

    Args:
        mailbox: of `monitor.listening`.
    """

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def after_controller_start(self, train_run_context: Any) -> None:
        """Called in the controller, before it starts a worker."""
        ray.get(self._mailbox.introduce.remote(ray.get_runtime_context().current_actor))


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


def end_controller(mailbox: Any) -> None:
    """End the controller and with it its workers, where it has told of itself; nothing where nobody can be asked."""
    try:
        controller = ray.get(mailbox.controller.remote())
        if controller is not None:
            ray.kill(controller)
    except RayError:
        return
