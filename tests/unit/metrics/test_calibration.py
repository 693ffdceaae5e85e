"""Thresholds: chosen by trying every score, checked on another split, with intervals that hold the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from scipy.stats import t as student

from raytriever.metrics.calibration import (
    FEWEST_ANSWERED,
    Proportion,
    ScoredPools,
    achieve,
    best_f1_threshold,
    calibrate,
    choose_threshold,
    ranked_pairs,
    top_answers,
    wilson,
    wilson_by_query,
)
from raytriever.metrics.inputs import MetricInputError

AIMS = [("precision", 0.7), ("recall", 0.8), ("precision", 0.999)]


def split(seed: int, queries: int = 200, level: float = 0.0, shift: float = 0.0) -> ScoredPools:
    """One positive and ten negatives a query; every query's scores are moved by a level of its own."""
    rng = np.random.default_rng(seed)
    levels = rng.normal(0, level, queries)
    of_negatives = np.repeat(np.arange(queries), 10)
    positives = np.round(rng.normal(2 + shift, 1, queries) + levels, 2)
    negatives = np.round(rng.normal(shift, 1, 10 * queries) + levels[of_negatives], 2)
    return ScoredPools(positives, negatives, np.arange(queries), of_negatives)


def test_calibrate_matches_its_definition() -> None:
    choosing, checking = split(0), split(1)
    rows = calibrate(choosing, checking, AIMS)
    for row, (aim, wanted) in zip(rows, AIMS, strict=True):
        true = (checking.positives >= row.threshold.score).sum()
        false = (checking.negatives >= row.threshold.score).sum()
        whole = true + false if aim == "precision" else len(checking.positives)
        assert (row.threshold.aim, row.threshold.wanted) == (aim, wanted)
        if row.threshold.reached:
            assert getattr(row.threshold, row.threshold.aim) >= wanted
            assert row.checked == true / whole
            assert row.low < row.checked < row.high


def test_unreachable_aim_has_no_checked_value() -> None:
    choosing = ScoredPools(np.array([1.0]), np.array([2.0]))
    rows = calibrate(choosing, split(0), [("precision", 0.9)])
    assert not rows[0].threshold.reached
    assert np.isnan([rows[0].checked, rows[0].low]).all()


def test_refuse_scores_without_a_query() -> None:
    right = split(0)
    wrong = ScoredPools(right.positives, right.negatives, right.positive_queries, np.arange(3))
    with pytest.raises(MetricInputError, match="some scores have no query"):
        calibrate(right, wrong, AIMS)


def test_precision_without_accepted_pairs_is_nan() -> None:
    high = ScoredPools(np.array([9.0]), np.array([1.0]), *[np.zeros(1, int)] * 2)
    low = ScoredPools(np.array([0.5]), np.array([0.1]), *[np.zeros(1, int)] * 2)
    assert np.isnan(calibrate(high, low, [("precision", 0.9)])[0].checked)
    assert calibrate(high, low, [("recall", 0.9)])[0].checked == 0


def transfer_error(choosing: ScoredPools, checking: ScoredPools) -> float:
    """Mean distance between the values of thresholds on both splits."""
    rows = calibrate(choosing, checking, AIMS[:2])
    return float(np.mean([abs(getattr(row.threshold, row.threshold.aim) - row.checked) for row in rows]))


def test_shifted_scores_increase_the_error_of_transfer() -> None:
    choosing, alike, moved = split(0, 2_000), split(1, 2_000), split(2, 2_000, shift=1.0)
    assert transfer_error(choosing, alike) < 0.03 < 0.05 < transfer_error(choosing, moved)


@settings(deadline=None, max_examples=50)
@given(trials=st.integers(1, 500), share=st.floats(0, 1), confidence=st.floats(0.5, 0.999))
def test_wilson_equals_scipy(trials: int, share: float, confidence: float) -> None:
    successes = round(share * trials)
    theirs = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_threshold_achieves_by_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries = int(rng.integers(1, 12))
    ours = np.concatenate([np.arange(queries), rng.integers(0, queries, 5)])
    theirs = rng.integers(0, queries, 30)
    pools = ScoredPools(rng.integers(0, 8, len(ours)) / 2, rng.integers(0, 7, 30) / 2, ours, theirs)
    for score in (-1.0, 1.5, 3.0, 3.5, 9.0):
        answered = right = above = relevant = 0
        for query in range(queries):
            own = [(value, True) for value in pools.positives[ours == query]]
            own += [(value, False) for value in pools.negatives[theirs == query]]
            taken = [pair for pair in own if pair[0] >= score]
            answered += bool(taken)
            best = max((value for value, _ in taken), default=None)
            right += bool(taken) and all(is_relevant for value, is_relevant in taken if value == best)
            above += len(taken)
            relevant += sum(is_relevant for _, is_relevant in taken)
        result = achieve(pools, score)
        assert result.coverage == Proportion(answered, queries, *wilson(answered, queries))
        assert result.top_precision == Proportion(right, answered, *wilson(right, answered))
        assert (result.precision.part, result.precision.whole) == (relevant, above)
        assert (result.recall.part, result.recall.whole) == (relevant, len(ours))
        for share in (result.precision, result.recall):
            assert 0 <= share.low <= share.high <= 1
            assert not share.low > share.value
            assert not share.value > share.high


