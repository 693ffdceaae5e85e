"""Wait for the workers of a group: what is shown, and when and how it ends."""

from __future__ import annotations

import re

import pytest

from raytriever.cluster.events_and_restarts import Event, GroupStarted, GroupWanted, MissingWorkers, StatusMessage
from raytriever.cluster.train import trainer
from raytriever.cluster.train.trainer import ClusterError, GroupEvents
from raytriever.training.parallel.strategies import TrainingError


def wanted(room: int) -> GroupWanted:
    return GroupWanted(2, {"CPU": 1.0}, room)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Room of the cluster, which a test may change; every check asks for it."""
    now = [1]
    monkeypatch.setattr(trainer, "room_for", lambda resources: now[0])
    monkeypatch.setattr(trainer, "LOOK_SECONDS", 0.0)
    return now


def lines(events: list[Event]) -> list[str | int]:
    shown: list[str | int] = []
    for event in events:
        assert isinstance(event, StatusMessage | MissingWorkers)
        shown.append(event.workers if isinstance(event, MissingWorkers) else re.sub(r"\d+:\d+:\d+", "T", event.text))
    return shown


def test_what_is_missing_is_shown_once_and_again_when_it_changes(room: list[int]) -> None:
    events: list[Event] = []
    wait = GroupEvents(5, events.append)
    wait.check(events.append)  # nothing is waited for
    wait.handle(wanted(1))
    wait.handle(wanted(1))  # Ray Train asks again
    wait.check(events.append)
    assert lines(events) == ["waiting for 2 workers, the cluster has room for 1; gives up at T", 1]
    room[0] = 0  # the group has reserved a node that has just joined
    wait.check(events.append)
    assert len(events) == 2
    room[0] = 3
    wait._next_look = 0
    wait.check(events.append)
    assert lines(events)[2:] == ["starting the workers", 0]
    wait.handle(GroupStarted(()))
    assert lines(events)[4:] == [0]
    wait.check(events.append)
    assert len(events) == 5


def test_a_wait_without_room_ends_with_the_number_that_has_room(room: list[int]) -> None:
    wait = GroupEvents(0, lambda event: None)
    wait.handle(wanted(1))
    message = "the Ray cluster: had room for only 1 of 2 workers for 0 minutes; add nodes, lower num_workers, or wait"
    with pytest.raises(ClusterError, match=re.escape(message)):
        wait.check(lambda event: None)


def test_a_wait_with_room_ends_as_deaths_of_workers(room: list[int]) -> None:
    wait = GroupEvents(0, lambda event: None)
    wait.handle(wanted(2))
    with pytest.raises(TrainingError, match="for 0 minutes, workers died at every start"):
        wait.check(lambda event: None)


def test_the_time_counts_from_the_first_request_of_a_group(monkeypatch: pytest.MonkeyPatch, room: list[int]) -> None:
    now = [0.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: now[0])
    wait = GroupEvents(1, lambda event: None)
    wait.handle(wanted(1))
    now[0] = 50
    wait.handle(wanted(1))
    wait.check(lambda event: None)
    now[0] = 61
    with pytest.raises(ClusterError):
        wait.check(lambda event: None)
    wait.handle(GroupStarted(()))
    wait.handle(wanted(1))  # of the next group
    wait.check(lambda event: None)
