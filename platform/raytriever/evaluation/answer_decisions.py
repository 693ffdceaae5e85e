"""Decision whether to answer a question: confidences and thresholds of each model, as rows of `results.json`.

Thresholds are chosen on one split and tested on the evaluated split. If there are few questions, thresholds are chosen
and tested on both (`metrics.answer_threshold.decide`). Thresholds of pairs are scores, so they need no confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast

import numpy as np
from numpy import ndarray

from raytriever.core.errors import DataError
from raytriever.core.progress import activity
from raytriever.data.hashed_ids import key_of
from raytriever.evaluation.dataset_evaluation import DatasetEvaluation, pool_scores
from raytriever.evaluation.evaluate_split import Evaluation, UnansweredRanking
from raytriever.evaluation.kept_passages import PassageDecision, decide_passages, notes_on_passages
from raytriever.evaluation.protocol import (
    ANSWER_TARGETS,
    PAIR_TARGETS,
    REMOVED,
    JudgedQueries,
    ThresholdTarget,
    is_missed,
    target_text,
)
from raytriever.evaluation.results import ConfidenceRow, ErrorRow, ThresholdRow, finite
from raytriever.metrics.answer_confidence import (
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
from raytriever.metrics.answer_threshold import (
    CONFORMAL,
    FEWEST_ANSWERED,
    AnswerDecision,
    AnswerTarget,
    Threshold,
    achieve_answers,
    decide,
    fewest_answers,
    unreachable,
)
from raytriever.metrics.intervals import Proportion
from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.pair_threshold import PairsAchieved, achieve_pairs, choose_pair_threshold, ranked_relevance
from raytriever.metrics.passage_threshold import KEPT, PassagesKept
from raytriever.metrics.score_to_probability import CalibrationError, calibration_error_of_scores
from raytriever.metrics.selective_retrieval import (
    area_under_risk_coverage,
    bootstrap_interval,
    normalized_abstention_auc,
    resampling_weights,
)
from raytriever.retrieval.mining.bm25 import Bm25Index, compare_best

_SAMPLES = 500  # bootstrap samples for the interval of an area under the curve
_Fractions = dict[str, Proportion]


@dataclass(frozen=True)
class ModelDecision:
    """Thresholds of a model on a data set."""

    model: str
    # Confidence and thresholds of the decision to answer; None if all targets are for pairs.
    answers: AnswerDecision | None
    # Thresholds of pairs with what they achieve; None if no threshold reaches the target.
    pairs: list[tuple[Threshold, PairsAchieved | None]]
    error: CalibrationError
    # For each threshold of answers, the fraction of unanswerable questions that are answered, by kind of question.
    # These questions were not used to choose the threshold.
    unasked: list[dict[str, Proportion]]
    passages: PassageDecision | None = None


@activity("choosing the thresholds")
def decide_dataset(
    evaluated: DatasetEvaluation, targets: Sequence[ThresholdTarget], confidence: str = ENTROPY, removed: float = 0.0
) -> list[ModelDecision]:
    """Choose and check thresholds of each model.

    Args:
        targets: targets of the thresholds; if there are none, nothing is decided.
        confidence: name of the confidence that decides whether a question is answered.
        removed: fraction of the questions whose answers are removed from the corpus.
    """
    of_answers = [(target, wanted) for target, wanted in targets if target in ANSWER_TARGETS]
    of_passages = [wanted for target, wanted in targets if target == KEPT and wanted is not None]
    decisions = []
    asks_bm25 = bool(of_answers or of_passages) and confidence == COMBINED
    indexes = [Bm25Index.of(part.dataset.documents) if asks_bm25 else None for part in evaluated.parts]
    for model in evaluated.parts[0].calibration if targets else ():
        pools, checked = pool_scores([part.calibration[model] for part in evaluated.parts]), evaluated.pools(model)
        pairs = []
        for target, wanted in targets:
            if target in PAIR_TARGETS and wanted is not None:
                threshold = choose_pair_threshold(pools, target, wanted)
                pairs.append((threshold, achieve_pairs(checked, threshold.score) if threshold.reached else None))
        answers, unasked, passages = None, [], None
        if of_passages:
            passages = decide_passages(evaluated, model, of_passages)
        if of_answers or of_passages:
            splits = [list(zip(split, indexes, strict=True)) for split in evaluated.splits(model)]
            asked = [_joined([questions_of(*part, index, removed) for part, index in split]) for split in splits]
            answers = decide_questions(evaluated.source.name, asked[-1], asked[0], of_answers, confidence)
            if not removed and answers.is_checked_apart:
                without = [_without_answers(*part, index) for part, index in splits[0]]
                unasked = _fractions_of(
                    answers, _joined([questions for questions in without if len(questions)] or without)
                )
        error = calibration_error_of_scores(pools, checked)
        decisions.append(ModelDecision(model, answers, pairs, error, unasked, passages))
    return decisions


def decide_questions(
    dataset: str,
    choosing: RankedQuestions,
    checking: RankedQuestions,
    targets: Sequence[tuple[AnswerTarget, float | None]],
    confidence: str = ENTROPY,
) -> AnswerDecision:
    """Choose and check thresholds of one model; see `metrics.answer_threshold.decide`."""
    try:
        return decide(choosing, checking, targets, confidence)
    except MetricInputError as error:
        raise DataError(error.what, dataset, error.remedy) from error


def questions_of(
    judged: JudgedQueries, evaluation: Evaluation, index: Bm25Index | None = None, removed: float = 0.0
) -> RankedQuestions:
    """Return the questions of a split with the rankings of a model: those with an answer, and those without.

    If there is an index, BM25 ranks them too. `removed` is the fraction of the questions that lose their relevant
    documents: those whose ids have the smallest hashes. So the questions of a smaller fraction are among those of a
    larger one."""
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
    """Return all questions with an answer, ranked without their relevant documents and the copies of these."""
    ranked = evaluation.unanswered[REMOVED]
    if index is None:
        return _of_kind(REMOVED, ranked, None, judged, None)
    copies, present = judged.dataset.documents.copies, judged.is_relevant & judged.is_in_corpus
    owners, documents = judged.relevance.queries[present], judged.relevance.documents[present]
    order = np.argsort(owners, kind="stable")
    answers = np.split(documents[order], np.searchsorted(owners[order], np.arange(1, len(ranked.queries))))
    return _of_kind(REMOVED, ranked, None, judged, index, [copies.equal_to(answer) for answer in answers])


def _of_kind(
    kind: str,
    ranked: UnansweredRanking,
    relevant: ndarray | None,
    judged: JudgedQueries,
    index: Bm25Index | None,
    answers: Sequence[ndarray] | None = None,
) -> RankedQuestions:
    """Return the questions of one kind. If `relevant` is None, no document is relevant to them.

    `answers` are the positions of the documents that are left out of the search, for each question."""
    count = len(ranked.queries)
    relevant = np.zeros((count, DEPTH), bool) if relevant is None else relevant
    kinds = np.full(count, kind, dtype="<U16")
    missing_depth = DEPTH - ranked.scores.shape[1]
    scores = (
        np.pad(ranked.scores, ((0, 0), (0, missing_depth)), constant_values=np.nan) if missing_depth else ranked.scores
    )
    relevant = relevant & np.isfinite(scores)
    if index is None:
        return RankedQuestions(scores, relevant, kinds)
    texts = [str(judged.dataset.queries.texts[query]) for query in ranked.queries.tolist()]
    best = ranked.ranking[:, 0] if ranked.ranking.shape[1] else np.full(count, -1)
    return RankedQuestions(scores, relevant, kinds, *compare_best(index, texts, best, answers))


def _joined(parts: Sequence[RankedQuestions]) -> RankedQuestions:
    return reduce(RankedQuestions.joined, parts)


def _fractions_of(answers: AnswerDecision, questions: RankedQuestions) -> list[dict[str, Proportion]]:
    values = answers.confidence.of(questions)
    return [
        achieve_answers(values >= threshold.score, questions).unanswerable if achieved else {}
        for threshold, achieved in answers.thresholds
    ]


def threshold_rows(
    evaluated: DatasetEvaluation, decisions: Sequence[ModelDecision], chosen_on: str
) -> list[ThresholdRow]:
    """Return a row for each model and target."""
    rows, apart = [], (chosen_on, evaluated.source.split)
    for decision in decisions:
        answers, error = decision.answers, decision.error
        made: list[tuple[Threshold, str, tuple[str, str], _Fractions, Proportion | None, _Fractions]] = []
        for threshold, pairs in decision.pairs:
            fractions = {"pair_precision": pairs.precision, "pair_recall": pairs.recall} if pairs else {}
            made.append((threshold, SCORE, apart, fractions, fractions.get(f"pair_{threshold.target}"), {}))
        keeps: dict[Threshold, PassagesKept | None] = dict(decision.passages.thresholds) if decision.passages else {}
        for threshold in keeps:
            assert decision.passages is not None
            where = apart if decision.passages.is_checked_apart else (" and ".join(dict.fromkeys(apart)),) * 2
            made.append((threshold, SCORE, where, {}, None, {}))
        of_answers = answers.thresholds if answers is not None else []
        for number, (threshold, found) in enumerate(of_answers):
            assert answers is not None
            fractions, checked, kinds = {}, None, decision.unasked[number] if decision.unasked else {}
            if found is not None:
                fractions = {"coverage": found.answered, "top_precision": found.top_precision, "wrong": found.wrong}
                checked, kinds = found.of(threshold.target), {**found.unanswerable, **kinds}
            where = apart if answers.is_checked_apart else (" and ".join(dict.fromkeys(apart)),) * 2
            made.append((threshold, answers.confidence.name, where, fractions, checked, kinds))
        order = [threshold for threshold, _ in of_answers]
        decides = next((threshold for threshold in order if threshold.reached), None)
        for threshold, confidence, where, fractions, checked, kinds in made:
            row = ThresholdRow(
                dataset=evaluated.source.name,
                model=decision.model,
                target=cast("Any", threshold.target),
                wanted=threshold.wanted,
                confidence=confidence,
                chosen_on=where[0],
                checked_on=where[1],
                threshold=threshold.score if threshold.reached else None,
                chosen=finite(threshold.value),
                calibration_error=ErrorRow(*map(finite, (error.value, error.low, error.high))),
                fractions=fractions,
                checked=checked,
                kept=keeps.get(threshold),
                unanswerable=kinds,
            )
            is_replaced = not threshold.reached and decides is not None and threshold in order[: order.index(decides)]
            notes = _notes(row, threshold, answers, decides if is_replaced else None)
            if decision.passages is not None and threshold in keeps:
                notes = notes_on_passages(row, decision.passages.chosen)
            rows.append(replace(row, notes=notes))
    return rows


def _notes(
    row: ThresholdRow, threshold: Threshold, answers: AnswerDecision | None, instead: Threshold | None
) -> list[str]:
    """Return sentences about missing or uncertain values of a row. `instead` replaces a missing threshold."""
    target, wanted, split, judged = threshold.target, threshold.wanted, row.chosen_on, row.checked_on
    if not threshold.reached:
        if target in CONFORMAL and wanted is not None and answers is not None:
            lines = [f"There is no threshold: {unreachable(target, wanted, answers.chosen[0])}."]
            if instead is not None:
                lines.append(
                    f"The threshold of {target_text(instead.target, instead.wanted)} is used; it promises no fraction."
                )
            return [" ".join(lines)]
        among, best = f"no score on {split} has", f"the best precision is {threshold.value:.3f}"
        if target == "top_precision" and answers is not None:
            fewest = fewest_answers(len(answers.chosen[0]))
            among = f"no threshold on {split} leaves {fewest} or more top answers with"
            best = best if threshold.value == threshold.value else "there are fewer answers"
        fraction = "a precision" if wanted is None else f"a precision of {wanted:g}"
        return [f"There is no threshold, because {among} {fraction}; {best}."]
    empty = [
        name for name in ("pair_precision", "top_precision") if name in row.fractions and not row.fractions[name].total
    ]
    if "pair_precision" in empty:
        return [f"No pair of {judged} scores at or above the threshold, so there is no precision."]
    if "top_precision" in empty:
        return [f"No question of {judged} reaches the threshold, so none is answered, and there is no precision."]
    notes = []
    if target in CONFORMAL and row.confidence == COMBINED:
        notes = [f"{COMBINED} is fitted to the same answers, so no fraction is promised."]
    checked, shown = row.checked, row.fractions.get("top_precision")
    if checked and checked.total and is_missed(target, wanted, checked.low, checked.high):
        found = f"{checked.value:.3f} ({checked.low:.3f} to {checked.high:.3f})"
        notes += [f"The target is missed on {judged}: {found}. Give a stricter one, or more questions to choose on."]
    elif shown and shown.total < FEWEST_ANSWERED:
        notes += [
            f"Few answers: {shown.total:,} of {row.fractions['wrong'].total:,} questions of {judged} are answered. "
            f"Below {FEWEST_ANSWERED}, the precision is uncertain."
        ]
    return notes


def confidence_rows(
    evaluated: DatasetEvaluation, decisions: Sequence[ModelDecision], chosen_on: str
) -> list[ConfidenceRow]:
    """Return a row for each model and confidence, with its area under the risk-coverage curve."""
    rows = []
    for decision in decisions:
        answers = decision.answers
        if answers is None:
            continue
        chosen, checked = answers.chosen[0], answers.checked[0]
        split = evaluated.source.split
        where = chosen_on if answers.is_checked_apart else " and ".join(dict.fromkeys((chosen_on, split)))
        names = [name for name in NAMES if name != COMBINED or chosen.bm25 is not None]
        weights = resampling_weights([len(checked)], _SAMPLES, 0)
        for name in names:
            held_out = held_out_confidence(name, chosen)
            values = fit_confidence(name, chosen).of(checked) if answers.is_checked_apart else held_out
            low, high = bootstrap_interval(area_under_risk_coverage(values, checked.right, weights))
            areas = area_of(held_out, chosen), area_of(values, checked), low, high
            gain = finite(normalized_abstention_auc(values, checked.right))
            decides = name == answers.confidence.name
            rows.append(ConfidenceRow(evaluated.source.name, decision.model, name, where, *areas, gain, decides))
    return rows
