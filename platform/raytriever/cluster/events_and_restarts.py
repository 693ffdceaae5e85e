"""Events from the workers to the driver, their queue in a Ray actor or in this process, and the restart policy.

Ray Train's own `report` is a barrier of all workers, which is too slow for every step. Here a worker sends an event and
continues. The driver polls, shows progress, and is the only process that writes to the trackers. Only the thread that
writes a checkpoint waits: it commits after the driver has stored all earlier events. A resumed run does not repeat the
steps of those events. Events after the driver's last poll are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytriever.core.errors import UserError


@dataclass(frozen=True)
class StepEvent:
    """Metrics of a training step, or of the validation on dev batches at that step."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class ValidationEvent:
    """Retrieval metrics of a step's checkpoint on dev data. The event of a later step may arrive first."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class LogMessage:
    """Line for the user."""

    text: str


@dataclass(frozen=True)
class LostWorker(LogMessage):
    """Line about a worker that died or failed. Trackers store it as a tag of the run."""


@dataclass(frozen=True)
class StatusMessage:
    """Activity of the first worker before its next step, such as `loading the encoder`; shown if it takes long."""

    text: str


@dataclass(frozen=True)
class CheckpointEvent:
    """The checkpoint of a step is written. It is committed as soon as the driver has stored all earlier events."""

    step: int


@dataclass(frozen=True)
class GroupWanted:
    """The controller asks Ray for the processes of a worker group, perhaps again."""

    workers: int
    resources: Mapping[str, float]  # resources that each process reserves, such as CPUs and GPUs
    room: int  # number of these processes that the cluster had room for before the request


@dataclass(frozen=True)
class GroupStarted:
    """All workers of a group have started. `hosts` lists the host of each worker by rank."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class RestartsExhausted:
    """Worker groups failed too often without a new step."""

    last_step: int
    process_died: bool  # True if a process died. Otherwise an exception was raised, which is a defect.
    reason: str


@dataclass(frozen=True)
class MissingWorkers:
    """Number of workers that training waits for because the cluster has no room for them; 0 if all are running."""

    workers: int


Event = StepEvent | ValidationEvent | LogMessage | StatusMessage | CheckpointEvent | MissingWorkers


IDLE_RESTARTS = 3  # allowed number of consecutive restarts without a new step
POLL_SECONDS = 0.25  # longest time between two polls of the driver


class RestartPolicy:
    """Policy that decides whether another worker group may start."""

    def __init__(self, idle: int = IDLE_RESTARTS) -> None:
        self._idle_limit, self._idle = idle, 0
        self._has_failed = False
        self._last_step_at_failure = 0
        self.last_step = 0  # the highest step that was ever done
        self.reason = ""  # reason for the last failure

    def record_step(self, step: int) -> None:
        """Record that a step was done. A restarted group may repeat steps."""
        self.last_step = max(self.last_step, step)

    def record_failure(self, reason: str) -> None:
        """Record that a group failed. Several failures of the same group count as one."""
        self._has_failed, self.reason = True, reason

    def may_start(self) -> bool:
        """Return False after too many failures in a row without a new step. A resize is not a failure."""
        if self._has_failed:
            self._idle = 0 if self.last_step > self._last_step_at_failure else self._idle + 1
            self._last_step_at_failure = self.last_step
            self._has_failed = False
        return self._idle <= self._idle_limit


@ray.remote(num_cpus=0)
class EventQueueActor:
    """Ray actor that stores events until the driver takes them, and decides whether workers may start again."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._sent = self._handled = 0
        self._is_closed = self._has_ended = False
        self._urgent, self._changed = asyncio.Event(), asyncio.Event()
        self._restarts, self._process_died = RestartPolicy(), False
        self._controller: Any = None

    async def send(self, event: Any, before: Any = None) -> int:
        """Append an event and return its number, 1 or more. Raise `RuntimeError` if the driver has closed the queue.

        `before` is the reference that the sender's previous call has returned. Ray waits for its value; otherwise an
        actor with coroutines may run the calls in another order."""
        if self._is_closed:
            raise RuntimeError("The driver has closed the event queue.")
        self._events.append(event)
        self._sent += 1
        if isinstance(event, StepEvent):
            self._restarts.record_step(event.step)
        self._has_ended |= isinstance(event, UserError | RestartsExhausted)
        return self._sent

    async def wait_for(self, number: int) -> None:
        """Wait until the driver has handled the event of this number. Raise `RuntimeError` if the queue is closed."""
        self._urgent.set()
        while self._handled < number:
            if self._is_closed:
                raise RuntimeError("The driver has closed the event queue.")
            await self._changed.wait()

    async def take(self, handled: int) -> list[Any]:
        """Remove and return all events in order, after `POLL_SECONDS` or as soon as a sender waits. `handled` is the
        number of events that the driver has handled since the start."""
        self._set_handled(handled)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._urgent.wait(), POLL_SECONDS)
        self._urgent.clear()
        events, self._events = self._events, []
        return events

    async def close(self, handled: int) -> list[Any]:
        """Remove and return the last events. Later events are refused."""
        self._is_closed = True
        self._set_handled(handled)
        events, self._events = self._events, []
        return events

    async def may_start(self) -> bool:
        """Return True if a worker group may start. Called once for each group."""
        if self._is_closed or self._has_ended:
            return False
        if not self._restarts.may_start():
            await self.send(RestartsExhausted(self._restarts.last_step, self._process_died, self._restarts.reason))
            return False
        self._process_died = False
        return True

    async def last_step(self) -> int:
        """Return the highest step of all events so far."""
        return self._restarts.last_step

    async def record_failure(self, reason: str, process_died: bool) -> None:
        """Record that the worker group failed: a process died, or an exception was raised."""
        self._process_died |= process_died
        self._restarts.record_failure(reason)

    async def set_controller(self, controller: Any) -> None:
        """Store the handle of Ray Train's controller, which starts the workers."""
        self._controller = controller

    async def controller(self) -> Any:
        """Return the handle of Ray Train's controller, or None before it has started."""
        return self._controller

    def _set_handled(self, handled: int) -> None:
        self._handled = handled
        self._changed.set()  # wakes every `wait_for`; each checks its number and waits again
        self._changed.clear()


