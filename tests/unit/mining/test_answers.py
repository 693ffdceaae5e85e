"""Normalised texts, and passages that contain an answer."""

from __future__ import annotations

import pytest

from raytriever.data.keys import normalise
from raytriever.mining.filters import contains_answer


@pytest.mark.parametrize(
    ("one", "other"),
    [("The  Cat\n sat ", "the cat sat"), ("Ｃafé", "cafe\u0301"), ("STRASSE", "straße"), ("a\u2028b", "A B")],
)
def test_case_width_and_white_space_do_not_count(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


def test_other_differences_count() -> None:
    assert len({normalise(text) for text in ("a cat", "a cat.", "acat", "a cät")}) == 4


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
    assert contains_answer(normalise(passage), [normalise(answer)]) is is_contained


def test_one_of_several_answers_suffices() -> None:
    assert contains_answer("a b c", ["x", "b"])
    assert not contains_answer("a b c", [])
