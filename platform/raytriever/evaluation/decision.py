"""Decision to answer: the confidences and thresholds of each model on a data set, as rows of `results.json` and tables.

Thresholds are chosen on one split, and checked on the evaluated one; with few questions those of both choose them, and
are counted (`metrics.answering.decide`). Thresholds of pairs need no confidence: they are scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.keys import key_of
from raytriever.errors import DataError
from raytriever.evaluation.evaluate import Evaluation, UnansweredRanking
from raytriever.evaluation.measurements import DatasetMeasurement, pool_scores
from raytriever.evaluation.protocol import (
    ANSWER_AIMS,
    PAIR_AIMS,
    REMOVED,
    JudgedQueries,
    WantedAim,
    aim_text,
    is_missed,
)
from raytriever.metrics.answering import (
    CONFORMAL,
    FEWEST_ANSWERED,
    AnswerAim,
    AnswerDecision,
    AnswersAchieved,
    Threshold,
    achieve_answers,
    decide,
    fewest_answers,
    unreachable,
)
from raytriever.metrics.calibration import (
    PairsAchieved,
    achieve_pairs,
    choose_pair_threshold,
    ranked_relevance,
)
from raytriever.metrics.confidence import (
    COMBINED,
    DEPTH,
    ENTROPY,
    NAMES,
    SCORE,
    RankedQuestions,
    area_of,
    fit_confidence,
    held_out_confidence,
)
from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.intervals import Proportion
from raytriever.metrics.probability import CalibrationError, calibration_error_of_scores
from raytriever.metrics.selective import area_under_risk_coverage, bootstrap_interval, resampling_weights
from raytriever.mining.bm25 import Bm25Index, compare_best

_SAMPLES = 500  # of the intervals of areas
# Shares on the checked questions: keys of the counted cases and of all cases.
SHARES = {
    "coverage": ("answered_queries", "queries"),
    "top_precision": ("relevant_answers", "shown_answers"),
    "wrong": ("wrong_answers", "questions"),
    "checked_precision": ("relevant_pairs_above", "pairs_above"),
    "checked_recall": ("relevant_pairs_above", "relevant_pairs"),
}


@dataclass(frozen=True)
class ModelDecision:
    """Thresholds of a model on a data set.

    Args:
        answers: confidence and thresholds of the decision to answer; None if no aim is of answers.
        pairs: thresholds of pairs with what they achieve, None out of reach.
        unasked: shares of each threshold of answers of questions without an answer that had no part in choosing it.
    """

    model: str
    answers: AnswerDecision | None
    pairs: list[tuple[Threshold, PairsAchieved | None]]
    error: CalibrationError
    unasked: list[dict[str, Proportion]]


@activity("choosing the thresholds")
def decide_dataset(
    measured: DatasetMeasurement, aims: Sequence[WantedAim], confidence: str = ENTROPY, removed: float = 0.0
) -> list[ModelDecision]:
    """Choose and check thresholds of each model.

    Args:
        aims: what the thresholds aim at; without any there is no decision.
        confidence: name of the confidence that decides.
        removed: share of the questions that take part without their answers.
    """
    of_answers = [(aim, wanted) for aim, wanted in aims if aim in ANSWER_AIMS]
    decisions = []
    asks_bm25 = bool(of_answers) and confidence == COMBINED
    indexes = [Bm25Index.of(part.dataset.documents) if asks_bm25 else None for part in measured.parts]
    for model in measured.models if aims else ():
        pools, checked = measured.calibration_pools(model), measured.pools(model)
        pairs = []
        for aim, wanted in aims:
            if aim in PAIR_AIMS and wanted is not None:
                threshold = choose_pair_threshold(pools, aim, wanted)
                pairs.append((threshold, achieve_pairs(checked, threshold.score) if threshold.reached else None))
        answers, unasked = None, []
        if of_answers:
            parts = list(zip(measured.parts, indexes, strict=True))
            checking = _joined(
                [questions_of(one.judged, one.evaluations[model], index, removed) for one, index in parts]
            )
            choosing = checking
            if measured.parts[0].calibration[model] is not measured.parts[0].evaluations[model]:
                choosing = _joined(
                    [
                        questions_of(one.calibration_judged or one.judged, one.calibration[model], index, removed)
                        for one, index in parts
                    ]
                )
            answers = decide_questions(measured.source.name, choosing, checking, of_answers, confidence)
            if not removed and answers.is_checked_apart:
                without = [_without_answers(part.judged, part.evaluations[model], index) for part, index in parts]
                unasked = _shares_of(answers, _joined([one for one in without if len(one)] or without))
        error = calibration_error_of_scores(pools, checked)
        decisions.append(ModelDecision(model, answers, pairs, error, unasked))
    return decisions


def decide_questions(
    dataset: str,
    choosing: RankedQuestions,
    checking: RankedQuestions,
    aims: Sequence[tuple[AnswerAim, float | None]],
    confidence: str = ENTROPY,
) -> AnswerDecision:
    """Choose and check thresholds of one model; see `metrics.answering.decide`."""
    try:
        return decide(choosing, checking, aims, confidence)
    except MetricInputError as error:
        raise DataError(error.what, dataset, error.remedy) from error


def questions_of(
    judged: JudgedQueries, evaluation: Evaluation, index: Bm25Index | None = None, removed: float = 0.0
) -> RankedQuestions:
    """Return the questions of a split with the rankings of a model: those with an answer, and those without.

    BM25 is asked too where there is an index. A share of the questions with an answer, `removed`, counts without its
    relevant documents: those whose ids have the smallest hashes, so a larger share has the questions of a smaller one.
    """
    count = len(evaluation.queries)
    relevant = ranked_relevance(pool_scores([evaluation]), count, DEPTH)
    found = evaluation.ranking[:, :DEPTH]
    scores = np.where(found >= 0, evaluation.scores[:, :DEPTH], np.nan).astype(np.float32)
    asked = _of_kind("", UnansweredRanking(evaluation.queries, found, scores), relevant, judged, index)
    parts = [asked]
    if removed:
        names = [key_of(judged.dataset.queries.ids[query]) for query in evaluation.queries.tolist()]
        turned = np.zeros(count, bool)
        turned[sorted(range(count), key=names.__getitem__)[: round(removed * count)]] = True
        parts = [asked.where(~turned), _without_answers(judged, evaluation, index).where(turned)]
    for kind, ranked in evaluation.unanswered.items():
        if kind != REMOVED:
            parts.append(_of_kind(kind, ranked, None, judged, index))
    return _joined(parts)


def _without_answers(judged: JudgedQueries, evaluation: Evaluation, index: Bm25Index | None) -> RankedQuestions:
    """Return all questions with an answer as they are without their relevant documents and the copies of these."""
    ranked = evaluation.unanswered[REMOVED]
    if index is None:
        return _of_kind(REMOVED, ranked, None, judged, None)
    copies, present = judged.dataset.documents.copies, judged.is_relevant & judged.is_in_corpus
    owners, documents = judged.relevance.queries[present], judged.relevance.documents[present]
    order = np.argsort(owners, kind="stable")
    answers = np.split(documents[order], np.searchsorted(owners[order], np.arange(1, len(ranked.queries))))
    return _of_kind(REMOVED, ranked, None, judged, index, [copies.equal_to(one) for one in answers])


def _of_kind(
    kind: str,
    ranked: UnansweredRanking,
    relevant: ndarray | None,
    judged: JudgedQueries,
    index: Bm25Index | None,
    answers: Sequence[ndarray] | None = None,
) -> RankedQuestions:
    """Return questions of one kind; none of their documents is relevant if `relevant` is None.

    `answers` are the positions of the documents that are not searched for each question.
    """
    count = len(ranked.queries)
    relevant = np.zeros((count, DEPTH), bool) if relevant is None else relevant
    kinds = np.full(count, kind, dtype="<U16")
    width = DEPTH - ranked.scores.shape[1]
    scores = np.pad(ranked.scores, ((0, 0), (0, width)), constant_values=np.nan) if width else ranked.scores
    relevant = relevant & np.isfinite(scores)
    if index is None:
        return RankedQuestions(scores, relevant, kinds)
    texts = [str(judged.dataset.queries.texts[query]) for query in ranked.queries.tolist()]
    best = ranked.ranking[:, 0] if ranked.ranking.shape[1] else np.full(count, -1)
    return RankedQuestions(scores, relevant, kinds, *compare_best(index, texts, best, answers))


def _joined(parts: Sequence[RankedQuestions]) -> RankedQuestions:
    return reduce(RankedQuestions.joined, parts)


def _shares_of(answers: AnswerDecision, questions: RankedQuestions) -> list[dict[str, Proportion]]:
    """Return the share of questions without an answer that are shown one, for each threshold."""
    values = answers.confidence.of(questions)
    return [
        achieve_answers(values >= threshold.score, questions).unanswerable if achieved else {}
        for threshold, achieved in answers.thresholds
    ]


def calibration_rows(
    measured: DatasetMeasurement, decisions: Sequence[ModelDecision], chosen_on: str
) -> list[dict[str, Any]]:
    """Return a row for each model and aim.

    Returns:
        - `dataset`, `model`, `aim`, `wanted`, `confidence` (what the threshold is a value of), `chosen_on`,
          `checked_on` (the same as `chosen_on` with few questions).
        - Where it was chosen: `threshold` (None if the aim is out of reach), `reached`, `chosen` (value of the aim).
        - On the checked questions: `checked` (the value of the aim) with `low` and `high`. For an aim of answers
          `queries` (with an answer), `answered_queries` of these and their share `coverage`, `shown_answers`,
          `relevant_answers` and their share `top_precision`, `questions` (all), `wrong_answers` and their share
          `wrong`, and `unanswerable`: for each kind of questions without an answer `part`, `whole`, `value`, `low`,
          `high` of those that are shown one. For an aim of pairs `pairs_above`, `relevant_pairs_above`,
          `relevant_pairs`, `checked_precision` and `checked_recall`. Each share has its 95 % interval as `NAME_low` and
          `NAME_high`. A share of nothing is None.
        - `calibration_error`: error of scores as probabilities, between the splits, with its interval
          (`metrics.probability`).
        - `notes`: sentences on missing or uncertain figures.
    """
    rows = []
    for one in decisions:
        answers = one.answers
        where = _where(answers, chosen_on, measured.source.split)
        order = [threshold for threshold, _ in answers.thresholds] if answers is not None else []
        decides = next((threshold for threshold in order if threshold.reached), None)
        thresholds: list[tuple[Threshold, AnswersAchieved | PairsAchieved | None, dict[str, Proportion]]] = [
            (threshold, achieved, {}) for threshold, achieved in one.pairs
        ]
        if answers is not None:
            unasked = one.unasked or [{} for _ in answers.thresholds]
            thresholds += [(*each, extra) for each, extra in zip(answers.thresholds, unasked, strict=True)]
        for threshold, achieved, extra in thresholds:
            is_answer = threshold.aim in ANSWER_AIMS
            row: dict[str, Any] = {
                "dataset": measured.source.name,
                "model": one.model,
                "aim": threshold.aim,
                "wanted": threshold.wanted,
                "confidence": answers.confidence.name if is_answer and answers is not None else SCORE,
                "threshold": threshold.score if threshold.reached else None,
                "reached": threshold.reached,
                "chosen": threshold.value,
                "chosen_on": where[0] if is_answer else chosen_on,
                "checked_on": where[1] if is_answer else measured.source.split,
                "calibration_error": one.error.value,
                "calibration_error_low": one.error.low,
                "calibration_error_high": one.error.high,
                **_shares(threshold, achieved, extra),
            }
            is_replaced = not threshold.reached and decides is not None and threshold in order[: order.index(decides)]
            row["notes"] = _notes(row, threshold, answers, decides if is_replaced else None)
            rows.append(row)
    return rows


def _where(answers: AnswerDecision | None, chosen_on: str, split: str) -> tuple[str, str]:
    """Return where thresholds of answers were chosen, and where they were checked: on the same few questions."""
    if answers is None or answers.is_checked_apart:
        return chosen_on, split
    both = " and ".join(dict.fromkeys((chosen_on, split)))
    return both, both


def _shares(
    threshold: Threshold, achieved: AnswersAchieved | PairsAchieved | None, extra: Mapping[str, Proportion]
) -> dict[str, Any]:
    """Return the shares that a threshold achieves, as keys of a row; missing ones are None."""
    bounds = [f"{name}{end}" for name in (*SHARES, "checked") for end in ("", "_low", "_high")]
    counts = [key for keys in SHARES.values() for key in keys]
    row: dict[str, Any] = dict.fromkeys([*counts, *bounds, "checked", "low", "high"])
    del row["checked_low"], row["checked_high"]
    row["unanswerable"] = {}
    if achieved is None:
        return row
    if isinstance(achieved, PairsAchieved):
        shares = {"checked_precision": achieved.precision, "checked_recall": achieved.recall}
        aimed = achieved.precision if threshold.aim == "precision" else achieved.recall
    else:
        shares = {"coverage": achieved.answered, "top_precision": achieved.top_precision, "wrong": achieved.wrong}
        aimed = achieved.of(threshold.aim)
        kinds = {**achieved.unanswerable, **extra}
        row["unanswerable"] = {kind: {**vars(share), "value": share.value} for kind, share in kinds.items()}
    for name, share in shares.items():
        row |= dict(zip(SHARES[name], (share.part, share.whole), strict=True))
        if share.whole:
            row |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}
    if aimed.whole:
        row |= {"checked": aimed.value, "low": aimed.low, "high": aimed.high}
    return row


def _notes(
    row: Mapping[str, Any], threshold: Threshold, answers: AnswerDecision | None, instead: Threshold | None
) -> list[str]:
    """Return sentences on the missing or uncertain figures of a row; `instead` is the threshold that replaces it."""
    aim, wanted, split, judged = threshold.aim, threshold.wanted, row["chosen_on"], row["checked_on"]
    if not threshold.reached:
        if aim in CONFORMAL and wanted is not None and answers is not None:
            lines = [f"There is no threshold: {unreachable(aim, wanted, answers.chosen[0])}."]
            if instead is not None:
                lines.append(f"{aim_text(instead.aim, instead.wanted)} decides instead, and no share is promised.")
            return [" ".join(lines)]
        among, best = f"no score on {split} has", f"the best there is {threshold.value:.3f}"
        if aim == "top_precision" and answers is not None:
            fewest = fewest_answers(len(answers.chosen[0]))
            among = f"no {fewest} or more of the top answers on {split} above one threshold have"
            best = best if threshold.value == threshold.value else "there are fewer"
        share = "a precision" if wanted is None else f"a precision of {wanted:g}"
        return [f"There is no threshold, because {among} {share}; {best}."]
    if row["pairs_above"] == 0:
        return [f"No pair of {judged} scores at or above the threshold, so there is no precision."]
    if row["shown_answers"] == 0:
        return [f"No question of {judged} reaches the threshold, so none is answered, and there is no precision."]
    notes = []
    if aim in CONFORMAL and row["confidence"] == COMBINED:
        notes = [f"{COMBINED} is fitted to the same answers, so no share is promised."]
    if is_missed(aim, wanted, row["low"], row["high"]):
        found = f"{row['checked']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        notes += [f"The aim is missed on {judged}: {found}. Give a stricter aim, or more questions to choose on."]
    elif (row["shown_answers"] or FEWEST_ANSWERED) < FEWEST_ANSWERED:
        notes += [
            f"Few answers: {row['shown_answers']:,} of {row['questions']:,} questions of {judged} have one. Below "
            f"{FEWEST_ANSWERED} a precision says little; see its interval."
        ]
    return notes


def confidence_rows(
    measured: DatasetMeasurement, decisions: Sequence[ModelDecision], chosen_on: str
) -> list[dict[str, Any]]:
    """Return a row for each model and confidence, with its area under the risk-coverage curve.

    Returns:
        Rows of `dataset`, `model`, `confidence`, `chosen_on`, `area_chosen` (out of fold, where it was chosen), `area`
        with its 95 % interval `low` to `high` (on the checked questions), and `decides`.
    """
    rows = []
    for one in decisions:
        answers = one.answers
        if answers is None:
            continue
        chosen, checked = answers.chosen[0], answers.checked[0]
        where = _where(answers, chosen_on, measured.source.split)[0]
        names = [name for name in NAMES if name != COMBINED or chosen.bm25 is not None]
        weights = resampling_weights([len(checked)], _SAMPLES, 0)
        for name in names:
            held_out = held_out_confidence(name, chosen)
            values = fit_confidence(name, chosen).of(checked) if answers.is_checked_apart else held_out
            low, high = bootstrap_interval(area_under_risk_coverage(values, checked.right, weights))
            rows.append(
                {
                    "dataset": measured.source.name,
                    "model": one.model,
                    "confidence": name,
                    "chosen_on": where,
                    "area_chosen": area_of(held_out, chosen),
                    "area": area_of(values, checked),
                    "low": low,
                    "high": high,
                    "decides": name == answers.confidence.name,
                }
            )
    return rows
