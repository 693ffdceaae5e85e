"""Priorities of waiting requests."""

from __future__ import annotations

import asyncio

import pytest

from raytriever.annotation.annotator import Slots

SERVED, QUERIES, BEGUN, STEPS = 4, 18, 8, 3


async def rounds() -> list[int]:
    """How many requests are under way in each round of a service that answers all of a round at once."""
    slots, waiting, counts = Slots(SERVED), list[asyncio.Future[None]](), list[int]()
    queries = iter(range(QUERIES))

    async def work() -> None:
        for _ in queries:
            for step in range(STEPS):
                async with slots.hold(step):
                    answer = asyncio.get_running_loop().create_future()
                    waiting.append(answer)
                    await answer

    tasks = [asyncio.create_task(work()) for _ in range(BEGUN)]
    while not all(task.done() for task in tasks):
        for _ in range(5):
            await asyncio.sleep(0)
        if waiting:
            counts.append(len(waiting))
            for answer in waiting:
                answer.set_result(None)
            waiting.clear()
    return counts


def test_the_service_is_at_work_until_the_end() -> None:
    counts = asyncio.run(rounds())
    assert sum(counts) == QUERIES * STEPS
    assert counts[:-1] == [SERVED] * (len(counts) - 1), "a round before the last one was not full"


def test_slots_go_to_the_earliest_step_then_by_arrival() -> None:
    async def order() -> list[str]:
        slots, went = Slots(1), list[str]()

        async def one(step: int, name: str) -> None:
            async with slots.hold(step):
                went.append(name)
                await asyncio.sleep(0)

        names = [(0, "holder"), (2, "third"), (1, "second"), (0, "first"), (1, "second too")]
        await asyncio.gather(*(one(*each) for each in names))
        return went

    assert asyncio.run(order()) == ["holder", "first", "second", "second too", "third"]


@pytest.mark.parametrize("given", [False, True])
def test_cancelled_waiter_keeps_no_slot(given: bool) -> None:
    async def after() -> None:
        slots = Slots(1)
        leaving = asyncio.Event()

        async def hold() -> None:
            async with slots.hold(0):
                await leaving.wait()

        async def wait() -> None:
            async with slots.hold(0):
                pass

        holder, impatient = asyncio.create_task(hold()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        if given:  # in the very moment in which the slot becomes its own
            leaving.set()
            await asyncio.sleep(0)
        impatient.cancel()
        leaving.set()
        await asyncio.gather(holder, impatient, return_exceptions=True)
        assert impatient.cancelled()
        await asyncio.wait_for(wait(), 1)

    asyncio.run(after())
