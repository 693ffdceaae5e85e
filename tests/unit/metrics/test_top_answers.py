"""Thresholds of the top answer: against their definition, and how often the intervals of a check hold the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raytriever.metrics.calibration import (
    FEWEST_ANSWERED,
    ScoredPools,
    achieve,
    calibrate,
    choose_threshold,
    ranked_pairs,
    top_answers,
)
from raytriever.metrics.inputs import MetricInputError


def pools_of(rng: np.random.Generator, queries: int) -> ScoredPools:
    """One positive and four negatives a query, scores with ties; every query has a level of its own."""
    levels = rng.normal(0, 0.5, queries)
    of_negatives = np.repeat(np.arange(queries), 4)
    positives = np.round(rng.normal(1.5, 1, queries) + levels, 2)
    negatives = np.round(rng.normal(0, 1, 4 * queries) + levels[of_negatives], 2)
    return ScoredPools(positives, negatives, np.arange(queries), of_negatives)


def test_pairs_at_ranks_by_their_definition() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.integers(0, 9, 20), rng.integers(0, 9, 60)
    pools = ScoredPools(rng.integers(0, 4, 20) / 2, rng.integers(0, 4, 60) / 2, ours, theirs)
    expected: dict[int, list[tuple[int, float, bool]]] = {0: [], 1: [], 2: []}
    for query in range(9):
        own = [(-score, True) for score in pools.positives[ours == query]]
        own += [(-score, False) for score in pools.negatives[theirs == query]]
        for rank, (score, relevant) in enumerate(sorted(own)[:3]):
            expected[rank].append((query, -score, relevant))
    for ranks in (range(1), range(1, 3)):
        scores, relevant, queries = ranked_pairs(pools, ranks)
        actual = zip(queries.tolist(), scores.tolist(), relevant.tolist(), strict=True)
        assert sorted(actual) == sorted(pair for rank in ranks for pair in expected[rank])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("aim", "wanted"), [("top_precision", 0.7), ("answered", 0.6), ("f1", None)])
def test_thresholds_by_their_definition(seed: int, aim: Any, wanted: float | None) -> None:
    pools = pools_of(np.random.default_rng(seed), 80)
    answers, best = top_answers(pools), choose_threshold(pools, aim, wanted)
    values = {}
    for score in sorted(set(answers.scores.tolist())):
        shown = int((answers.scores >= score).sum())
        right = int((answers.right & (answers.scores >= score)).sum())
        if aim == "top_precision" and shown < FEWEST_ANSWERED:
            continue
        values[score] = {"top_precision": right / shown, "answered": shown / 80, "f1": 2 * right / (shown + 80)}[aim]
    enough = [score for score, value in values.items() if value >= (wanted or max(values.values()))]
    chosen = min(enough, default=np.inf) if aim == "top_precision" else max(enough)
    assert best.score == chosen
    assert best.value == values.get(chosen, max(values.values()))


def test_a_precision_of_few_answers_is_out_of_reach() -> None:
    def first_right(scores: np.ndarray, right: int) -> ScoredPools:
        """A query for each score; those of the best scores have a relevant document."""
        queries = np.arange(len(scores))
        return ScoredPools(scores[:right], scores[right:], queries[:right], queries[right:])

    # The best answer of a hundred is right: a precision of 1, of one answer.
    scores = np.linspace(1, 0, 100)
    one = first_right(scores, 1)
    assert choose_threshold(one, "top_precision", 0.5).score == np.inf
    assert choose_threshold(one, "top_precision", 0.5).value == pytest.approx(1 / FEWEST_ANSWERED)
    assert np.isnan(choose_threshold(first_right(scores[:10], 10), "top_precision", 0.5).value)
    assert choose_threshold(one, "answered", 0.05).score == scores[4]
    tied = ScoredPools(np.zeros(1), np.zeros(1), np.zeros(1, int), np.zeros(1, int))  # no answer is right
    assert choose_threshold(tied, "f1", None).score == np.inf


def test_a_row_has_the_value_of_its_aim_on_both_splits() -> None:
    choosing, checking = (pools_of(np.random.default_rng(seed), 200) for seed in (0, 1))
    aims = [("top_precision", 0.8), ("answered", 0.5), ("f1", None), ("top_precision", 1.0)]
    precise, answered, f1, out = calibrate(choosing, checking, aims)
    assert precise.threshold.value >= 0.8
    achieved = achieve(checking, precise.threshold.score)
    assert precise.wanted == achieved.top_precision
    assert answered.wanted == achieve(checking, answered.threshold.score).coverage
    assert f1.wanted is not None
    shares = achieve(checking, f1.threshold.score)
    assert f1.checked == 2 * shares.top_precision.part / (shares.coverage.part + 200)
    assert f1.low < f1.checked < f1.high
    assert not out.threshold.reached
    assert out.threshold.value < 1
    assert out.wanted is None
    with pytest.raises(MetricInputError, match="queries of scores are unknown"):
        calibrate(ScoredPools(choosing.positives, choosing.negatives), checking, aims)


def test_intervals_on_the_checking_split_hold_the_truth_and_figures_of_the_choosing_split_flatter() -> None:
    rng = np.random.default_rng(5)
    truth = top_answers(pools_of(rng, 60_000))
    order = np.argsort(truth.scores)
    scores, rights = truth.scores[order], np.cumsum(truth.right[order][::-1])[::-1]
    runs, held, flattery = 300, {"coverage": 0, "top_precision": 0, "f1": 0}, []
    for _ in range(runs):
        [row] = calibrate(pools_of(rng, 100), pools_of(rng, 100), [("top_precision", 0.75)])
        if row.achieved is None:
            runs -= 1
            continue
        first = int(np.searchsorted(scores, row.threshold.score))
        shown, right = len(scores) - first, int(rights[first])
        true = {
            "coverage": shown / len(scores),
            "top_precision": right / shown,
            "f1": 2 * right / (shown + len(scores)),
        }
        for name, value in true.items():
            share = getattr(row.achieved, name)
            held[name] += share.low <= value <= share.high
        flattery.append(row.threshold.value - true["top_precision"])
    assert runs > 200
    for name, count in held.items():
        assert 0.91 <= count / runs <= 0.99, name
    assert np.mean(flattery) > 0.01