def test_one_answered_question_is_no_certain_precision() -> None:
    # Thirty queries of which one has an answer, a right one: its precision was reported as 1, from 1 to 1.
    positives = np.array([0.9, *np.linspace(0.1, 0.3, 29)])
    pools = ScoredPools(positives, np.full(30, 0.2), np.arange(30), np.arange(30))
    result = achieve(pools, 0.8)
    assert (result.coverage.part, result.coverage.whole) == (1, 30)
    assert (result.coverage.low, result.coverage.high) == pytest.approx((0.0059, 0.1667), abs=1e-4)
    for share in (result.top_precision, result.precision):
        assert share.value == 1
        assert (share.low, share.high) == pytest.approx((0.2065, 1.0), abs=1e-4)
    assert result.recall.value == pytest.approx(1 / 30)
    assert result.recall.high > 0.12


def test_a_share_by_query_counts_queries_and_not_cases() -> None:
    # A query's ten cases are alike: a hundred queries say what a hundred cases would, not a thousand.
    rng = np.random.default_rng(0)
    held, width = 0, []
    for _ in range(200):
        low, high = wilson_by_query(10 * (rng.random(100) < 0.3), np.full(100, 10), 0.9)
        held += low <= 0.3 <= high
        width.append(high - low)
    assert 0.84 < held / 200 < 0.96
    assert np.mean(width) > 2.5 * np.diff(wilson(300, 1000, 0.9))[0]


def test_a_share_by_query_by_its_formula() -> None:
    parts, wholes = np.array([1, 0, 3, 2, 0]), np.array([2, 0, 4, 2, 1])
    share, queries = 6 / 9, 4
    variance = queries / (queries - 1) * sum((a - share * b) ** 2 for a, b in zip(parts, wholes, strict=True)) / 81
    trials, t = min(share * (1 - share) / variance, wholes.sum()), float(student.ppf(0.975, queries - 1))
    middle = (share + t * t / (2 * trials)) / (1 + t * t / trials)
    reach = t * np.sqrt(share * (1 - share) / trials + t * t / (4 * trials**2)) / (1 + t * t / trials)
    assert wilson_by_query(parts, wholes) == pytest.approx((middle - reach, middle + reach), abs=1e-12)


def test_a_share_by_query_of_all_cases_counts_each_query_once() -> None:
    cases = np.random.default_rng(0).integers(1, 20, 30)
    low, high = wilson_by_query(cases, cases)
    t = float(student.ppf(0.975, 29))
    assert high == 1
    assert low == pytest.approx(30 / (30 + t * t))
    assert wilson_by_query(np.array([7]), np.array([7])) == wilson(1, 1)


def test_bounds_of_nothing() -> None:
    assert wilson(0, 0) == (0, 1)
    assert wilson_by_query(np.zeros(3, int), np.zeros(3, int)) == (0, 1)
    with pytest.raises(MetricInputError, match="successes from 0"):
        wilson(3, 2)
    with pytest.raises(MetricInputError, match="give both for each query"):
        wilson_by_query(np.ones(2, int), np.ones(3, int))
    with pytest.raises(MetricInputError, match="give both for each query"):
        wilson_by_query(np.array([2]), np.array([1]))


def test_the_highest_of_thresholds_with_one_f1_is_chosen() -> None:
    """F1 is 2/3 at 0 and at 0.5; as a product of precision and recall, the two differ in the last bit."""
    positives, negatives = np.array([0, 0.5, 0.5, 0.625]), np.array([0.25, 0.5, 0.5, 0.375])
    assert best_f1_threshold(positives, negatives) == (0.5, 3 / 5, 3 / 4)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), aim=st.sampled_from(["precision", "recall"]), tenths=st.integers(1, 10))
def test_equals_trying_every_score(seed: int, aim: str, tenths: int) -> None:
    rng = np.random.default_rng(seed)
    positives, negatives = rng.integers(0, 12, rng.integers(1, 12)), rng.integers(-4, 9, rng.integers(0, 40))
    tried = {}
    for score in sorted({*positives.tolist(), *negatives.tolist()}):
        true, false = (positives >= score).sum(), (negatives >= score).sum()
        tried[score] = {"precision": true / (true + false), "recall": true / len(positives)}
    enough = [score for score, result in tried.items() if result[aim] >= tenths / 10]
    result = choose_threshold(ScoredPools(positives.astype(np.float32), negatives.astype(np.float64)), aim, tenths / 10)
    assert result.reached == bool(enough)
    if enough:
        assert result.score == (min(enough) if aim == "precision" else max(enough))
        assert (result.precision, result.recall) == (tried[result.score]["precision"], tried[result.score]["recall"])
    else:
        assert aim == "precision"
        assert result.score == np.inf
        assert result.precision == max(each["precision"] for each in tried.values())


def test_ties_are_taken_all_or_none() -> None:
    # Four of the five best scores are equal: half of the positives cannot be taken apart.
    result = choose_threshold(ScoredPools(np.array([5.0, 3.0, 3.0]), np.array([3.0, 3.0, 1.0])), "recall", 0.5)
    assert (result.score, result.recall, result.precision) == (3, 1, 3 / 5)


def test_unreachable_precision_is_reported() -> None:
    result = choose_threshold(ScoredPools(np.array([1.0, 0.5]), np.array([2.0, 0.1])), "precision", 0.9)
    assert (result.reached, result.score, result.precision) == (False, np.inf, 2 / 3)


@pytest.mark.parametrize("wanted", [0.0, 1.01, float("nan")])
def test_refuse_aims_out_of_range(wanted: float) -> None:
    with pytest.raises(MetricInputError, match="give a precision or recall"):
        choose_threshold(ScoredPools(np.ones(2), np.zeros(2)), "recall", wanted)


def test_without_positives_there_is_none() -> None:
    with pytest.raises(MetricInputError, match="no positives"):
        choose_threshold(ScoredPools(np.ones(0), np.zeros(2)), "recall", 0.5)


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
