"""Thresholds of pairs and of the passages to keep: by their definition, with intervals and a guarantee."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.pair_threshold import (
    ScoredPools,
    achieve_pairs,
    best_f1_threshold,
    choose_pair_threshold,
    ranked_relevance,
)
from raytriever.metrics.passage_threshold import RankedPassages, achieve_kept, choose_kept_threshold, unreachable_kept


@pytest.mark.parametrize("seed", range(4))
def test_what_a_threshold_achieves_by_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries = int(rng.integers(1, 12))
    ours = np.concatenate([np.arange(queries), rng.integers(0, queries, 5)])
    theirs = rng.integers(0, queries, 30)
    pools = ScoredPools(rng.integers(0, 8, len(ours)) / 2, rng.integers(0, 7, 30) / 2, ours, theirs)
    for score in (-1.0, 1.5, 3.0, 3.5, 9.0):
        above = relevant = 0
        for query in range(queries):
            own = [(value, True) for value in pools.positives[ours == query]]
            own += [(value, False) for value in pools.negatives[theirs == query]]
            taken = [pair for pair in own if pair[0] >= score]
            above += len(taken)
            relevant += sum(is_relevant for _, is_relevant in taken)
        result = achieve_pairs(pools, score)
        assert (result.precision.count, result.precision.total) == (relevant, above)
        assert (result.recall.count, result.recall.total) == (relevant, len(ours))
        assert result.precision.value == pytest.approx(relevant / above if above else np.nan, nan_ok=True)
        for fraction in (result.precision, result.recall):
            assert 0 <= fraction.low <= fraction.high <= 1
            assert not fraction.low > fraction.value
            assert not fraction.value > fraction.high


def test_one_accepted_pair_is_no_certain_precision() -> None:
    # Thirty queries of which one has an answer, a right one: its precision was reported as 1, from 1 to 1.
    positives = np.array([0.9, *np.linspace(0.1, 0.3, 29)])
    pools = ScoredPools(positives, np.full(30, 0.2), np.arange(30), np.arange(30))
    result = achieve_pairs(pools, 0.8)
    assert result.precision.value == 1
    assert (result.precision.low, result.precision.high) == pytest.approx((0.2065, 1.0), abs=1e-4)
    assert result.recall.value == pytest.approx(1 / 30)
    assert result.recall.high > 0.12


def test_the_highest_of_thresholds_with_one_f1_is_chosen() -> None:
    """F1 is 2/3 at 0 and at 0.5; as a product of precision and recall, the two differ in the last bit."""
    positives, negatives = np.array([0, 0.5, 0.5, 0.625]), np.array([0.25, 0.5, 0.5, 0.375])
    assert best_f1_threshold(positives, negatives) == (0.5, 3 / 5, 3 / 4)


def f1_of(result: dict[str, float]) -> float:
    return 2 / sum(1 / value for value in result.values()) if all(result.values()) else 0.0


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), target=st.sampled_from(["precision", "recall"]), tenths=st.integers(1, 10))
def test_equals_trying_every_score(seed: int, target: str, tenths: int) -> None:
    rng = np.random.default_rng(seed)
    positives, negatives = rng.integers(0, 12, rng.integers(1, 12)), rng.integers(-4, 9, rng.integers(0, 40))
    tried = {}
    for score in sorted({*positives.tolist(), *negatives.tolist()}):
        true, false = (positives >= score).sum(), (negatives >= score).sum()
        tried[score] = {"precision": true / (true + false), "recall": true / len(positives)}
    enough = [score for score, result in tried.items() if result[target] >= tenths / 10]
    result = choose_pair_threshold(
        ScoredPools(positives.astype(np.float32), negatives.astype(np.float64)), target, tenths / 10
    )
    assert result.reached == bool(enough)
    if enough:
        assert result.score == (min(enough) if target == "precision" else max(enough))
        assert result.value == tried[result.score][target]
    else:
        assert target == "precision"
        assert result.score == np.inf
        assert result.value == max(value["precision"] for value in tried.values())
    score, precision, recall = best_f1_threshold(positives, negatives)
    assert tried[score] == {"precision": precision, "recall": recall}
    assert f1_of(tried[score]) == pytest.approx(max(map(f1_of, tried.values())))


@pytest.mark.parametrize("wanted", [0.0, 1.01, float("nan")])
def test_refuse_targets_out_of_range_and_scores_without_a_query(wanted: float) -> None:
    with pytest.raises(MetricInputError, match="give a value above 0"):
        choose_pair_threshold(ScoredPools(np.ones(2), np.zeros(2)), "recall", wanted)
    with pytest.raises(MetricInputError, match="no positives"):
        choose_pair_threshold(ScoredPools(np.ones(0), np.zeros(2)), "recall", 0.5)
    with pytest.raises(MetricInputError, match="some scores have no query"):
        achieve_pairs(ScoredPools(np.ones(4), np.zeros(4), np.arange(4), np.arange(3)), 0.5)
    with pytest.raises(MetricInputError, match="queries of scores are unknown"):
        achieve_pairs(ScoredPools(np.ones(4), np.zeros(4)), 0.5)


def test_relevance_at_ranks_by_its_definition() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.integers(0, 9, 20), rng.integers(0, 9, 60)
    pools = ScoredPools(rng.integers(0, 4, 20) / 2, rng.integers(0, 4, 60) / 2, ours, theirs)
    relevant = ranked_relevance(pools, 10, 12)
    for query in range(10):
        own = [(-score, True) for score in pools.positives[ours == query]]
        own += [(-score, False) for score in pools.negatives[theirs == query]]
        expected = [is_positive for _, is_positive in sorted(own)][:12]
        assert relevant[query].tolist() == expected + [False] * (12 - len(expected))


def sampled(rng: np.random.Generator, count: int, *, ties: bool = False, depth: int = 12) -> RankedPassages:
    """Rankings of 30 passages cut off at a depth, of which one to four are relevant; 2 % of the questions find none."""
    scores = rng.normal(size=(count, 30))
    counts = rng.integers(1, 5, count)
    relevant = np.arange(30) < counts[:, None]
    scores += 2.0 * relevant + rng.normal(size=(count, 1)) * 0.3
    scores[rng.random(count) < 0.02, :4] = -9
    scores = np.round(scores) if ties else scores
    order = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    return RankedPassages(np.take_along_axis(scores, order, 1), np.take_along_axis(relevant, order, 1), counts)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_threshold_by_its_definition(seed: int, ties: bool) -> None:
    some = sampled(np.random.default_rng(seed), 60, ties=ties)
    chosen = choose_kept_threshold(some, 0.8)
    losses = {}
    for score in np.unique(some.scores).tolist():
        fractions = [
            sum(is_relevant and at >= score for at, is_relevant in zip(scores, relevant, strict=True)) / count
            for scores, relevant, count in zip(some.scores, some.relevant, some.counts, strict=True)
        ]
        losses[score] = 60 - sum(fractions)
    allowed = [score for score, lost in losses.items() if (lost + 1) / 61 <= 0.2 + 1e-9]
    # No score above it is allowed, and those from it on to the next relevant passage lose as much.
    assert chosen.score <= max(allowed)
    assert losses[chosen.score] == pytest.approx(losses[max(allowed)])
    assert chosen.value == pytest.approx(1 - losses[chosen.score] / 60)
    kept = achieve_kept(some, chosen.score)
    assert (kept.questions, kept.fraction) == (60, pytest.approx(chosen.value))
    assert kept.passages == pytest.approx(float(np.mean([(row >= chosen.score).sum() for row in some.scores])))
    assert kept.low < kept.fraction < kept.high
    wide = achieve_kept(some, chosen.score, 0.5)
    assert wide.high - wide.low > 1.2 * (kept.high - kept.low)


def test_what_no_threshold_can_keep_is_out_of_reach_and_explained() -> None:
    scores = np.linspace(1, 0, 18)[:, None]
    few = RankedPassages(scores, scores >= 0, np.ones(18, int))
    assert not choose_kept_threshold(few, 0.95).reached
    assert unreachable_kept(0.95, few) == "18 questions with an answer are too few: a fraction of 0.95 needs 19"
    one_more = few.joined(RankedPassages(np.zeros((1, 2)), np.array([[True, False]]), np.ones(1, int)))
    assert (choose_kept_threshold(one_more, 0.95).score, one_more.scores.shape) == (0, (19, 2))
    # A question of which no relevant passage is ranked, and one of which half of them are.
    half = RankedPassages(np.full((40, 1), 0.5), np.arange(40)[:, None] > 0, np.where(np.arange(40) == 1, 2, 1))
    out = choose_kept_threshold(half, 0.95)
    assert (out.reached, out.value) == (False, pytest.approx(38.5 / 40))
    assert unreachable_kept(0.95, half) == "0.037 of a question's relevant passages are, on average, not in its 1 best"
    assert choose_kept_threshold(half, 0.93).score == 0.5
    nothing = RankedPassages(np.full((40, 2), np.nan), np.zeros((40, 2), bool), np.ones(40, int))
    assert (choose_kept_threshold(nothing, 0.5).reached, achieve_kept(nothing, 0.0).passages) == (False, 0)
    for wanted in (0.0, 1.0, 1.5):
        with pytest.raises(MetricInputError, match="give a fraction above 0 and below 1"):
            choose_kept_threshold(half, wanted)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [20, 30, 60, 200])
def test_the_guarantee_is_kept(count: int, ties: bool) -> None:
    rng, runs = np.random.default_rng(count), 150
    further, lost = sampled(rng, 4_000, ties=ties), {0.8: [], 0.9: []}
    for _ in range(runs):
        some = sampled(rng, count, ties=ties)
        for wanted, values in lost.items():
            chosen = choose_kept_threshold(some, wanted)
            # Without a threshold nothing is promised, and every passage is kept.
            values.append(1 - float(further.fractions(chosen.score).mean()) if chosen.reached else 0.0)
    for wanted, values in lost.items():
        error = float(np.std(values)) / np.sqrt(runs)
        assert np.mean(values) <= 1 - wanted + 2 * error, wanted
        if not ties and count == 200:  # no more is kept than is wanted
            assert np.mean(values) >= 1 - wanted - 0.02
