"""`calibration.json`: what it says of hits, and that a file of somebody else is checked."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raytriever.core.errors import ConfigError, StorageError
from raytriever.data.dataset import Documents, Queries, RetrievalDataset
from raytriever.evaluation.calibrate_system import describe_calibration, save_calibration
from raytriever.metrics.answer_confidence import COMBINED, FEATURES, Confidence, RankedQuestions
from raytriever.metrics.answer_threshold import AnswersAchieved
from raytriever.metrics.intervals import Proportion
from raytriever.metrics.score_to_probability import CalibrationError, IsotonicMap, PlattMap
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.search.calibration_file import (
    FILE,
    FORMAT,
    AnswerThreshold,
    Calibration,
    PassageThreshold,
    changed_fraction,
    read_calibration,
    sample_of,
)
from raytriever.retrieval.search.exact_search import format_hits, hits_of

DATASET = RetrievalDataset(
    "towns", Documents(["d0", "d1", "d2"], ["", "Graz", ""], ["a", "b", "c"]), Queries([], []), {}
)
FRACTION = Proportion(40, 60, 0.54, 0.77)


def achieved(top_precision: Proportion) -> dict[str, Any]:
    """Return the fractions of a threshold; all but one are `FRACTION`."""
    return vars(AnswersAchieved(FRACTION, top_precision, FRACTION, FRACTION, {}))


CALIBRATION = Calibration(
    format=FORMAT,
    date="2026-11-23",
    system="mine",
    digest="2" * 64,
    dataset="towns",
    data="0" * 64,
    corpus="1" * 64,
    chosen_on="dev",
    chosen_queries=80,
    checked_on="test",
    checked_queries=60,
    thresholds=[
        AnswerThreshold(**achieved(Proportion(38, 40, 0.83, 0.99)), target="top_precision", wanted=0.9, score=0.5),
        AnswerThreshold(**achieved(Proportion(0, 0, 0.0, 1.0)), target="f1", wanted=None, score=0.3),
    ],
    kept=PassageThreshold(
        questions=60, fraction=0.96, low=0.9, high=0.98, passages=7.2, wanted=0.95, score=0.35, depth=100
    ),
    first=IsotonicMap([0.2, 0.6], [0.1, 0.9]),
    later=PlattMap(2.0, -3.0),
    first_error=CalibrationError(0.02, 0.0, 0.1),
    later_error=CalibrationError(0.01, 0.0, 0.1),
    passages=3,
    sample=[],
    confidence=Confidence("score", 20, 1.0),
)


def test_hits_have_probabilities_and_the_query_an_answer_or_none() -> None:
    scores = np.array([[0.6, 0.4, 0.1], [0.4, 0.3, -np.inf]], np.float32)
    ranking = np.array([[1, 0, 2], [2, 0, -1]])
    answered, unanswered = hits_of(DATASET, scores, ranking, None, CALIBRATION, scores[:, 0].astype(float))
    assert [hit.document_id for hit in answered] == ["d1", "d0", "d2"]
    # The best passage has a map of its own.
    expected = [0.9, 1 / (1 + np.exp(2.2)), 1 / (1 + np.exp(2.8))]
    assert [hit.probability for hit in answered] == pytest.approx(expected, abs=1e-6)
    assert answered.answerable is True
    assert (unanswered.answerable, len(unanswered)) == (False, 2)
    assert unanswered[0].probability == pytest.approx(0.5, abs=1e-6)
    assert format_hits(answered).splitlines()[:2] == [
        "answer: the best score 0.6000 reaches the threshold 0.5000; the best passages are",
        "  0.6000  p=0.90  d1  Graz",
    ]
    assert format_hits(unanswered).splitlines()[:2] == [
        "no answer: the best score 0.4000 is below the threshold 0.5000; the nearest passages are",
        "  0.4000  p=0.50  d2",
    ]


def test_the_target_that_decides_is_named_and_whether_it_is_missed() -> None:
    line = describe_calibration(CALIBRATION)
    assert line.startswith("threshold 0.5000 of score, chosen for top-precision 0.9; on test 40 of 60 queries")
    low = replace(CALIBRATION.thresholds[0], top_precision=Proportion(32, 40, 0.65, 0.89))
    line = describe_calibration(replace(CALIBRATION, thresholds=[low]))
    assert line.startswith("threshold 0.5000 of score, chosen for top-precision 0.9, which it misses; on test")
    missed = AnswerThreshold(**achieved(FRACTION), target="missed", wanted=0.1, score=0.5)
    line = describe_calibration(replace(CALIBRATION, thresholds=[missed]))
    assert "chosen for missed 0.1, which it misses;" in line  # 20 of 60, and at least 0.23
    line = describe_calibration(replace(CALIBRATION, chosen_on="dev and test", checked_on="dev and test"))
    assert "; on the same questions of dev and test 40 of 60 queries" in line
    line = describe_calibration(replace(CALIBRATION, thresholds=CALIBRATION.thresholds[1:]))
    assert line.startswith("threshold 0.3000 of score, chosen for f1; on test")
    keeps = (
        "keep passages of score 0.3500 or more (kept 0.95): 7.2 for each question, with 0.960 of the relevant ones "
        "(95 %: 0.900 to 0.980)"
    )
    assert line.endswith(f"are relevant; {keeps}")
    assert describe_calibration(replace(CALIBRATION, thresholds=[])) == keeps


def test_a_target_out_of_reach_takes_no_threshold_from_a_model(tiny_encoder: Path, tmp_path: Path) -> None:
    model = ModelConfig(model=str(shutil.copytree(tiny_encoder, tmp_path / "model")))
    file, without = tmp_path / "model" / FILE, replace(CALIBRATION, thresholds=[])
    save_calibration(CALIBRATION, model)
    without = replace(without, kept=None)
    stays = f"{file}: no target was reached; the earlier threshold 0.5000, chosen for top-precision 0.9, is kept"
    assert save_calibration(without, model) == stays
    assert read_calibration(file) == CALIBRATION
    other = replace(without, digest="3" * 64)
    assert save_calibration(other, model) == f"{file}: probabilities, but no threshold, because no target was reached"
    assert read_calibration(file) == other
    file.write_text("{")
    save_calibration(without, model)
    assert read_calibration(file) == without


def test_the_threshold_of_the_search_counts_before_that_of_the_model() -> None:
    scores, ranking = np.array([[0.4, 0.3, 0.2]], np.float32), np.array([[2, 0, 1]])
    [hits] = hits_of(DATASET, scores, ranking, 0.25, CALIBRATION, np.array([0.1]))
    assert (hits.answerable, len(hits)) == (True, 2)
    [none] = hits_of(DATASET, scores, ranking, 0.7, CALIBRATION, np.array([0.9]))
    assert (none.answerable, none.best_score, list(none)) == (False, pytest.approx(0.4), [])
    assert format_hits(none) == "no answer: no passage scores 0.7 or more"


def test_the_passages_to_keep_are_those_of_the_calibration_and_the_confidence_still_decides() -> None:
    scores, ranking = np.array([[0.4, 0.35, 0.2]], np.float32), np.array([[2, 0, 1]])
    made = replace(CALIBRATION, kept=replace(CALIBRATION.kept, score=float(np.float32(0.35))))
    [hits] = hits_of(DATASET, scores, ranking, "kept", made, np.array([0.6]))
    assert (len(hits), hits.answerable, hits.threshold, hits.lowest_score) == (2, True, 0.5, pytest.approx(0.35))
    [none] = hits_of(DATASET, scores - 0.3, ranking, "kept", made, np.array([0.1]))
    assert (len(none), none.answerable) == (0, False)
    assert format_hits(none) == "no answer: no passage scores 0.35 or more"
    for lacking in (None, replace(CALIBRATION, kept=None)):
        with pytest.raises(ConfigError, match="of passages to keep; run `raytriever evaluate --calibrate kept"):
            hits_of(DATASET, scores, ranking, "kept", lacking, np.array([0.6]))


def test_without_a_calibration_or_a_threshold_nothing_is_said_of_an_answer() -> None:
    scores, ranking = np.array([[0.4, 0.3, 0.2]], np.float32), np.array([[2, 0, 1]])
    [plain] = hits_of(DATASET, scores, ranking)
    assert plain.answerable is None
    assert {hit.probability for hit in plain} == {None}
    assert plain == list(plain)
    [likely] = hits_of(DATASET, scores, ranking, None, replace(CALIBRATION, thresholds=[]), np.array([0.4]))
    assert likely.answerable is None
    assert likely[0].probability == pytest.approx(0.5, abs=1e-6)
    [empty] = hits_of(DATASET, scores[:, :0], ranking[:, :0], None, CALIBRATION, np.array([-np.inf]))
    assert (empty.answerable, list(empty)) == (None, [])


def test_another_confidence_than_the_score_decides() -> None:
    scores, ranking = np.array([[0.9, 0.3, 0.2], [0.4, 0.3, 0.2]], np.float32), np.array([[2, 0, 1], [2, 0, 1]])
    made = replace(CALIBRATION, confidence=Confidence("entropy", 3, 0.1), first=PlattMap(0.0, 0.0))
    low, high = hits_of(DATASET, scores, ranking, None, made, np.array([0.2, 0.7]))
    assert (low.answerable, low.best_score, low.confidence, low.confidence_name) == (
        False,
        pytest.approx(0.9),
        0.2,
        "entropy",
    )
    assert high.answerable is True
    assert format_hits(low).startswith("no answer: the confidence (entropy) 0.2000 is below the threshold 0.5000")


def test_a_stale_calibration_decides_and_is_marked() -> None:
    scores, ranking = np.array([[0.4, 0.3, 0.2]], np.float32), np.array([[2, 0, 1]])
    [hits] = hits_of(DATASET, scores, ranking, None, replace(CALIBRATION, stale="a third is new"), scores[:, 0])
    assert (hits.answerable, hits.stale, hits[0].probability) == (False, "a third is new", None)
    assert "0.5000 (doubtful: a third is new); the nearest" in format_hits(hits)


@pytest.mark.parametrize("changed", [0.0, 0.05, 0.1, 0.3])
def test_the_share_of_changed_passages_is_estimated(changed: float) -> None:
    def corpus(texts: list[str]) -> Documents:
        return Documents([str(at) for at in range(len(texts))], [""] * len(texts), texts)

    before, count = [f"text {at}" for at in range(4_000)], 4_000
    new = int(changed * count)
    exchanged = [*before[new:], *(f"new {at}" for at in range(new))]
    added = [*before, *(f"new {at}" for at in range(round(new / max(1 - changed, 0.5))))]
    sample = sample_of(corpus(before))
    assert changed_fraction(sample, count, corpus(exchanged)) == pytest.approx(changed, abs=0.035)
    assert changed_fraction(sample, count, corpus(added)) == pytest.approx(changed, abs=0.035)
    assert changed_fraction(sample, count, corpus(before[new:])) == pytest.approx(changed, abs=0.035)
    assert changed_fraction(sample, count, corpus([])) == 1


def test_the_file_holds_every_value(tmp_path: Path) -> None:
    assert read_calibration(tmp_path / FILE) is None
    (tmp_path / FILE).write_text(CALIBRATION.to_json())
    assert read_calibration(tmp_path / FILE) == CALIBRATION
    combined = Confidence(COMBINED, 20, 0.1, tuple(range(len(FEATURES))), -1.5)
    whole = replace(
        CALIBRATION,
        sample=[5, 2**63 - 1],
        confidence=combined,
        thresholds=[replace(CALIBRATION.thresholds[0], wrong=FRACTION, unanswerable={"given": FRACTION})],
    )
    (tmp_path / FILE).write_text(whole.to_json())
    assert read_calibration(tmp_path / FILE) == whole


CHANGES: list[dict[str, Any]] = [
    {"format": FORMAT - 1},
    {"confidence": {"name": "combined", "depth": 20, "temperature": 1.0}},
    {"confidence": {"name": "best", "depth": 20, "temperature": 1.0}},
    {"confidence": {"name": "entropy", "depth": 20, "temperature": 0.0}},
    {"confidence": {"name": "entropy", "depth": 1_000_000, "temperature": 1.0}},
    {"sample": [0] * 2_000},
    {"sample": [-1]},
    {"passages": -1},
    {"stale": "no"},
    {"format": None},
    {"digest": "abc"},
    {"kept": {**vars(CALIBRATION.kept or 0), "fraction": 1.5}},
    {"kept": {**vars(CALIBRATION.kept or 0), "score": float("inf")}},
    {"corpus": "1" * 63 + "\n"},
    {"date": "x" * 2_000},
    {"first_error": {"value": float("nan"), "low": 0.0, "high": 0.1}},
    {"later_error": {"value": -1.0, "low": 0.0, "high": 0.1}},
    {"first": {"method": "isotonic", "scores": [0.2, 0.1], "probabilities": [0.1, 0.9]}},
    {"later": {"method": "platt", "slope": 1.0}},
    {"thresholds": [{"target": "f1", "wanted": None, "score": 0.1}]},
    {"thresholds": "none"},
    {"more": 1},
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_of_other_values_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / FILE).write_text(json.dumps(json.loads(CALIBRATION.to_json()) | change))
    with pytest.raises(
        StorageError, match=r"calibration\.json: (is damaged or changed|is of format|has no format number)"
    ):
        read_calibration(tmp_path / FILE)


@pytest.mark.parametrize(
    "change",
    [
        {"score": float("nan")},
        {"score": float("-inf")},
        {"wanted": 1.5},
        {"target": "best"},
        {"answered": {"part": 3, "whole": 2, "low": 0.0, "high": 1.0}},
        {"unanswerable": {"given": {"part": 3, "whole": 2, "low": 0.0, "high": 1.0}}},
        {"wrong": {"part": 1, "whole": 2, "low": 0.5, "high": 0.4}},
        {"top_precision": {"part": 1, "whole": 2, "low": 0.5, "high": float("nan")}},
    ],
)
def test_a_threshold_of_other_values_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    content = json.loads(CALIBRATION.to_json())
    content["thresholds"][0] |= change
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(StorageError, match=r"calibration\.json: is damaged or changed"):
        read_calibration(tmp_path / FILE)


ENTROPY, LEAST = Confidence("entropy", 20, 0.05), -2.5


def code_of_page() -> str:
    """Return the code on the page that decides."""
    page = (Path(__file__).parents[4] / "docs/how-to/choose-a-threshold.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "is_answered" in block]
    return str(code)


@pytest.fixture
def rankings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[float]], list[bool]]:
    """Scores of 50 queries, and whether each is answered; their calibration is in the working directory."""
    first = replace(CALIBRATION.thresholds[0], score=LEAST)
    made = replace(CALIBRATION, confidence=ENTROPY, thresholds=[first])
    (tmp_path / "models/mine").mkdir(parents=True)
    (tmp_path / "models/mine" / FILE).write_text(made.to_json())
    monkeypatch.chdir(tmp_path)
    scores = np.sort(np.random.default_rng(0).normal(0.4, 0.06, (50, 20)), axis=1)[:, ::-1]
    scores[0, 0] = 40.0
    answered = ENTROPY.of(RankedQuestions(scores, np.zeros((50, 1), bool), np.full(50, ""))) >= LEAST
    assert 5 < answered.sum() < 45
    return scores.tolist(), answered.tolist()


def test_the_page_decides_as_the_search_does(rankings: tuple[list[list[float]], list[bool]]) -> None:
    scores, answered = rankings
    names: dict[str, Any] = {}
    exec(code_of_page(), names)
    assert [names["is_answered"](row) for row in scores] == answered
