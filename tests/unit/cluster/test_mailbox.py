"""The mailbox between workers and driver, as the class it is, without Ray around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raytriever.cluster.event_queue import GivenUp, Mailbox, Notice, Saving, StepNews
from raytriever.errors import ConfigError


def with_mailbox(body: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(body(Mailbox.__ray_metadata__.modified_class()), 20)

    asyncio.run(run())


def step(number: int) -> StepNews:
    return StepNews(number, {"loss": 1.0})


def test_what_is_sent_is_taken_once_and_in_order() -> None:
    async def body(mailbox: Any) -> None:
        assert [await mailbox.send(step(number)) for number in (1, 2, 3)] == [1, 2, 3]
        assert await mailbox.take(0) == [step(1), step(2), step(3)]
        await mailbox.send(step(4))
        assert await mailbox.close(3) == [step(4)]

    with_mailbox(body)


def test_after_the_last_look_nothing_is_accepted() -> None:
    async def body(mailbox: Any) -> None:
        await mailbox.send(step(1))
        assert await mailbox.close(0) == [step(1)]
        with pytest.raises(RuntimeError, match="listens no more"):
            await mailbox.send(step(2))
        with pytest.raises(RuntimeError, match="listens no more"):
            await mailbox.settle(Saving(2))
        assert not await mailbox.begin()

    with_mailbox(body)


def test_a_checkpoint_waits_until_all_that_was_told_is_dealt_with() -> None:
    async def body(mailbox: Any) -> None:
        await mailbox.send(step(1))
        waiting = asyncio.ensure_future(mailbox.settle(Saving(1)))
        await asyncio.sleep(0)
        assert await mailbox.take(0) == [step(1), Saving(1)]
        await asyncio.sleep(0.05)
        assert not waiting.done()  # taken is not yet kept
        await mailbox.take(1)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await mailbox.take(2)
        await asyncio.wait_for(waiting, 5)

    with_mailbox(body)


def test_a_checkpoint_that_waits_when_the_driver_leaves_is_not_committed() -> None:
    async def body(mailbox: Any) -> None:
        waiting = asyncio.ensure_future(mailbox.settle(Saving(1)))
        await asyncio.sleep(0)
        # The driver hears it in its last look, and may die before it has kept it.
        assert await mailbox.close(0) == [Saving(1)]
        with pytest.raises(RuntimeError, match="listens no more"):
            await asyncio.wait_for(waiting, 5)

    with_mailbox(body)


def test_no_group_begins_after_a_mistake() -> None:
    async def body(mailbox: Any) -> None:
        assert await mailbox.begin()
        await mailbox.send(ConfigError("wrong"))
        assert not await mailbox.begin()

    with_mailbox(body)


def test_the_driver_hears_when_no_group_may_begin_any_more_and_why() -> None:
    async def body(mailbox: Any) -> None:
        begun = 0
        while await mailbox.begin():
            begun += 1
            await mailbox.send(step(5))
            await mailbox.fail(f"worker 1 died for the {begun}. time", True)
        items = await mailbox.take(0)
        assert [item for item in items if isinstance(item, GivenUp)] == [
            GivenUp(5, True, f"worker 1 died for the {begun}. time")
        ]
        assert not await mailbox.begin()
        assert await mailbox.close(0) == []  # told once

    with_mailbox(body)


def test_notices_are_no_steps() -> None:
    async def body(mailbox: Any) -> None:
        begun = 0
        while await mailbox.begin():
            begun += 1
            assert begun < 20
            await mailbox.send(Notice("alive"))
            await mailbox.fail("worker 0 died", True)

    with_mailbox(body)
