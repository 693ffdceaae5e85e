"""The learning rate's shape."""

from itertools import pairwise

from raytriever.training.loop import learning_rate_scale


def test_rises_over_the_warm_up_then_falls_to_zero() -> None:
    scales = [learning_rate_scale(step, 4, 12) for step in range(13)]
    assert scales[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert all(a > b for a, b in pairwise(scales[4:]))
    assert scales[12] == 0


def test_without_warm_up_the_first_step_is_the_highest() -> None:
    assert learning_rate_scale(0, 0, 10) == 1


def test_a_run_shorter_than_its_warm_up_still_moves() -> None:
    assert [learning_rate_scale(step, 10, 2) > 0 for step in range(2)] == [True, True]
