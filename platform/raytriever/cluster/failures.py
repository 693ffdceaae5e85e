"""What fails a group of workers, as Ray Train's controller sees it. Imports nothing heavy: the controller loads it."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train import UserCallback


class Failures(UserCallback):
    """Hears in Ray Train's controller of every group that failed, before the next one begins."""

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Tell the mailbox, which tells the person."""
        died = False
        reasons: list[str] = []
        for rank, error in sorted(worker_exceptions.items()):
            cause = getattr(error, "health_check_failure", error)
            if isinstance(cause, RayActorError):
                died = True
                reasons.insert(0, f"worker {rank} died{' with its node' if 'node' in str(cause) else ''}")
            else:
                reasons.append(f"worker {rank}: {type(cause).__name__}: {cause}")
        ray.get(self._mailbox.fail.remote("\n".join(reasons), died))
