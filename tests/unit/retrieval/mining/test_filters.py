"""Filters of candidates: excluded documents, answers and scores, compared with plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from raytriever.data.hashed_ids import normalize
from raytriever.retrieval.mining.filters import (
    KEPT,
    NOT_CHOSEN,
    RANGE,
    RELATIVE,
    apply_score_bounds,
    choose,
    contains_answer,
)


@pytest.mark.parametrize("lowest", [-2.0, -0.5, 0.5, 2.0])
@pytest.mark.parametrize("fraction", [0.05, 0.5, 1.5])
def test_a_relative_margin_lies_below_a_positive_of_any_sign(lowest: float, fraction: float) -> None:
    scores = np.array([[lowest, np.nextafter(np.float32(lowest), np.float32(-9)), lowest - 9]], np.float32)
    verdicts = np.zeros((1, 3), np.int8)
    apply_score_bounds(verdicts, scores, np.array([lowest], np.float32), None, None, fraction)
    assert verdicts.tolist() == [[RELATIVE, RELATIVE, KEPT]]


def test_random_candidates_are_those_with_the_smallest_draws() -> None:
    verdicts = np.array([[KEPT, RANGE, KEPT, KEPT], [RANGE, RANGE, KEPT, RANGE]], np.int8)
    random_keys = np.array([[5, 0, 2**64 - 1, 1], [0, 0, 9, 0]], np.uint64)
    choose(verdicts, 2, random_keys)
    assert verdicts.tolist() == [[KEPT, RANGE, NOT_CHOSEN, KEPT], [RANGE, RANGE, KEPT, RANGE]]


@pytest.mark.parametrize(
    ("passage", "answer", "is_contained"),
    [
        ("He joined the US army.", "us", True),
        ("He took a bus.", "us", False),
        ("a bus in the US", "US", True),
        ("Born in 1920.", "192", False),
        ("Born in 1920.", "1920", True),
        ("It cost $5.", "$5", True),
        ("It cost $50.", "$5", False),
        ("the Great  Sichuan\nEarthquake", "great sichuan earthquake", True),
        ("東京は日本の首都である", "東京", True),
        ("2008年に", "2008", True),
        ("E\u0301mile Zola", "Émile", True),
        ("anything", "", False),
        ("anything", "  ", False),
    ],
)
def test_answers_match_whole_words(passage: str, answer: str, is_contained: bool) -> None:
    assert contains_answer(normalize(passage), ["nowhere", normalize(answer)]) is is_contained
