"""Thresholds in tables, on the page and in the tracker: few answers, none, and aims out of reach are explained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raytriever.evaluation.datasets import EvaluationDataset
from raytriever.evaluation.job import format_results
from raytriever.evaluation.measurements import DatasetMeasurement
from raytriever.evaluation.pooled_scores import (
    auc_lines,
    auc_points,
    auc_rows,
    calibration_points,
    calibration_rows,
    calibration_table,
)
from raytriever.evaluation.results import Results
from raytriever.report.page import Cell
from raytriever.report.tables import auc_table, threshold_table


def test_a_threshold_that_none_or_few_reach_is_explained() -> None:
    def rows_of(choosing: list[float], checking: list[float], wanted: float) -> list[dict[str, Any]]:
        """Queries with one positive each, whose scores are given, and one negative at 0.5."""
        evaluations = [
            SimpleNamespace(
                queries=np.arange(len(scores)),
                positive_scores=np.array(scores),
                negative_scores=np.full(len(scores), 0.5),
                positive_queries=np.arange(len(scores)),
                negative_queries=np.arange(len(scores)),
            )
            for scores in (choosing, checking)
        ]
        part = SimpleNamespace(calibration={"m": evaluations[0]}, evaluations={"m": evaluations[1]})
        return calibration_rows(
            DatasetMeasurement(EvaluationDataset("d", {"d": "d"}, "test"), [part]), "dev", [("precision", wanted)]
        )

    [few] = rows_of([0.9] * 4, [0.9] + [0.1] * 29, 1.0)
    assert (few["coverage"], few["top_precision"], few["checked"]) == (1 / 30, 1.0, 1.0)
    assert few["low"] == few["top_precision_low"] == pytest.approx(0.2065, abs=1e-4)
    assert few["notes"] == [
        "Few answers: 1 of 30 queries of test have one. Below 30 answered queries a precision says little; "
        "see its interval."
    ]
    [none] = rows_of([0.9] * 4, [0.1] * 30, 1.0)
    assert (none["coverage"], none["top_precision"], none["pairs_above"], none["checked_recall"]) == (0, None, 0, 0)
    assert none["notes"][0].startswith("No document of test scores at or above the threshold. So none of the 30 quer")
    [out] = rows_of([0.1] * 4, [0.9] * 30, 0.9)
    assert (out["reached"], out["coverage"], out["queries"]) == (False, None, None)
    assert out["notes"] == [
        "There is no threshold, because no score on dev has a precision of 0.9; the best there is 0.500."
    ]
    text = calibration_table([few, none, out])
    assert "nan" not in text.lower().replace("answer", "")
    assert "| 0 of 30 = 0.000 (0.000 to 0.114) | none | none |" in text
    assert "| out of reach | 0.500 at best | - | - | - | - |" in text
    assert "- d, m, precision 1: Few answers" in text
    assert text in format_results(Results(calibration=[few, none, out]))
    page = threshold_table([few, none, out])[0]
    assert "Few answers: 1 of 30" in page.note
    assert page.rows[0][5] == Cell("1 of 30 = 0.033 (0.006 to 0.167)", 1 / 30)
    assert not [point for point in calibration_points([few, none, out], 0, 0) if point.value != point.value]


def test_the_interval_of_an_auc_is_explained_where_it_is_uncertain_or_missing() -> None:
    def measured(positives: list[float], negatives: list[float]) -> DatasetMeasurement:
        evaluation = SimpleNamespace(
            queries=np.arange(len(positives)),
            positive_scores=np.array(positives),
            negative_scores=np.array(negatives),
            positive_queries=np.arange(len(positives)),
            negative_queries=np.arange(len(negatives)),
            metrics={"auc": 0.5},
        )
        return DatasetMeasurement(
            EvaluationDataset("d", {"d": "d"}, "test"), [SimpleNamespace(evaluations={"m": evaluation}, calibration={})]
        )

    [few] = auc_rows(measured([1.0] * 49 + [-1.0], [0.0] * 50))
    assert (few["auc"], few["misordered_queries"]) == (0.98, 1)
    assert few["low"] < 0.9 < 0.98 < few["high"] <= 1
    [apart] = auc_rows(measured([1.0] * 30, [0.0] * 30))
    assert (apart["auc"], apart["high"], round(apart["low"], 3)) == (1, 1, 0.905)
    [one] = auc_rows(measured([1.0], [0.0]))
    lines = auc_lines([few, apart, one])
    assert lines[0].startswith("d, m: AUC 0.9800 (95 %: ")
    assert lines[0].endswith("Misordered pairs are of 1 queries only. Below 10 the interval is uncertain.")
    assert lines[1].startswith("d, m: AUC 1.0000 (95 %: 0.9050 to 1.0000). All pairs are in one order.")
    assert lines[2].startswith("d, m: AUC 1.0000. There is no interval")
    assert [point.name for point in auc_points([one, apart], 0, 0)] == ["m/d/auc_low", "m/d/auc_high"]
    text = format_results(Results(auc_intervals=[few, apart, one]))
    assert all(line in text for line in lines)
    page = auc_table([few, apart, {**one, "low": None, "high": None}])[0]
    assert [row[6] for row in page.rows] == [few["note"], apart["note"], one["note"]]
