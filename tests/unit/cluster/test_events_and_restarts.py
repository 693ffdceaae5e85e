"""Event queue between workers and driver: the class of the actor without Ray, and the queue in the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raytriever.cluster.events_and_restarts import (
    CheckpointEvent,
    EventQueueActor,
    InlineEventQueue,
    LogMessage,
    RestartsExhausted,
    StepEvent,
)
from raytriever.core.errors import ConfigError


def with_queue(body: Callable[[Any], Awaitable[None]]) -> Callable[[], None]:
    """Give a test the class of the actor, without Ray."""

    def test() -> None:
        async def run() -> None:
            await asyncio.wait_for(body(EventQueueActor.__ray_metadata__.modified_class()), 20)

        asyncio.run(run())

    return test


def step(number: int) -> StepEvent:
    return StepEvent(number, {"loss": 1.0})


@with_queue
async def test_events_are_taken_once_and_in_order(queue: Any) -> None:
    assert [await queue.send(step(number)) for number in (1, 2, 3)] == [1, 2, 3]
    assert await queue.take(0) == [step(1), step(2), step(3)]
    await queue.send(step(4))
    assert await queue.close(3) == [step(4)]


@with_queue
async def test_a_closed_queue_refuses_events(queue: Any) -> None:
    await queue.send(step(1))
    assert await queue.close(0) == [step(1)]
    with pytest.raises(RuntimeError, match="closed the event queue"):
        await queue.send(step(2))
    with pytest.raises(RuntimeError, match="closed the event queue"):
        await queue.wait_for(1)
    assert not await queue.may_start()


@with_queue
async def test_a_flush_returns_after_all_earlier_events_are_handled(queue: Any) -> None:
    await queue.send(step(1))
    waiting = asyncio.ensure_future(queue.wait_for(await queue.send(CheckpointEvent(1))))
    await asyncio.sleep(0)
    assert await queue.take(0) == [step(1), CheckpointEvent(1)]
    await asyncio.sleep(0.05)
    assert not waiting.done()  # taken, not handled yet
    await queue.take(1)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await queue.take(2)
    await asyncio.wait_for(waiting, 5)


@with_queue
async def test_a_flush_fails_when_the_driver_closes_the_queue(queue: Any) -> None:
    waiting = asyncio.ensure_future(queue.wait_for(await queue.send(CheckpointEvent(1))))
    await asyncio.sleep(0)
    # The driver takes it in its last poll, and may die before it has stored it.
    assert await queue.close(0) == [CheckpointEvent(1)]
    with pytest.raises(RuntimeError, match="closed the event queue"):
        await asyncio.wait_for(waiting, 5)


@with_queue
async def test_no_group_starts_after_a_user_error(queue: Any) -> None:
    assert await queue.may_start()
    await queue.send(ConfigError("wrong"))
    assert not await queue.may_start()


@with_queue
async def test_the_driver_receives_the_reason_when_restarts_are_exhausted(queue: Any) -> None:
    started = 0
    while await queue.may_start():
        started += 1
        await queue.send(step(5))
        await queue.record_failure(f"worker 1 died for the {started}. time", True)
    events = await queue.take(0)
    assert [event for event in events if isinstance(event, RestartsExhausted)] == [
        RestartsExhausted(5, True, f"worker 1 died for the {started}. time")
    ]
    assert not await queue.may_start()
    assert await queue.close(0) == []  # sent once


@with_queue
async def test_log_messages_are_no_progress(queue: Any) -> None:
    started = 0
    while await queue.may_start():
        started += 1
        assert started < 20
        await queue.send(LogMessage("alive"))
        await queue.record_failure("worker 0 died", True)


def test_the_inline_queue_handles_each_event_at_once() -> None:
    events: list[Any] = []
    queue = InlineEventQueue(events.append)
    assert queue.may_start()
    assert queue.last_step() == 0
    queue.send(step(4))
    queue.send(step(2))
    queue.flush(CheckpointEvent(4))
    assert events == [step(4), step(2), CheckpointEvent(4)]
    assert queue.last_step() == 4
