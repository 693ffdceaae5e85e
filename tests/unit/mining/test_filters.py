"""Filters of candidates: excluded documents, answers and scores, compared with plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.data.keys import normalise
from raytriever.mining.filters import (
    ABSOLUTE,
    KEPT,
    MAX_SCORE,
    NO_CANDIDATE,
    NOT_CHOSEN,
    OWN_ID,
    RANGE,
    REASONS,
    RELATIVE,
    RELEVANT,
    SAME_TEXT,
    ExcludedDocuments,
    apply_score_bounds,
    choose,
    contains_answer,
    count_verdicts,
    initial_verdicts,
)

BOUND = st.none() | st.integers(0, 8).map(lambda n: n / 4)


def expected_verdicts(
    documents: list[int],
    scores: list[float],
    known: dict[int, int],
    positives: list[float],
    window: tuple[int, int],
    bounds: tuple[float | None, float | None, float | None],
    count: int,
) -> list[int]:
    """Return one query's verdicts, candidate by candidate."""
    max_score, absolute, relative = bounds
    lowest = min(positives)
    verdicts, rank, count_kept = [], 0, 0
    for document, score in zip(documents, scores, strict=True):
        if document < 0 or rank >= window[1]:
            verdicts.append(NO_CANDIDATE)
            continue
        if document in known:
            verdicts.append(known[document])
            continue
        if rank < window[0]:
            verdict = RANGE
        elif max_score is not None and score > max_score:
            verdict = MAX_SCORE
        elif absolute is not None and score > lowest - absolute:
            verdict = ABSOLUTE
        elif relative is not None and score > lowest - abs(lowest) * relative:
            verdict = RELATIVE
        elif count_kept == count:
            verdict = NOT_CHOSEN
        else:
            verdict = KEPT
            count_kept += 1
        rank += 1
        verdicts.append(verdict)
    return verdicts


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_verdicts_are_those_of_a_loop(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    queries = data.draw(st.integers(1, 4))
    window = data.draw(st.tuples(st.integers(0, 4), st.integers(1, 12)).filter(lambda w: w[0] < w[1]))
    bounds = data.draw(st.tuples(BOUND.map(lambda b: None if b is None else b - 1), BOUND, BOUND))
    count = data.draw(st.integers(1, 5))
    quarters = st.integers(-8, 8).map(lambda n: n / 4)
    rows = []
    for _ in range(queries):
        documents = data.draw(st.permutations(range(size)))
        documents = documents[: data.draw(st.integers(0, size))]
        scores = sorted(data.draw(st.lists(quarters, min_size=size, max_size=size)), reverse=True)
        known = data.draw(st.dictionaries(st.integers(0, size - 1), st.integers(1, 3), max_size=4))
        positives = data.draw(st.lists(quarters, min_size=1, max_size=3))
        rows.append((documents + [-1] * (size - len(documents)), scores, known, positives))
    most = max(len(row[2]) for row in rows)
    padded = np.full((queries, most), -1), np.zeros((queries, most), np.int8)
    for row, (_, _, known, _) in enumerate(rows):
        for index, (document, why) in enumerate(known.items()):
            padded[0][row, index], padded[1][row, index] = document, why
    result = np.array([row[0] for row in rows])
    scores = np.array([row[1] for row in rows], np.float32)
    verdicts, _ = initial_verdicts(result, padded, *window)
    apply_score_bounds(verdicts, scores, np.array([min(row[3]) for row in rows], np.float32), *bounds)
    choose(verdicts, count, None)
    wanted = [expected_verdicts(*row, window, bounds, count) for row in rows]
    assert verdicts.tolist() == wanted
    judged = [verdict for row in wanted for verdict in row if verdict != NO_CANDIDATE]
    assert count_verdicts(verdicts).tolist() == [judged.count(reason) for reason in range(len(REASONS))]
    assert count_verdicts(verdicts).sum() == len(judged)


@pytest.mark.parametrize("lowest", [-2.0, -0.5, 0.5, 2.0])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.5])
def test_a_relative_margin_lies_below_a_positive_of_any_sign(lowest: float, share: float) -> None:
    scores = np.array([[lowest, np.nextafter(np.float32(lowest), np.float32(-9)), lowest - 9]], np.float32)
    verdicts = np.zeros((1, 3), np.int8)
    apply_score_bounds(verdicts, scores, np.array([lowest], np.float32), None, None, share)
    assert verdicts.tolist() == [[RELATIVE, RELATIVE, KEPT]]


def test_random_candidates_are_those_with_the_smallest_draws() -> None:
    verdicts = np.array([[KEPT, RANGE, KEPT, KEPT], [RANGE, RANGE, KEPT, RANGE]], np.int8)
    draws = np.array([[5, 0, 2**64 - 1, 1], [0, 0, 9, 0]], np.uint64)
    choose(verdicts, 2, draws)
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
    assert contains_answer(normalise(passage), ["nowhere", normalise(answer)]) is is_contained


GROUPS = st.lists(st.integers(0, 3), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(GROUPS, GROUPS, st.data())
def test_excluded_documents_are_those_of_a_loop(
    query_groups: list[int], document_groups: list[int], data: st.DataObject
) -> None:
    queries, documents = range(len(query_groups)), range(len(document_groups))
    selected = data.draw(st.lists(st.sampled_from(queries), unique=True).map(sorted))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(queries), st.sampled_from(documents)), max_size=8))
    own = data.draw(st.lists(st.integers(-1, len(document_groups) - 1), min_size=len(selected), max_size=len(selected)))
    columns = tuple(np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    excluded = ExcludedDocuments.of(
        np.array(selected, np.int64),
        columns,  # type: ignore[arg-type]
        np.array(query_groups),
        np.array(document_groups),
        np.array(own, np.int64),
    )
    assert len(excluded.counts) == len(selected)
    for row, query in enumerate(selected):
        wanted: dict[int, int] = {}
        for other, document in pairs:
            if query_groups[other] == query_groups[query]:
                wanted[document] = RELEVANT
        for document in documents:
            if any(document_groups[document] == document_groups[each] for each, why in wanted.items() if why == 1):
                wanted.setdefault(document, SAME_TEXT)
        if own[row] >= 0:
            wanted.setdefault(own[row], OWN_ID)
        part = slice(excluded.offsets[row], excluded.offsets[row + 1])
        assert dict(zip(excluded.documents[part].tolist(), excluded.reasons[part].tolist(), strict=True)) == wanted
        assert excluded.counts[row] == len(wanted)
        padded = excluded.padded(np.array([row]))
        assert dict(zip(padded[0][0].tolist(), padded[1][0].tolist(), strict=True)) == wanted
    everything = excluded.padded(np.arange(len(selected)))
    assert (everything[0] >= 0).sum() == excluded.counts.sum()
    assert ((everything[0] < 0) == (everything[1] == 0)).all()
