"""Thresholds of the passages to keep, chosen and tested on the rankings of one system.

These functions use only rankings and scores, so they work for every system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import starmap

import numpy as np

from raytriever.evaluation.dataset_evaluation import DatasetEvaluation
from raytriever.evaluation.evaluate_split import Evaluation
from raytriever.evaluation.protocol import JudgedQueries, is_missed
from raytriever.evaluation.result_tables import Cell
from raytriever.evaluation.results import ThresholdRow
from raytriever.metrics.answer_threshold import WORTH, Threshold, has_two_splits
from raytriever.metrics.passage_threshold import (
    DEPTH,
    PassagesKept,
    RankedPassages,
    achieve_kept,
    choose_kept_threshold,
    unreachable_kept,
)
from raytriever.metrics.ranking_metrics import Relevance

KEPT_TITLES = ["relevant passages kept", "passages kept per question"]
KEPT_ABOUT = f" Relevant passages kept: the mean over the questions. At most {DEPTH} passages per question are kept."


@dataclass(frozen=True)
class PassageDecision:
    """Thresholds of the passages to keep."""

    # Threshold for each target, with what it keeps for the tested questions; None if no threshold reaches the target.
    thresholds: list[tuple[Threshold, PassagesKept | None]]
    chosen: RankedPassages  # the ranked passages on which the thresholds were chosen
    is_checked_apart: bool  # whether the thresholds were tested on other questions


def decide_passages(evaluated: DatasetEvaluation, model: str, wanted: Sequence[float]) -> PassageDecision:
    """Choose thresholds of the passages to keep on one split, and test them on the other.

    If a split has few questions, thresholds are chosen and tested on the questions of both splits, as in
    `metrics.answer_threshold.decide`."""
    splits = [reduce(RankedPassages.joined, starmap(ranked_passages, split)) for split in evaluated.splits(model)]
    checking, choosing = splits[0], splits[-1]
    is_split = choosing is not checking and has_two_splits(len(choosing), len(checking))
    every = choosing if is_split or choosing is checking else choosing.joined(checking)
    checked, worth = (checking, 1.0) if is_split else (every, WORTH)
    thresholds = []
    for fraction in wanted:
        threshold = choose_kept_threshold(every, fraction)
        thresholds.append((threshold, achieve_kept(checked, threshold.score, worth) if threshold.reached else None))
    return PassageDecision(thresholds, every, is_split)


def ranked_passages(judged: JudgedQueries, evaluation: Evaluation) -> RankedPassages:
    """Return the best passages of the questions of a split that have a relevant passage in the corpus."""
    owners, found = evaluation.positive_queries, evaluation.ranking[:, :DEPTH]
    positive = judged.is_relevant & judged.is_in_corpus & ~judged.is_own
    documents = judged.relevance.documents[positive]
    relevance = Relevance(owners, documents, np.ones(len(owners), np.int64), len(evaluation.queries))
    counts = np.bincount(owners, minlength=len(evaluation.queries))
    scores = np.where(found >= 0, evaluation.scores[:, :DEPTH], np.nan)
    has_answer = counts > 0
    return RankedPassages(scores[has_answer], (relevance.gains(found) > 0)[has_answer], counts[has_answer])


def notes_on_passages(row: ThresholdRow, chosen: RankedPassages) -> list[str]:
    """Return sentences about a threshold, chosen on `chosen`, that is missing or misses its target."""
    assert row.wanted is not None
    if row.kept is None:
        return [f"There is no threshold: {unreachable_kept(row.wanted, chosen)}."]
    if not is_missed(row.target, row.wanted, row.kept.low, row.kept.high):
        return []
    found = f"{row.kept.fraction:.3f} ({row.kept.low:.3f} to {row.kept.high:.3f})"
    return [f"The target is missed on {row.checked_on}: {found}. Give a stricter one, or more questions to choose on."]


def kept_cells(kept: PassagesKept | None) -> list[Cell]:
    """Return the cells of `KEPT_TITLES`."""
    if kept is None:
        return [Cell("-"), Cell("-")]
    fraction = Cell(f"{kept.fraction:.3f} ({kept.low:.3f} to {kept.high:.3f})", kept.fraction)
    return [fraction, Cell(f"{kept.passages:.1f}", kept.passages)]
