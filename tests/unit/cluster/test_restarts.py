"""When a group of workers that failed may begin again."""

from __future__ import annotations

import itertools

from raytriever.cluster.event_queue import IDLE_RESTARTS, Restarts


def lives(restarts: Restarts, reached: int) -> bool:
    """One group that begins, comes to a step, and fails; whether it could begin."""
    if not restarts.begin():
        return False
    restarts.reach(reached)
    restarts.fail(f"at {reached}")
    return True


def test_a_run_that_gets_further_each_time_goes_on_for_ever() -> None:
    restarts = Restarts()
    assert all(lives(restarts, step) for step in range(1, 1000))
    assert restarts.begin()
    assert restarts.reached == 999


def test_a_step_that_fails_every_time_ends_the_run() -> None:
    restarts = Restarts()
    # The first to come there got further than nothing, the others no further than the first.
    begun = list(itertools.takewhile(bool, (lives(restarts, 7) for _ in range(100))))
    assert len(begun) == 1 + 1 + IDLE_RESTARTS
    assert not restarts.begin()
    assert restarts.reason == "at 7"


def test_steps_that_were_done_before_are_no_progress() -> None:
    restarts = Restarts(idle=2)
    assert lives(restarts, 50)
    assert [lives(restarts, step) for step in (40, 50, 45, 60)] == [True, True, True, False]


def test_progress_forgives_what_failed_before() -> None:
    restarts = Restarts(idle=1)
    assert [lives(restarts, step) for step in (1, 1, 2, 2, 3, 3, 3, 3)] == [True] * 7 + [False]


def test_a_group_that_was_resized_did_not_fail() -> None:
    restarts = Restarts(idle=0)
    assert all(restarts.begin() for _ in range(10))


def test_one_failure_told_often_is_one() -> None:
    restarts = Restarts(idle=1)
    restarts.begin()
    for _ in range(5):
        restarts.fail("node taken away")
    assert restarts.begin()
