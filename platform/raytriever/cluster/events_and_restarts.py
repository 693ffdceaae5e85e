"""Event queue from the workers to the driver: typed events, restart policy, Ray and in-process queues.

Ray Train's own `report` is a barrier of all workers, too slow for every step. Here a worker sends an event and
continues. The driver polls, shows the progress and is the only writer of the tracker. Only a checkpoint waits, in the
thread that writes it: it is committed after the driver has stored all earlier events, because a resumed run does not
repeat those steps. Events after the driver's last poll are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytriever.cluster.worker_events import RestartsExhausted, StepEvent
from raytriever.core.errors import UserError

IDLE_RESTARTS = 3  # restarts in a row without a new step
POLL_SECONDS = 0.25


class RestartPolicy:
    """Decides whether another worker group may start."""

    def __init__(self, idle: int = IDLE_RESTARTS) -> None:
        self._idle_limit, self._idle = idle, 0
        self._has_failed = False
        self._last_step_at_failure = 0
        self.last_step = 0  # the highest step that was ever done
        self.reason = ""  # of the last failure

    def record_step(self, step: int) -> None:
        """Record that a step was done, perhaps not for the first time."""
        self.last_step = max(self.last_step, step)

    def record_failure(self, reason: str) -> None:
        """Record that a group failed. Several failures of one group count once."""
        self._has_failed, self.reason = True, reason

    def may_start(self) -> bool:
        """Return whether the next group may start. After a resize, which is no failure, it always may."""
        if self._has_failed:
            self._idle = 0 if self.last_step > self._last_step_at_failure else self._idle + 1
            self._last_step_at_failure = self.last_step
            self._has_failed = False
        return self._idle <= self._idle_limit


# ------------------------------------------------------------------------------------------------------------ queues


@ray.remote(num_cpus=0)
class EventQueueActor:
    """Stores events until the driver takes them, and decides whether workers may start again."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._sent = self._handled = 0
        self._is_closed = self._has_ended = False
        self._urgent, self._changed = asyncio.Event(), asyncio.Event()
        self._restarts, self._process_died = RestartPolicy(), False
        self._controller: Any = None

    async def send(self, event: Any, before: Any = None) -> int:
        """Append an event and return its number, from 1.

        Args:
            before: the result of the sender's call before this one. Ray waits for it; otherwise an actor with
                coroutines may run calls in another order than they were made.

        Raises:
            RuntimeError: the driver has closed the queue.
        """
        if self._is_closed:
            raise RuntimeError("The driver has closed the event queue.")
        self._events.append(event)
        self._sent += 1
        if isinstance(event, StepEvent):
            self._restarts.record_step(event.step)
        self._has_ended |= isinstance(event, UserError | RestartsExhausted)
        return self._sent

    async def wait_for(self, number: int) -> None:
        """Return when the driver has handled the event of a number. Raises as `send` does."""
        self._urgent.set()
        while self._handled < number:
            if self._is_closed:
                raise RuntimeError("The driver has closed the event queue.")
            await self._changed.wait()

    async def take(self, handled: int) -> list[Any]:
        """Remove and return all events in order, after `POLL_SECONDS` or as soon as somebody waits.

        Args:
            handled: number of events that the driver has handled since the start.
        """
        self._set_handled(handled)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._urgent.wait(), POLL_SECONDS)
        self._urgent.clear()
        events, self._events = self._events, []
        return events

    async def close(self, handled: int) -> list[Any]:
        """Remove and return the last events. Events that are sent afterwards are refused."""
        self._is_closed = True
        self._set_handled(handled)
        events, self._events = self._events, []
        return events

    async def may_start(self) -> bool:
        """Return whether a worker group may start. Called once for each group."""
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
        with self._lock:  # several threads send
            self._last = self.actor.send.remote(event, self._last)
            return self._last

    def flush(self, event: Any) -> None:
        """Send an event and return when the driver has handled it and all earlier ones.

        Raises:
            Exception: the driver has closed the queue or could not handle an event, perhaps an earlier one.
        """
        ray.get(self.actor.wait_for.remote(self.send(event)))

    def may_start(self) -> bool:
        """Return whether a worker group may start. Called once for each group."""
        return bool(ray.get(self.actor.may_start.remote()))

    def last_step(self) -> int:
        """Return the highest step of all events so far."""
        return int(ray.get(self.actor.last_step.remote()))

    def record_failure(self, reason: str, process_died: bool) -> None:
        """See `EventQueueActor`."""
        ray.get(self.actor.record_failure.remote(reason, process_died))


class InlineEventQueue:
    """Event queue for one worker in the driver's process, which starts once; see `RayEventQueue`."""

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


# ------------------------------------------------------------------------------------------------------------ driver


@dataclass(frozen=True)
class OpenQueue:
    """Event queue that the driver reads.

    Args:
        has_failed: set when an event could not be handled; no event is handled afterwards.
    """

    queue: Any
    has_failed: threading.Event


@contextmanager
def open_event_queue(on_event: Callable[[Any], None]) -> Iterator[OpenQueue]:
    """Open a queue whose events are handled in order on a thread of the driver; all of them when the block ends.

    Raises:
        Exception: `on_event` raised it; it is raised again at the end of the block.
        UserError: the actor was killed, by a user or because memory ran out.
    """
    # On the driver's node: any other node may be lost without ending the run.
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
        except Exception as error:  # raised on the thread of the block below
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
    """Return the error in one line. The actor is not restarted: it held steps that were not in `steps.jsonl` yet."""
    user_error = UserError(
        "the Ray actor that passes steps from the workers to this command was killed",
        remedy="check whether memory ran out, and repeat the command: it continues from the checkpoint",
    )
    user_error.__cause__ = error
    return user_error
