"""`calibration.json`: what it says of hits, and that a file of somebody else is checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raytriever.data.dataset import Documents, Queries, RetrievalDataset
from raytriever.errors import StorageError
from raytriever.metrics.calibration import Proportion
from raytriever.metrics.probability import IsotonicMap, PlattMap
from raytriever.search.calibration import FILE, AnswerThreshold, Calibration, read_calibration
from raytriever.search.exact import format_hits, hits_of

DATASET = RetrievalDataset(
    "towns", Documents(["d0", "d1", "d2"], ["", "Graz", ""], ["a", "b", "c"]), Queries([], []), {}
)
SHARE = Proportion(40, 60, 0.54, 0.77)
CALIBRATION = Calibration(
    format=1,
    date="2026-11-23",
    dataset="towns",
    data="0" * 64,
    corpus="1" * 64,
    model="2" * 64,
    chosen_on="dev",
    chosen_queries=80,
    checked_on="test",
    checked_queries=60,
    thresholds=[
        AnswerThreshold("top_precision", 0.9, 0.5, SHARE, Proportion(38, 40, 0.83, 0.99)),
        AnswerThreshold("f1", None, 0.3, SHARE, Proportion(0, 0, 0.0, 1.0)),
    ],
    first=IsotonicMap([0.2, 0.6], [0.1, 0.9]),
    later=PlattMap(2.0, -3.0),
    first_error=0.02,
    later_error=0.01,
)


def test_hits_have_probabilities_and_the_query_an_answer_or_none() -> None:
    scores = np.array([[0.6, 0.4, 0.1], [0.4, 0.3, -np.inf]], np.float32)
    ranking = np.array([[1, 0, 2], [2, 0, -1]])
    answered, unanswered = hits_of(DATASET, scores, ranking, None, CALIBRATION)
    assert [hit.document_id for hit in answered] == ["d1", "d0", "d2"]
    # The best passage has a map of its own.
    expected = [0.9, 1 / (1 + np.exp(2.2)), 1 / (1 + np.exp(2.8))]
    assert [hit.probability for hit in answered] == pytest.approx(expected, abs=1e-6)
    assert answered.answerable is True
    assert (unanswered.answerable, len(unanswered)) == (False, 2)
    assert unanswered[0].probability == pytest.approx(0.5, abs=1e-6)
    assert format_hits(answered).splitlines()[0] == "  0.6000  p=0.90  d1  Graz"
    assert format_hits(unanswered).splitlines()[:2] == [
        "no answer: the best score 0.4000 is below the threshold 0.5000 of calibration.json; the nearest passages are",
        "  0.4000  p=0.50  d2",
    ]


def test_the_threshold_of_the_search_counts_before_that_of_the_model() -> None:
    scores, ranking = np.array([[0.4, 0.3, 0.2]], np.float32), np.array([[2, 0, 1]])
    [hits] = hits_of(DATASET, scores, ranking, 0.25, CALIBRATION)
    assert (hits.answerable, len(hits)) == (True, 2)
    [none] = hits_of(DATASET, scores, ranking, 0.7, CALIBRATION)
    assert (none.answerable, none.best_score, list(none)) == (False, pytest.approx(0.4), [])
    assert format_hits(none) == "no passage scores 0.7 or more"


def test_without_a_calibration_or_a_threshold_nothing_is_said_of_an_answer() -> None:
    scores, ranking = np.array([[0.4, 0.3, 0.2]], np.float32), np.array([[2, 0, 1]])
    [plain] = hits_of(DATASET, scores, ranking)
    assert plain.answerable is None
    assert {hit.probability for hit in plain} == {None}
    assert plain == list(plain)
    [likely] = hits_of(DATASET, scores, ranking, None, replace(CALIBRATION, thresholds=[]))
    assert likely.answerable is None
    assert likely[0].probability == pytest.approx(0.5, abs=1e-6)
    [empty] = hits_of(DATASET, scores[:, :0], ranking[:, :0], None, CALIBRATION)
    assert (empty.answerable, list(empty)) == (None, [])


def test_the_file_holds_every_value(tmp_path: Path) -> None:
    assert read_calibration(tmp_path / FILE) is None
    (tmp_path / FILE).write_text(CALIBRATION.to_json())
    assert read_calibration(tmp_path / FILE) == CALIBRATION


CHANGES: list[dict[str, Any]] = [
    {"format": 2},
    {"format": None},
    {"model": "abc"},
    {"corpus": "1" * 63 + "\n"},
    {"date": "x" * 2_000},
    {"first_error": float("nan")},
    {"later_error": -1.0},
    {"first": {"method": "isotonic", "scores": [0.2, 0.1], "probabilities": [0.1, 0.9]}},
    {"first": {"method": "isotonic", "scores": [0.1, float("inf")], "probabilities": [0.1, 0.9]}},
    {"later": {"method": "platt", "slope": -1.0, "intercept": 0.0}},
    {"later": {"method": "platt", "slope": 1.0}},
    {"thresholds": [{"aim": "f1", "wanted": None, "score": 0.1}]},
    {"thresholds": "none"},
    {"more": 1},
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_of_other_values_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / FILE).write_text(json.dumps(json.loads(CALIBRATION.to_json()) | change))
    with pytest.raises(StorageError, match=r"calibration\.json: is (damaged or changed|of another format)"):
        read_calibration(tmp_path / FILE)


@pytest.mark.parametrize(
    "change",
    [
        {"score": float("nan")},
        {"score": float("-inf")},
        {"wanted": 1.5},
        {"aim": "best"},
        {"answered": {"part": 3, "whole": 2, "low": 0.0, "high": 1.0}},
        {"top_precision": {"part": 1, "whole": 2, "low": 0.5, "high": float("nan")}},
    ],
)
def test_a_threshold_of_other_values_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    content = json.loads(CALIBRATION.to_json())
    content["thresholds"][0] |= change
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(StorageError, match=r"calibration\.json: is damaged or changed"):
        read_calibration(tmp_path / FILE)
