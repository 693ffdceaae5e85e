"""Clients of the first worker for mining and validation: of an actor, or of a thread of its own process.

Where training leaves no GPU for other processes, the worker's own GPU encodes and searches between two steps, while
training waits. No second process takes memory of the GPU, and the memory of a job is given back before the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

import ray
import torch

from raytriever.errors import UserError
from raytriever.models.files import first_line
from raytriever.training.background import JobError

Result = TypeVar("Result")


class ActorClient(Generic[Result]):
    """Client of a `jobs.CheckpointJob`; see `JobClient`.

    Args:
        show: called with whether a job is running. Alerts on steps that take long need to know it.
    """

    def __init__(self, actor: Any, show: Callable[[bool], None]) -> None:
        self._actor, self._show = actor, show
        self._result: Any = None

    def submit(self, number: int, checkpoint: Path) -> None:
        """See `JobClient.submit`."""
        self._show(True)
        self._result = self._actor.run.remote(number, str(checkpoint))

    def poll(self) -> Result | None:
        """See `JobClient.poll`."""
        if not ray.wait([self._result], timeout=0)[0]:
            return None
        self._show(False)
        try:
            result: Result | UserError = ray.get(self._result)
        except ray.exceptions.RayError as error:  # a defect, or the actor died too often
            raise JobError(str(error).strip().splitlines()[-1]) from error
        if isinstance(result, UserError):
            raise result
        return result


class ThreadClient(Generic[Result]):
    """Client of a thread that does one job after another on the device of this worker; see `JobClient`.

    Args:
        show: see `ActorClient`.
    """

    def __init__(self, work: Callable[[int, Path], Result], device: torch.device, show: Callable[[bool], None]) -> None:
        self._work, self._device, self._show = work, device, show
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="between-steps")
        self._job: Future[Result]

    def submit(self, number: int, checkpoint: Path) -> None:
        """See `JobClient.submit`."""
        self._show(True)
        self._job = self._thread.submit(self._run, number, checkpoint)

    def poll(self) -> Result | None:
        """See `JobClient.poll`."""
        if not self._job.done():
            return None
        self._show(False)
        return self._job.result()

    def _run(self, number: int, checkpoint: Path) -> Result:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread
        try:
            return self._work(number, checkpoint)
        except UserError as error:
            reason = str(error)
        except Exception as error:  # a defect, or the GPU has too little memory: the job fails, training does not
            reason = first_line(error)  # not the error: its traceback would keep the tensors of the job
        finally:
            torch.cuda.empty_cache()
        raise JobError(reason)
