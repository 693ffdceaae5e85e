"""The decision to answer: confidences by their formulas, and thresholds by their definition, on two splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from raytriever.metrics.answer_threshold import (
    FEWEST_ANSWERED,
    achieve_answers,
    choose_answer_threshold,
    decide,
    unreachable,
)
from raytriever.metrics.intervals import Proportion, wilson
from raytriever.metrics.metric_inputs import MetricInputError


def sampled(rng: np.random.Generator, count: int, unanswerable: float = 0.3) -> RankedQuestions:
    """Questions of which the best score is higher if it is right, and of which some have no answer."""
    kinds = np.where(rng.random(count) < unanswerable, "given", "")
    best = np.round(rng.normal(np.where(kinds == "", 1.0, 0.0), 1), 2)
    right = (rng.random(count) < 1 / (1 + np.exp(-2 * best))) & (kinds == "")
    rest = np.sort(rng.uniform(-2, 0, (count, 19)))[:, ::-1] + best[:, None]
    return RankedQuestions(np.concatenate([best[:, None], rest], axis=1), right[:, None], kinds)


def answers_of(questions: RankedQuestions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return questions.scores[:, 0], questions.right, questions.answerable


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("target", "wanted"),
    [("top_precision", 0.8), ("answered", 0.6), ("f1", None), ("wrong_answers", 0.1), ("missed", 0.2)],
)
def test_thresholds_by_their_definition(seed: int, target: Any, wanted: float | None) -> None:
    questions = sampled(np.random.default_rng(seed), 80)
    confidence, is_right, answerable = answers_of(questions)
    chosen = choose_answer_threshold(confidence, is_right, answerable, target, wanted)
    with_answer, values = int(answerable.sum()), {}
    for score in sorted(set(confidence.tolist())):
        at_least = confidence >= score
        shown, right = int(at_least.sum()), int((is_right & at_least).sum())
        answered = int((answerable & at_least).sum())
        if target == "top_precision" and shown < FEWEST_ANSWERED:
            continue
        values[score] = {
            "top_precision": right / shown,
            "answered": answered / with_answer,
            "f1": 2 * right / (shown + with_answer),
            "wrong_answers": (shown - right) / 80,
            "missed": 1 - answered / with_answer,
        }[target]
    if target == "wrong_answers":
        enough = [score for score, value in values.items() if (value * 80 + 1) / 81 <= wanted + 1e-9]
        assert chosen.score <= min(enough)
        assert not any(chosen.score <= score < min(enough) for score in values)
        assert chosen.value == values[min(enough)]
    elif target == "missed":
        allowed = [s for s, value in values.items() if (value * with_answer + 1) / (with_answer + 1) <= wanted + 1e-9]
        assert chosen.score == max(allowed)
    else:
        enough = [score for score, value in values.items() if value >= (wanted or max(values.values()))]
        assert chosen.reached == bool(enough)
        expected = min(enough, default=np.inf) if target == "top_precision" else max(enough)
        assert (chosen.score, chosen.value) == (expected, values.get(expected, max(values.values())))


def test_a_precision_of_few_answers_is_out_of_reach() -> None:
    confidence, right = np.linspace(1, 0, 100), np.arange(100) < 1
    one = (confidence, right, np.ones(100, bool))
    chosen = choose_answer_threshold(*one, "top_precision", 0.5)
    assert (chosen.score, chosen.reached) == (np.inf, False)
    assert chosen.value == pytest.approx(1 / FEWEST_ANSWERED)
    assert choose_answer_threshold(*one, "answered", 0.05).score == confidence[4]
    none = (confidence, np.zeros(100, bool), np.ones(100, bool))
    assert choose_answer_threshold(*none, "f1", None).score == np.inf
    # Of fewer than 60 questions it is a precision of half of them.
    few = (confidence[:20], np.arange(20) < 12, np.ones(20, bool))
    assert choose_answer_threshold(*few, "top_precision", 1.0).score == confidence[11]


def test_a_guarantee_that_few_questions_cannot_give_is_out_of_reach() -> None:
    confidence = np.linspace(0, 1, 18)
    sure = (confidence, np.ones(18, bool), np.ones(18, bool))
    assert not choose_answer_threshold(*sure, "wrong_answers", 0.05).reached  # 1 / 19 is more
    assert not choose_answer_threshold(*sure, "missed", 0.05).reached
    more = (np.linspace(0, 1, 19), np.ones(19, bool), np.ones(19, bool))
    assert choose_answer_threshold(*more, "wrong_answers", 0.05).score == 0
    assert choose_answer_threshold(*more, "missed", 0.05).score == 0
    wrong = (confidence, np.zeros(18, bool), np.ones(18, bool))
    assert not choose_answer_threshold(*wrong, "wrong_answers", 0.1).reached


@pytest.mark.parametrize(
    ("target", "wanted"), [("answered", 0.0), ("answered", 1.01), ("f1", 0.5), ("top_precision", None), ("missed", 1.0)]
)
def test_refuse_targets_out_of_range(target: Any, wanted: float | None) -> None:
    answers = (np.ones(30), np.ones(30, bool), np.ones(30, bool))
    with pytest.raises(MetricInputError, match="give a fraction above 0"):
        choose_answer_threshold(*answers, target, wanted)
    nothing = (np.ones(30), np.zeros(30, bool), np.zeros(30, bool))
    with pytest.raises(MetricInputError, match="no question has an answer"):
        choose_answer_threshold(*nothing, "f1", None)


def test_fractions_by_their_definition() -> None:
    questions = sampled(np.random.default_rng(0), 200)
    shown = questions.scores[:, 0] >= 0.5
    fractions, answerable = achieve_answers(shown, questions), questions.answerable
    right = int((shown & questions.right).sum())
    for fraction, part, whole in (
        (fractions.answered, int((shown & answerable).sum()), int(answerable.sum())),
        (fractions.top_precision, right, int(shown.sum())),
        (fractions.wrong, int(shown.sum()) - right, 200),
        (fractions.unanswerable["given"], int((shown & ~answerable).sum()), int((~answerable).sum())),
    ):
        assert fraction == Proportion(part, whole, *wilson(part, whole))
    assert fractions.f1.value == 2 * right / (int(shown.sum()) + int(answerable.sum()))
    assert fractions.f1.low < fractions.f1.value < fractions.f1.high
    missed = fractions.of("missed")
    assert (missed.value, missed.low) == pytest.approx((1 - fractions.answered.value, 1 - fractions.answered.high))
    wide = achieve_answers(shown, questions, 0.5)
    assert wide.answered.high - wide.answered.low > 1.3 * (fractions.answered.high - fractions.answered.low)


def test_two_splits_with_enough_questions_choose_and_check() -> None:
    rng = np.random.default_rng(1)
    choosing, checking = sampled(rng, 100), sampled(rng, 60)
    made = decide(choosing, checking, [("answered", 0.5), ("f1", None)], "score")
    assert (made.is_checked_apart, made.confidence.name) == (True, "score")
    [(answered, achieved), (_, of_f1)] = made.thresholds
    assert answered == choose_answer_threshold(*answers_of(choosing), "answered", 0.5)
    assert achieved == achieve_answers(checking.scores[:, 0] >= answered.score, checking)
    assert of_f1 is not None
    assert of_f1.answered.total == int(checking.answerable.sum())


def test_few_questions_are_counted_at_the_threshold_that_decides() -> None:
    rng = np.random.default_rng(2)
    choosing, checking = sampled(rng, 18), sampled(rng, 18)
    made = decide(choosing, checking, [("answered", 0.6)], "score")
    every = choosing.joined(checking)
    assert (made.is_checked_apart, len(made.chosen[0]), len(made.checked[0])) == (False, 36, 36)
    [(one, achieved)] = made.thresholds
    assert one == choose_answer_threshold(*answers_of(every), "answered", 0.6)
    assert achieved == achieve_answers(every.scores[:, 0] >= one.score, every, 0.5)
    assert decide(every, every, [("answered", 0.6)], "score").thresholds == made.thresholds
    with pytest.raises(MetricInputError, match="19 questions are too few") as raised:
        decide(choosing, checking.where(np.arange(1)), [("f1", None)])
    assert raised.value.remedy == "give at least 20 for a threshold of entropy"
    with pytest.raises(MetricInputError, match="29 questions are too few"):
        decide(choosing, checking.where(np.arange(11)), [("f1", None)], "combined")


def test_questions_without_a_document_are_never_shown_one() -> None:
    confidence = np.append(np.full(5, -np.inf), np.linspace(0, 1, 35))
    right, answerable = np.arange(40) >= 5, np.ones(40, bool)
    chosen = choose_answer_threshold(confidence, right, answerable, "wrong_answers", 0.2)
    assert (chosen.score, chosen.value, chosen.reached) == (0, 0, True)
    # Six of forty may be missed, and five are at any threshold.
    chosen = choose_answer_threshold(confidence, right, answerable, "missed", 0.18)
    assert (chosen.score, chosen.value) == (confidence[6], pytest.approx(0.15))
    assert not choose_answer_threshold(confidence, right, answerable, "missed", 0.1).reached
    nothing = (np.full(40, -np.inf), np.zeros(40, bool), answerable)
    assert not choose_answer_threshold(*nothing, "wrong_answers", 0.2).reached


def test_why_a_promise_is_out_of_reach() -> None:
    kinds = np.where(np.arange(26) < 14, "", "given")
    few = RankedQuestions(np.ones((26, 2)), np.zeros((26, 1), bool), kinds)
    assert unreachable("missed", 0.05, few) == "14 questions with an answer are too few: a fraction of 0.05 needs 19"
    assert unreachable("wrong_answers", 0.05, few) == "too many of the most confident best documents are wrong"
    assert unreachable("missed", 0.1, few) == "too many questions with an answer find no document"
    assert unreachable("wrong_answers", 0.01, few) == "26 questions are too few: a fraction of 0.01 needs 99"


# A question has a score s from 0 to 1. Seven in ten have an answer, and then their best document is right in the
# fraction s. So at a threshold t of s, 1 - t - 0.35 (1 - t²) of all questions are shown a wrong answer, and t of those
# with an answer are missed. The entropy of two scores, s and 0, rises with s.
def simulated(rng: np.random.Generator, count: int, ties: bool) -> RankedQuestions:
    best = rng.integers(1, 11, count) / 10 if ties else rng.random(count)
    has_answer = rng.random(count) < 0.7
    right = has_answer & (rng.random(count) < best)
    scores = np.stack([best, np.zeros(count)], axis=1)
    return RankedQuestions(scores, right[:, None], np.where(has_answer, "", "given"))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [20, 30, 60, 200])
def test_promises_are_kept_and_intervals_hold_the_truth(count: int, ties: bool) -> None:
    rng, runs = np.random.default_rng(count), 100
    best = np.arange(1, 11) / 10 if ties else (np.arange(2_000) + 0.5) / 2_000
    grid = RankedQuestions(np.stack([best, 0 * best], axis=1), np.zeros((len(best), 1), bool), np.full(len(best), ""))
    targets: list[Any] = [(target, alpha) for target in ("wrong_answers", "missed") for alpha in (0.1, 0.2)]
    true: dict[Any, list[float]] = {target: [] for target in targets}
    held: dict[Any, list[bool]] = {target: [] for target in targets}
    for _ in range(runs):
        some = simulated(rng, count, ties)
        made = decide(some, some, targets)
        values = made.confidence.of(grid)
        for target, (threshold, achieved) in zip(targets, made.thresholds, strict=True):
            shown = values >= threshold.score if threshold.reached else np.full(len(best), target[0] == "missed")
            truth = (shown * (1 - 0.7 * best)).mean() if target[0] == "wrong_answers" else (~shown).mean()
            true[target].append(float(truth))
            if achieved is not None:
                fraction = achieved.of(target[0])
                held[target].append(bool(fraction.low <= truth <= fraction.high))
    for target in targets:
        assert np.mean(true[target]) <= target[1] + 2 * np.std(true[target]) / np.sqrt(runs), target
        assert np.mean(held[target]) >= 0.93, target
        assert len(held[target]) > 0.6 * runs, target


def sampled_with_bm25(count: int, seed: int = 0) -> RankedQuestions:
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
    questions = sampled_with_bm25(300)
    fitted = fit_confidence(COMBINED, questions)
    features = combined_features(questions, 20, fitted.temperature)
    middle, spread = features.mean(axis=0), features.std(axis=0)
    spread[spread == 0] = 1
    theirs = LogisticRegression(C=0.1, tol=1e-10, max_iter=10_000).fit((features - middle) / spread, questions.right)
    odds = theirs.decision_function((features - middle) / spread)
    assert fitted.of(questions) == pytest.approx(odds, abs=1e-4)


def test_a_question_does_not_take_part_in_its_own_confidence() -> None:
    questions = sampled_with_bm25(200)
    held_out = held_out_confidence(COMBINED, questions)
    flipped = questions.relevant.copy()
    flipped[0] = not flipped[0]
    other = held_out_confidence(COMBINED, replace(questions, relevant=flipped))
    assert other[0] == held_out[0]
    assert (other != held_out).sum() > 150
    assert held_out_confidence("score", questions) == pytest.approx(questions.scores[:, 0])
    # A temperature is fitted without judgements.
    assert fit_confidence("entropy", questions) == fit_confidence("entropy", replace(questions, relevant=flipped))


def test_no_document_is_no_confidence_and_one_kind_of_answer_has_no_weights() -> None:
    questions = sampled_with_bm25(30)
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
    alone = replace(sampled_with_bm25(30), bm25=None, agrees=None)
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
        with pytest.raises(MetricInputError, match="fit the confidence again"):
            Confidence(**({"name": "score", "depth": 20, "temperature": 1.0} | wrong))
