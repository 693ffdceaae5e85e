"""Thresholds of the passages to keep: by their definition, and their guarantee by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.passage_threshold import (
    RankedPassages,
    achieve_kept,
    choose_kept_threshold,
    unreachable_kept,
)


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
    assert unreachable_kept(0.95, half) == "0.037 of the relevant passages are not among the 1 best of their questions"
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
