"""Detection of a slow worker."""

from __future__ import annotations

import pytest

from raytriever.losses.distributed import ALONE
from raytriever.training.monitoring import WINDOW, Straggler, StragglerWatch, host_names, slowest


def test_the_slowest_is_measured_against_the_median_of_the_others() -> None:
    result = slowest([1.0, 1.2, 3.3, 1.1])
    assert (result.rank, result.seconds) == (2, pytest.approx(2.2))
    assert result.share == pytest.approx(2.0)
    assert slowest([0.5, 0.25]) == Straggler(0, 0.25, 1.0)
    assert slowest([0.0, 0.0]) == Straggler(0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "events"),
    [([1.0, 1.31], True), ([1.0, 1.29], False), ([0.01, 0.025], False), ([0.01, 0.05], True), ([1.0, 1.0], False)],
)
def test_a_third_more_is_reported_where_it_costs_anything(seconds: list[float], events: bool) -> None:
    assert slowest(seconds).is_relevant is events


def watched(*windows: list[float]) -> tuple[list[str], list[dict[str, float]]]:
    notices: list[str] = []
    watch = StragglerWatch(["n0", "n1", "n2"], notices.append)
    watch.update([9.0, 0.0, 0.0])  # the first step counts for nobody
    return notices, [message for window in windows for _ in range(WINDOW) if (message := watch.update(window))]


def test_who_is_slow_is_named_once_with_its_host_until_it_is_over() -> None:
    slow, even = [1.0, 1.5, 1.0], [1.0, 1.1, 1.0]
    notices, message = watched(slow, slow, even, even, slow, [2.0, 1.0, 1.0])
    assert [notice.split(":")[0] for notice in notices] == [
        "Worker 1 on n1 is slow",
        "Worker 1 on n1 is no longer slow.",
        "Worker 1 on n1 is slow",
        "Worker 0 on n0 is slow",
    ]
    assert "0.5 s per step (50%) more than the median of the others over 20 steps" in notices[0]
    assert [one["slowest_worker"] for one in message] == [1, 1, 1, 1, 1, 0]
    assert message[0]["straggler_seconds"] == pytest.approx(0.5)


def test_one_slow_step_is_no_straggler() -> None:
    notices: list[str] = []
    watch = StragglerWatch(["n0", "n1"], notices.append)
    for step in range(3 * WINDOW):
        watch.update([0.1, 0.5 if step == WINDOW else 0.1])
    assert not notices


def test_a_worker_alone_holds_up_nobody() -> None:
    watch = StragglerWatch(host_names(ALONE), lambda _: pytest.fail("reported"))
    assert not any(watch.update([float(step)]) for step in range(3 * WINDOW))
