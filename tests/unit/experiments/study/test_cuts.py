"""Rules that cut rankings, on score lists whose cut is known."""

from __future__ import annotations

import numpy as np
import pytest

from cuts import Rankings, above, best_threshold, figures, knee, largest_gap, pareto_misfit, set_f1, tail

NAN = float("nan")


def test_the_largest_gap_is_the_cut_and_the_buffer_comes_on_top() -> None:
    scores = np.array([[0.9, 0.88, 0.5, 0.48, 0.47, 0.46, 0.45, 0.44, 0.43, 0.42, 0.41]])
    assert largest_gap(scores).tolist() == [2]
    assert largest_gap(scores, buffer=5).tolist() == [7]
    assert largest_gap(scores, buffer=50).tolist() == [11]  # there are no more
    assert largest_gap(scores[:, ::-1] - scores[:, ::-1] + [[1.0] * 11]).tolist() == [1]  # equal scores: the first one


def test_the_largest_gap_leaves_out_the_last_tenth() -> None:
    # Of 11 scores there are 10 drops, of which the last one is not read.
    scores = np.array([[1.0, 0.9, 0.89, 0.88, 0.87, 0.86, 0.85, 0.84, 0.83, 0.82, 0.0]])
    assert largest_gap(scores).tolist() == [1]
    # Of 10 scores (9 drops, a tenth of which is none) all are read.
    assert largest_gap(scores[:, 1:]).tolist() == [9]


def test_empty_places_are_no_scores() -> None:
    scores = np.array([[0.9, 0.8, 0.3, NAN], [0.9, NAN, NAN, NAN], [0.9, 0.85, 0.8, 0.1]])
    assert largest_gap(scores).tolist() == [2, 1, 3]
    assert largest_gap(scores, buffer=5).tolist() == [3, 1, 4]
    assert above(scores, 0.8).tolist() == [2, 1, 3]
    assert above(scores, 0.95).tolist() == [0, 0, 0]
    assert tail(scores).tolist() == [1, 1, 1]


def pareto_ranks(size: int, shape: float) -> np.ndarray:
    """Return descending quantiles of a generalized Pareto distribution, so a perfect tail."""
    left = (np.arange(size) + 0.5) / size
    return -np.log(left) if shape == 0 else (left**-shape - 1) / shape


@pytest.mark.parametrize("shape", [-0.5, -0.2, 0.0, 0.3])
def test_the_fit_finds_the_shape_of_a_tail(shape: float) -> None:
    fitted, misfit = pareto_misfit(pareto_ranks(400, shape)[::-1])
    assert fitted == pytest.approx(shape, abs=0.05)
    assert misfit < 0.02
    # Two heaps far apart are no such tail.
    heaps = np.concatenate([np.linspace(0, 0.01, 50), np.linspace(1, 1.01, 50)])
    assert pareto_misfit(heaps)[1] > 1


def test_the_knee_is_farthest_below_the_line() -> None:
    assert knee(np.array([1.0, 0.9, 0.8, 0.1, 0.05, 0.0])) == 3
    assert knee(np.ones(5)) == 1


def test_the_tail_begins_after_a_heap_of_high_scores() -> None:
    noise = np.linspace(0.4, 0.3, 80)  # a bounded tail: equal distances
    for high in (3, 10, 20):
        heap = 0.9 - 0.001 * np.arange(high)
        assert tail(np.concatenate([heap, noise])[None]).tolist() == [high]
    noise = pareto_ranks(90, 0.0)
    # Noise alone is cut at the first rank of the window around its knee, and a ranking of equal scores at its knee.
    [alone] = tail(noise[None])
    assert alone == max(1, knee(noise) - 10)
    assert tail(np.ones((1, 50))).tolist() == [1]


def test_f1_counts_kept_passages_of_all_queries() -> None:
    rankings = Rankings(
        np.array([[0.9, 0.8, 0.2], [0.7, 0.6, 0.1], [0.5, NAN, NAN]]),
        np.array([[True, False, True], [False, False, False], [False, False, False]]),
        np.array([2, 1, 0]),
    )
    kept = rankings.kept(np.array([2, 1, 0]))
    assert kept.tolist() == [[1, 2, 2], [0, 1, 1], [0, 0, 0]]
    # 1 right of 3 kept, and of 3 wanted; without the second query 1 of 2 and of 2; the third one twice changes nothing.
    f1 = set_f1(kept)(np.array([[1.0, 1, 1], [1, 0, 2]]))
    assert f1.tolist() == pytest.approx([2 / 6, 2 / 4])
    evaluated = figures(kept)
    assert evaluated["precision"] == pytest.approx(1 / 3)
    assert evaluated["recall"] == pytest.approx(1 / 3)
    assert evaluated["passages"] == pytest.approx(1)
    assert evaluated["none, without an answer"] == 1
    assert evaluated["none, with an answer"] == 0


def test_one_threshold_has_the_highest_f1_and_keeps_equal_scores_together() -> None:
    rankings = Rankings(
        np.array([[0.9, 0.5], [0.8, 0.4], [0.5, NAN]]),
        np.array([[True, False], [True, False], [True, False]]),
        np.array([1, 1, 1]),
    )
    # 0.9: 2/4; 0.8: 4/5; 0.5: both passages of this score, 6/7; 0.4: 6/8.
    assert best_threshold(rankings) == 0.5
