"""Callbacks in Ray Train's controller: report the controller's handle, clean up worker groups, and report failures.

This module imports nothing heavy, because the controller loads it. An interrupted driver ends the controller, because a
thread that is still inside `fit` would crash the process when the session ends. If a worker group fails before
training, Ray Train does not release the workers' placement group. `Housekeeping` does, so that the next group fits."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.train import UserCallback
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

from raytriever.cluster.events_and_restarts import GroupStarted, GroupWanted, LostWorker
from raytriever.cluster.gpus_and_placement import room_for
from raytriever.cluster.train.network_interface import LOST_PEER, choose_interface
from raytriever.core.errors import ConfigError, lost_gpu


class GroupMessages(ControllerCallback, WorkerGroupCallback):
    """Reports from the controller to the event queue: its handle, and the workers that it requests and gets. `hosts`
    and `addresses` list the hosts and addresses of the newest group's workers, by rank."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.hosts: list[str] = []
        self.addresses: list[str] = []

    def after_controller_start(self, train_run_context: Any) -> None:
        """Send the controller's handle, before the controller starts a worker."""
        ray.get(self._queue.actor.set_controller.remote(ray.get_runtime_context().current_actor))

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Report the requested workers, before each attempt to start a group."""
        workers, resources = worker_group_context.num_workers, dict(worker_group_context.resources_per_worker)
        self._queue.send(GroupWanted(workers, resources, min(workers, room_for(resources))))

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Report the workers' hosts when all have started, or an error if their versions of raytriever differ."""
        places = [worker.metadata for worker in worker_group.get_workers()]
        self.hosts, self.addresses = [place.hostname for place in places], [place.node_ip for place in places]
        read = _version_reader()
        for host, version in zip(self.hosts, worker_group.execute(read), strict=True):
            if version != read():
                what = f"host {host} has raytriever {version}, and the command has {read()}"
                self._queue.send(ConfigError(what, "the Ray cluster", "install the same version on every host"))
                return
        self._queue.send(GroupStarted(tuple(self.hosts)))


def _version_reader() -> Callable[[], str]:
    def version() -> str:
        """Return the version of a worker. Ray sends an inner function, so any worker can run it."""
        return str(import_module("raytriever").__version__)

    return version


class Housekeeping(ControllerCallback, WorkerGroupCallback):
    """Choose the workers' network interface, and shut down a worker group that Ray Train has not cleaned up.

    It must precede Ray Train's own callbacks (see `FIRST`): if a callback fails, later callbacks are not called."""

    def __init__(self) -> None:
        self._group: Any = None

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Store the group, and choose the network interface before its workers connect."""
        self._group = worker_group
        worker_group.execute(choose_interface)

    def after_worker_group_shutdown(self, worker_group_context: Any) -> None:
        """Forget the group."""
        self._group = None

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Shut down the remembered group before another one starts."""
        self._shut_down_group()

    async def before_controller_shutdown(self) -> None:
        """Shut down the remembered group, because no other group will start."""
        self._shut_down_group()

    def _shut_down_group(self) -> None:
        if self._group is not None:
            self._group.shutdown()


# Environment variable with the callbacks that run before Ray Train's own. Set it before the trainer is created.
FIRST = {"RAY_TRAIN_CALLBACKS": f"{Housekeeping.__module__}.{Housekeeping.__name__}"}


def end_controller(queue: Any) -> None:
    """End the controller and its workers. Do nothing if the controller has not started or the queue has ended."""
    try:
        controller = ray.get(queue.actor.controller.remote())
        if controller is not None:
            ray.kill(controller)
    except RayError:
        return


class Failures(UserCallback):
    """Recorder of failed worker groups; Ray Train's controller calls it before the next group starts."""

    def __init__(self, reports: GroupMessages, queue: Any) -> None:
        self._reports, self._queue = reports, queue

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Record the failure in the event queue."""
        died = False
        reasons: list[str] = []
        for rank, error in sorted(worker_exceptions.items()):
            cause = getattr(error, "health_check_failure", error)
            if isinstance(cause, RayActorError):
                died = True
                reasons.insert(0, f"{self._named(rank)} died{' with its node' if 'node' in str(cause) else ''}")
            elif peer := LOST_PEER.search(str(cause)):  # other workers notice a killed worker before Ray does
                died = True
                reasons.append(f"{self._named(rank)} lost its connection to {self._at(peer[1] or peer[2], rank)}")
            elif reason := lost_gpu(cause):
                died = True
                reasons.insert(0, f"{self._named(rank)} lost its GPU ({reason})")
            else:
                died |= "OutOfMemory" in type(cause).__name__  # treated like a process that the system has killed
                reasons.append(f"worker {rank}: {type(cause).__name__}: {cause}")
        self._queue.send(LostWorker(f"{reasons[0].splitlines()[0]}; the workers start again."))
        self._queue.record_failure("\n".join(reasons), died)

    def _at(self, address: str, rank: int) -> str:
        addresses = self._reports.addresses
        if address not in addresses or address == addresses[rank]:
            return "another worker"
        return f"host {self._reports.hosts[addresses.index(address)]}"

    def _named(self, rank: int) -> str:
        hosts = self._reports.hosts
        return f"worker {rank}{f' on host {hosts[rank]}' if rank < len(hosts) else ''}"
