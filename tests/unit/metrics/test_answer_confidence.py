"""Confidences: by their formulas, fitted on other questions than those that they are used for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from raytriever.evaluation.evaluation_settings import CONFIDENCES
from raytriever.metrics.answer_confidence import (
    COMBINED,
    NAMES,
    Confidence,
    RankedQuestions,
    combined_features,
    fit_confidence,
    held_out_confidence,
)
from raytriever.metrics.metric_inputs import MetricInputError


def sampled(count: int, seed: int = 0) -> RankedQuestions:
    """Questions whose best document is right more often if it is far above the second, and BM25 agrees."""
    rng = np.random.default_rng(seed)
    gaps, level = rng.exponential(0.2, count), rng.normal(0, 0.3, count)
    rest = np.sort(rng.uniform(-1, 0, (count, 19)), axis=1)[:, ::-1] + level[:, None]
    scores = np.concatenate([(rest[:, 0] + gaps)[:, None], rest], axis=1)
    agrees = rng.random(count) < 0.5
    right = rng.random(count) < 1 / (1 + np.exp(2 - 8 * gaps - 2 * agrees))
    of_best = rng.uniform(1, 9, count)
    bm25 = np.stack([of_best + rng.uniform(0, 2, count), of_best, of_best], axis=1)
    return RankedQuestions(scores.astype(np.float32), right[:, None], np.full(count, ""), bm25, agrees)


def test_the_settings_name_every_confidence() -> None:
    assert CONFIDENCES == NAMES


def test_the_weights_are_those_of_a_logistic_regression_with_a_penalty() -> None:
    questions = sampled(300)
    fitted = fit_confidence(COMBINED, questions)
    features = combined_features(questions, 20, fitted.temperature)
    middle, spread = features.mean(axis=0), features.std(axis=0)
    spread[spread == 0] = 1
    theirs = LogisticRegression(C=0.1, tol=1e-10, max_iter=10_000).fit((features - middle) / spread, questions.right)
    odds = theirs.decision_function((features - middle) / spread)
    assert fitted.of(questions) == pytest.approx(odds, abs=1e-4)


def test_a_question_does_not_take_part_in_its_own_confidence() -> None:
    questions = sampled(200)
    held_out = held_out_confidence(COMBINED, questions)
    flipped = questions.relevant.copy()
    flipped[0] = not flipped[0]
    other = held_out_confidence(COMBINED, replace(questions, relevant=flipped))
    assert other[0] == held_out[0]
    assert (other != held_out).sum() > 150
    assert held_out_confidence("score", questions) == pytest.approx(questions.scores[:, 0])


def test_the_temperature_reads_no_judgement() -> None:
    questions = sampled(60)
    flipped = replace(questions, relevant=~questions.relevant)
    assert fit_confidence("entropy", questions) == fit_confidence("entropy", flipped)


def test_no_document_is_no_confidence_and_one_kind_of_answer_has_no_weights() -> None:
    questions = sampled(30)
    scores = questions.scores.copy()
    scores[3] = np.nan
    some = replace(questions, scores=scores)
    for name in NAMES:
        values = fit_confidence(name, some).of(some)
        assert values[3] == -np.inf
        assert np.isfinite(np.delete(values, 3)).all()
    always = fit_confidence(COMBINED, replace(questions, relevant=np.ones((30, 1), bool)))
    assert set(always.weights) == {0.0}
    assert always.intercept == pytest.approx(np.log(30.5 / 0.5))


def test_what_cannot_be_computed_is_refused() -> None:
    alone = replace(sampled(30), bm25=None, agrees=None)
    with pytest.raises(MetricInputError, match="the scores of BM25 are missing"):
        fit_confidence(COMBINED, alone)
    with pytest.raises(MetricInputError, match="give one of score, entropy, combined"):
        fit_confidence("best", alone)
    for wrong in (
        {"name": "best"},
        {"weights": (1.0,)},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"depth": 1},
    ):
        with pytest.raises(MetricInputError, match="fit it again"):
            Confidence(**({"name": "score", "depth": 20, "temperature": 1.0} | wrong))
