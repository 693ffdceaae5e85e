"""Thresholds in tables, on the page and in the tracker: few answers, none, and targets out of reach are explained."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from beir import write_beir

from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.answer_decisions import ModelDecision, confidence_rows, questions_of, threshold_rows
from raytriever.evaluation.calibrate_system import _later
from raytriever.evaluation.dataset_evaluation import DatasetEvaluation, auc_rows
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.evaluated_datasets import EvaluationDataset
from raytriever.evaluation.evaluation_settings import CONFIDENCES
from raytriever.evaluation.protocol import Protocol, select_judged_queries
from raytriever.evaluation.report_document import document, format_results, points_of, thresholds_markdown
from raytriever.evaluation.result_tables import Cell, ReportTable
from raytriever.evaluation.results import Results, ThresholdRow
from raytriever.evaluation.systems import Bm25System
from raytriever.metrics.answer_confidence import RankedQuestions
from raytriever.metrics.answer_threshold import decide
from raytriever.metrics.intervals import Proportion
from raytriever.metrics.pair_threshold import ScoredPools, achieve_pairs, choose_pair_threshold
from raytriever.metrics.score_to_probability import CalibrationError
from raytriever.retrieval.mining.bm25 import Bm25Index


def evaluated_of(split: str = "test") -> DatasetEvaluation:
    return DatasetEvaluation(EvaluationDataset("d", {"d": "d"}, split), [])


def page_of(results: Results) -> ReportTable:
    [table] = [table for section in document(results) for table in section.tables]
    return table


def rows_of_answers(choosing: RankedQuestions, checking: RankedQuestions, *targets: Any) -> list[ThresholdRow]:
    made = decide(choosing, checking, targets, "score")
    return threshold_rows(evaluated_of(), [ModelDecision("m", made, [], CalibrationError(0.1, 0.0, 0.2), [])], "dev")


def questions(scores: list[float], right: int, without: int = 0) -> RankedQuestions:
    """Questions of these best scores, of which the first ones are right and the last ones have no answer."""
    count = len(scores)
    kinds = np.where(np.arange(count) < count - without, "", "given")
    return RankedQuestions(np.stack([scores, np.zeros(count)], axis=1), np.arange(count)[:, None] < right, kinds)


def test_a_threshold_that_few_or_none_reach_is_explained() -> None:
    choosing = questions([0.9] * 40 + [0.2] * 20, 40)
    [few] = rows_of_answers(choosing, questions([0.9] + [0.1] * 59, 1, 10), ("top_precision", 1.0))
    assert few.fractions["coverage"].value == 1 / 50
    assert few.checked == few.fractions["top_precision"] == Proportion(1, 1, pytest.approx(0.2065, abs=1e-4), 1.0)
    assert few.unanswerable["given"] == Proportion(0, 10, 0, pytest.approx(0.2775, abs=1e-4))
    assert few.notes == ["Few answers: 1 of 60 questions of test are answered. Below 30, the precision is uncertain."]
    [none] = rows_of_answers(choosing, questions([0.1] * 60, 30), ("top_precision", 1.0))
    assert [none.fractions[name].count for name in ("coverage", "top_precision", "wrong")] == [0, 0, 0]
    assert none.fractions["top_precision"].total == 0
    assert none.notes == ["No question of test reaches the threshold, so none is answered, and there is no precision."]
    [out, guaranteed] = rows_of_answers(choosing, choosing, ("top_precision", 1.0), ("wrong_answers", 0.01))
    assert out.threshold is not None
    assert guaranteed.notes == ["There is no threshold: 60 questions are too few: a fraction of 0.01 needs 99."]
    [out] = rows_of_answers(questions([0.9] * 60, 20), questions([0.9] * 60, 20), ("top_precision", 0.9))
    assert (out.threshold, out.fractions, out.checked) == (None, {}, None)
    assert out.notes == [
        "There is no threshold, because no threshold on dev leaves 30 or more top answers with a precision "
        "of 0.9; the best precision is 0.333."
    ]
    text = thresholds_markdown([few, none, out])
    assert "nan" not in text.lower().replace("answer", "")
    assert "| 0 of 60 = 0.000 (0.000 to 0.060) | none | 0 of 60" in text
    assert "| out of reach | 0.333 at best | - | - | - | - |" in text
    assert "without an answer, answered" in text
    assert "recall of pairs" not in text
    assert "- d, m, top-precision 1: Few answers" in text
    shown = format_results(Results(thresholds=[few, none, out]))
    shown = re.sub(" +", " ", shown)
    assert "\nd, m, top-precision 1: threshold 0.9 (score)\n chosen on dev 1.000\n queries answered 1 of 50 =" in shown
    assert "\nd, m, top-precision 0.9: threshold out of reach (score)\n chosen on dev 0.333 at best\n" in shown
    assert "\n- d, m, top-precision 1: Few answers" in shown
    page = page_of(Results(thresholds=[few, none, out]))
    assert "Few answers: 1 of 60" in page.note
    assert Cell("1 of 50 = 0.020 (0.004 to 0.105)", 1 / 50) in page.rows[0]
    points = {point.name: point.value for point in points_of(Results(thresholds=[few, none, out]))}
    assert all(value == value for value in points.values())
    assert points["calibration/m/d/top-precision-1/unanswerable_given"] == 0


def test_a_target_that_its_threshold_misses_is_named() -> None:
    choosing, checking = questions([0.9] * 40 + [0.2] * 20, 40), questions([0.9] * 40 + [0.2] * 20, 30)
    [missed, wrong] = rows_of_answers(choosing, checking, ("top_precision", 0.9), ("wrong_answers", 0.05))
    assert missed.notes == [
        "The target is missed on test: 0.750 (0.598 to 0.858). Give a stricter one, or more questions to choose on."
    ]
    assert wrong.notes == [missed.notes[0].replace("0.750 (0.598 to 0.858)", "0.167 (0.093 to 0.280)")]
    [kept] = rows_of_answers(choosing, choosing, ("top_precision", 0.9))
    assert kept.notes == []


def test_a_promise_that_is_out_of_reach_names_what_decides_instead() -> None:
    some = questions([0.9] * 20 + [0.2] * 20, 10)
    out, f1 = rows_of_answers(some, some, ("wrong_answers", 0.05), ("f1", None))
    assert out.notes == [
        "There is no threshold: too many of the most confident best documents are wrong. The threshold "
        "of f1 is used; it promises no fraction."
    ]
    assert f1.notes == [
        "Few answers: 20 of 40 questions of dev and test are answered. Below 30, the precision is uncertain."
    ]
    _, after = rows_of_answers(some, some, ("f1", None), ("wrong_answers", 0.05))
    assert after.notes == [out.notes[0].partition(" The threshold of f1")[0]]
    text = format_results(Results(thresholds=[f1]))
    assert "\nd, m, f1: threshold 0.9 (score), chosen and tested on the same questions\n" in text


def test_combined_promises_nothing() -> None:
    rng = np.random.default_rng(0)
    scores = np.sort(rng.random((100, 20)))[:, ::-1]
    bm25, agrees = np.ones((100, 3)), rng.random(100) < 0.5
    some = RankedQuestions(scores, rng.random((100, 1)) < 0.9, np.full(100, ""), bm25, agrees)
    made = decide(some, some, [("wrong_answers", 0.2), ("f1", None)], "combined")
    rows = threshold_rows(evaluated_of(), [ModelDecision("m", made, [], CalibrationError(0.1, 0.0, 0.2), [])], "dev")
    assert rows[0].notes == ["combined is fitted to the same answers, so no fraction is promised."]
    assert rows[1].notes == []


@pytest.mark.parametrize("fraction", [0.5, 0.2])
def test_a_question_that_loses_its_answer_counts_once(fraction: float, tmp_path: Path, own_cache: Path) -> None:
    # The second best document of every question is relevant too, and question 0 has three copies of its best one.
    documents = [text for n in range(40) for text in (f"word{n} word{n}", f"word{n} more", f"word{n} other thing")]
    documents += ["word0 word0"] * 3
    judged = [(n, document) for n in range(40) for document in (3 * n, 3 * n + 1)]
    folder = write_beir(tmp_path / "set", documents, [f"word{n}" for n in range(40)], test=judged)
    dataset = open_dataset(str(folder), ["test"])
    index, found = Bm25Index(dataset.passages()), select_judged_queries(dataset, "test", Protocol())
    evaluation = evaluate(dataset, "test", Bm25System(dataset, index), Protocol(), found)
    some = questions_of(found, evaluation, index, fraction)
    lost = some.kinds == "removed"
    assert (len(some), lost.sum()) == (40, round(40 * fraction))
    fewer = questions_of(found, evaluation, index, fraction / 2)
    assert set(some.scores[lost, 0]) >= set(fewer.scores[fewer.kinds == "removed", 0])
    # Ranks 2 to 10 of the questions as they were asked: a second relevant document, or none.
    scores, relevant, owners = _later(some)
    assert (np.bincount(owners, relevant, len(some))[~lost] >= 1).all()
    assert not relevant[lost[owners]].any()
    assert len(scores) == np.isfinite(some.scores[:, 1:10]).sum()
    # BM25 is asked without the answers and their copies too.
    whole = questions_of(found, evaluation, index, 0.999)
    assert whole.bm25 is not None
    assert whole.agrees is not None
    assert (whole.kinds == "removed").all()
    third = [float(index.scores(f"word{n}")[3 * n + 2]) for n in range(40)]
    assert whole.bm25[:, 0] == pytest.approx(third)
    assert whole.agrees.all()


def test_a_threshold_of_pairs_that_none_reaches_is_explained() -> None:
    def row(choosing: list[float], checking: list[float], wanted: float) -> ThresholdRow:
        """Queries with one positive each, whose scores are given, and one negative at 0.5."""
        pools = [
            ScoredPools(np.array(value), np.full(len(value), 0.5), *[np.arange(len(value))] * 2)
            for value in (choosing, checking)
        ]
        threshold = choose_pair_threshold(pools[0], "precision", wanted)
        achieved = achieve_pairs(pools[1], threshold.score) if threshold.reached else None
        made = ModelDecision("m", None, [(threshold, achieved)], CalibrationError(0.1, 0.0, 0.2), [])
        [one] = threshold_rows(evaluated_of(), [made], "dev")
        return one

    none = row([0.9] * 4, [0.1] * 30, 1.0)
    assert (none.fractions["pair_precision"].total, none.fractions["pair_recall"].count) == (0, 0)
    assert none.notes == ["No pair of test scores at or above the threshold, so there is no precision."]
    out = row([0.1] * 4, [0.9] * 30, 0.9)
    assert out.notes == [
        "There is no threshold, because no score on dev has a precision of 0.9; the best precision is 0.500."
    ]
    assert "recall of pairs" in thresholds_markdown([none, out])


def test_confidences_are_compared_where_they_are_chosen_and_checked() -> None:
    choosing, checking = questions([0.9] * 40 + [0.2] * 20, 40), questions([0.9] * 40 + [0.2] * 20, 35)
    made = [ModelDecision("m", decide(choosing, checking, [("f1", None)], "score"), [], CalibrationError(0, 0, 0), [])]
    rows = confidence_rows(evaluated_of(), made, "dev")
    assert [row.confidence for row in rows] == list(CONFIDENCES[:-1])  # BM25 was not asked
    assert [row.decides for row in rows].count(True) == 1
    score = rows[0]
    assert score.area_chosen == pytest.approx(sum((k - 40) / k for k in [60] * 20) / 60)
    assert score.low <= score.area <= score.high
    shown = format_results(Results(confidences=[replace(row, decides=row.confidence == "entropy") for row in rows]))
    assert [re.split("  +", line)[2] for line in shown.splitlines() if line.startswith("d ")] == [
        "score",
        "entropy (decides)",
    ]
    assert next(row[2] for row in page_of(Results(confidences=rows)).rows) == "score (decides)"


def test_the_interval_of_an_auc_is_explained_where_it_is_uncertain_or_missing() -> None:
    def evaluated(positives: list[float], negatives: list[float]) -> DatasetEvaluation:
        evaluation = SimpleNamespace(
            queries=np.arange(len(positives)),
            positive_scores=np.array(positives),
            negative_scores=np.array(negatives),
            positive_queries=np.arange(len(positives)),
            negative_queries=np.arange(len(negatives)),
            metrics={"auc": 0.5},
        )
        return DatasetEvaluation(
            EvaluationDataset("d", {"d": "d"}, "test"), [SimpleNamespace(evaluations={"m": evaluation}, calibration={})]
        )

    [few] = auc_rows(evaluated([1.0] * 49 + [-1.0], [0.0] * 50))
    assert (few.auc, few.misordered_queries) == (0.98, 1)
    assert few.low < 0.9 < 0.98 < few.high <= 1
    [apart] = auc_rows(evaluated([1.0] * 30, [0.0] * 30))
    assert (apart.auc, apart.high, round(apart.low, 3)) == (1, 1, 0.905)
    [one] = auc_rows(evaluated([1.0], [0.0]))
    lines = format_results(Results(auc=[few, apart, one])).splitlines()
    assert lines[0].startswith("d, m: AUC 0.9800 (95 %: ")
    assert lines[0].endswith("Queries with misordered pairs: 1. Below 10, the interval is uncertain.")
    assert lines[1].startswith("d, m: AUC 1.0000 (95 %: 0.9050 to 1.0000). All pairs are in the same order.")
    assert lines[2].startswith("d, m: AUC 1.0000. There is no interval")
    assert [point.name for point in points_of(Results(auc=[one, apart]))] == ["auc/m/d/low", "auc/m/d/high"]
    page = page_of(Results(auc=[few, apart, one]))
    assert [row[6] for row in page.rows] == [few.note, apart.note, one.note]