class RayEventQueue:
    """Event queue in a Ray actor; it can be passed to any process of the cluster."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self._last: Any = None  # reference to the number of the last event
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[RayEventQueue], tuple[Any]]:
        return RayEventQueue, (self.actor,)

    def send(self, event: Any) -> Any:
        """Send an event without waiting. Return a reference to its number."""
        with self._lock:  # several threads send events
            self._last = self.actor.send.remote(event, self._last)
            return self._last

    def flush(self, event: Any) -> None:
        """Send an event. Wait until the driver has handled this event and all earlier ones, or raise an error."""
        ray.get(self.actor.wait_for.remote(self.send(event)))

    def may_start(self) -> bool:
        """Return True if a worker group may start. Called once for each group."""
        return bool(ray.get(self.actor.may_start.remote()))

    def last_step(self) -> int:
        """Return the highest step of all events so far."""
        return int(ray.get(self.actor.last_step.remote()))

    def record_failure(self, reason: str, process_died: bool) -> None:
        """See `EventQueueActor`."""
        ray.get(self.actor.record_failure.remote(reason, process_died))


class InlineEventQueue:
    """Event queue for a single worker in the driver's process. Such a worker never restarts. See `RayEventQueue`."""

    def __init__(self, on_event: Callable[[Any], None]) -> None:
        self._on_event, self._last_step = on_event, 0

    def send(self, event: Any) -> None:
        """See `RayEventQueue`."""
        if isinstance(event, StepEvent):
            self._last_step = max(self._last_step, event.step)
        self._on_event(event)

    def flush(self, event: Any) -> None:
        """See `RayEventQueue`."""
        self.send(event)

    def may_start(self) -> bool:
        """See `RayEventQueue`."""
        return True

    def last_step(self) -> int:
        """See `RayEventQueue`."""
        return self._last_step


EventQueue = RayEventQueue | InlineEventQueue


@dataclass(frozen=True)
class OpenQueue:
    """Event queue that the driver reads. If handling an event fails, `has_failed` is set, and no later event is
    handled."""

    queue: Any
    has_failed: threading.Event


@contextmanager
def open_event_queue(on_event: Callable[[Any], None]) -> Iterator[OpenQueue]:
    """Open a queue. A thread of the driver handles its events in order. All are handled when the block ends.

    The end of the block raises the error that `on_event` has raised, or a `UserError` if the actor was killed."""
    # The actor runs on the driver's node, so that the loss of any other node does not end the run.
    same_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = EventQueueActor.options(scheduling_strategy=same_node).remote()  # type: ignore[attr-defined]
    is_over, has_failed = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def handle_events() -> None:
        handled = 0
        try:
            while not is_over.is_set():
                for event in ray.get(actor.take.remote(handled)):
                    on_event(event)
                    handled += 1
            for event in ray.get(actor.close.remote(handled)):
                on_event(event)
        except Exception as error:  # raised below, on the thread of the block
            failures.append(_actor_died(error) if isinstance(error, RayActorError) else error)
            has_failed.set()
            actor.close.remote(handled)

    thread = threading.Thread(target=handle_events, name="raytriever-events", daemon=True)
    thread.start()
    try:
        yield OpenQueue(RayEventQueue(actor), has_failed)
    finally:
        is_over.set()
        thread.join()
        ray.kill(actor)
    if failures:
        raise failures[0]


@contextmanager
def open_inline_queue(on_event: Callable[[Any], None]) -> Iterator[OpenQueue]:
    """Open a queue in this process, as `open_event_queue` does. An error of `on_event` ends the training."""
    yield OpenQueue(InlineEventQueue(on_event), threading.Event())


def _actor_died(error: RayActorError) -> UserError:
    """Return a `UserError` about the killed actor. It is not restarted: steps not yet in `steps.jsonl` are lost."""
    what = "the Ray actor that passes events from the workers to this command was killed"
    remedy = "check whether memory ran out, and run the same command again: it continues from the newest checkpoint"
    user_error = UserError(what, remedy=remedy)
    user_error.__cause__ = error
    return user_error
