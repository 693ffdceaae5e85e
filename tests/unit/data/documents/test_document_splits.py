"""Fractions of the questions reach dev and test, known splits stay, and what is too little is said."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from raytriever.core.errors import DataError
from raytriever.data.documents.document_splits import assign_splits
from raytriever.data.formats.train_dev_test import Division, Fractions, HashSplit, few_questions, split_by_hash

PAGES = [f"p{number}.md" for number in range(120)]


def questions_by_split(splits: dict[str, str], groups: list[list[str]]) -> list[int]:
    counts = Counter(splits[group[0]] for group in groups)
    return [counts[split] for split in ("train", "dev", "test")]


@pytest.mark.parametrize(
    ("fractions", "count", "sizes"),
    [
        (Fractions(), 60, (18, 18)),
        (Fractions(), 300, (50, 50)),
        (Fractions(), 1000, (100, 100)),
        (Fractions(), 3, (1, 1)),
        (Fractions(0.5), 60, (30, 15)),
        (Fractions(0.9, 0.0), 60, (54, 0)),
        (Fractions(0.0), 60, (0, 18)),
        (Fractions(0.29, 0.01), 100, (29, 1)),
        (Fractions(1.0), 60, (60, 0)),
        (Fractions(0.5, 0.5), 5, (2, 3)),
        (Fractions(0.0, 1.0), 5, (0, 5)),
    ],
)
def test_sizes_of_dev_and_test(fractions: Fractions, count: int, sizes: tuple[int, int]) -> None:
    assert fractions.sizes(count) == sizes


def test_evaluation_alone_needs_no_train() -> None:
    groups = [[page] for page in PAGES[:60]]
    assert set(assign_splits(PAGES, 0, groups, Fractions(1.0)).values()) == {"test"}
    assert questions_by_split(assign_splits(PAGES, 0, groups, Fractions(0.5, 0.5)), groups) == [0, 30, 30]
    assert set(assign_splits(PAGES, 0, [PAGES], Fractions(1.0)).values()) == {"test"}
    assert set(assign_splits(PAGES, 0, [PAGES, PAGES], Fractions(0.0, 1.0)).values()) == {"dev"}


def test_questions_and_not_files_reach_the_fractions() -> None:
    few = [[PAGES[number]] for number in range(56)]
    assert questions_by_split(assign_splits(PAGES, 0, few), few) == [24, 16, 16]
    # One page answers a third of the questions, others one or two.
    uneven = [[PAGES[0]]] * 40 + [[PAGES[number % 60 + 1]] for number in range(80)]
    for seed in range(5):
        assert questions_by_split(assign_splits(PAGES, seed, uneven), uneven)[1:] == [36, 36]
    assert assign_splits(PAGES, 0, few) == assign_splits(PAGES[::-1], 0, few)
    assert assign_splits(PAGES, 0, few) != assign_splits(PAGES, 1, few)


def test_the_last_group_is_left_to_train() -> None:
    assert set(assign_splits(PAGES, 0, [PAGES]).values()) == {"train"}
    two = [PAGES[:60], PAGES[60:]]
    assert sorted(questions_by_split(assign_splits(PAGES, 0, two), two)) == [0, 1, 1]
    assert questions_by_split(assign_splits(PAGES, 0, two), two)[0] == 1


def test_known_splits_stay_and_further_questions_fill_the_fractions() -> None:
    before = [[PAGES[number]] for number in range(60)]
    first = assign_splits(PAGES, 0, before)
    after = [*before, *([PAGES[number]] for number in range(60, 90))]
    second = assign_splits(PAGES, 0, after, known={path: first[path] for path in PAGES[:60]})
    assert {path: second[path] for path in PAGES[:60]} == {path: first[path] for path in PAGES[:60]}
    assert questions_by_split(second, after) == [36, 27, 27]
    # A new question joins documents of several splits.
    joined = assign_splits(PAGES, 0, [PAGES[:3]], known=dict(zip(PAGES, ("test", "dev", "train"), strict=False)))
    assert [joined[path] for path in PAGES[:3]] == ["train"] * 3


def test_the_smallest_hashes_fill_test_and_then_dev() -> None:
    texts = sorted((f"q{number}" for number in range(40)), key=lambda text: hashlib.sha256(text.encode()).digest())
    split_of = HashSplit.of([*reversed(texts), *texts[:9]], (5, 7))
    assert [split_of(text) for text in texts] == ["test"] * 5 + ["dev"] * 7 + ["train"] * 28
    assert {HashSplit.of(texts, (0, 0))(text) for text in texts} == {"train"}
    assert Counter(map(HashSplit.of(texts, (30, 30)), texts)) == {"test": 30, "dev": 10}
    assert Counter(map(HashSplit.of(texts, (5, 7), seed=1), texts)) == {"test": 5, "dev": 7, "train": 28}
    assert any(HashSplit.of(texts, (5, 7), seed=1)(text) != split_of(text) for text in texts)


def test_shares_split_each_text_for_itself() -> None:
    texts = [f"p{number}" for number in range(10_000)]
    counts = Counter(map(HashSplit.of_fractions(0.1, 0.2), texts))
    assert counts["test"] == pytest.approx(1000, abs=100)
    assert counts["dev"] == pytest.approx(2000, abs=150)
    assert set(map(HashSplit.of_fractions(1.0, 0.0), texts)) == {"test"}
    assert set(map(HashSplit.of_fractions(0.0, 0.0), texts)) == {"train"}


def test_questions_without_an_answer_are_divided_by_their_text() -> None:
    texts = {f"u{number}": f"text {number}" for number in range(40)}
    splits = split_by_hash(texts, (12, 12))
    assert Counter(splits.values()) == {"train": 16, "dev": 12, "test": 12}
    assert split_by_hash(dict(reversed(texts.items())), (12, 12)) == splits
    more = split_by_hash({**texts, "u40": "text 40"}, (12, 12), 0, splits)
    assert {name: more[name] for name in texts} == splits


@pytest.mark.parametrize(
    ("count", "fractions"), [(0, Fractions()), (2, Fractions()), (1, Fractions(0.5, 0.0)), (10, Fractions(0.9, 0.09))]
)
def test_too_few_queries_to_divide(count: int, fractions: Fractions) -> None:
    queries = [*((f"q{number}", True) for number in range(count)), ("u", False)]
    with pytest.raises(DataError, match=rf"faq.csv: has {count} different queries with an answer, too few to divide"):
        Division.of(queries, "faq.csv", fractions)


def test_few_questions_are_said_with_the_remedy() -> None:
    assert few_questions({"train": 26, "dev": 17, "test": 17}, Fractions()) == (
        "Of 60 questions test has 17 and dev has 17, fewer than the 50 that metrics and thresholds should have: add "
        "questions, or raise --test-fraction (now 0.3) and --dev-fraction (now 0.3)."
    )
    assert "Of 130 questions dev has 10, fewer" in few_questions({"train": 60, "dev": 10, "test": 60}, Fractions(0.5))
    assert few_questions({"train": 400, "dev": 50, "test": 50}, Fractions()) == ""
    assert few_questions({"train": 400, "test": 50}, Fractions(None, 0.0)) == ""
