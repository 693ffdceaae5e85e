from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytriever.data.open import open_dataset
from raytriever.negatives.bm25 import Bm25Index, mine, top_positions

TEXTS = ["the cat sat", "dogs and cats", "a running dog", "cats cats cats", "nothing alike", "the cat sat"]


def test_ranks_by_shared_stems_and_breaks_ties_by_position() -> None:
    scores, positions = Bm25Index(TEXTS).search(["CATS", "dogs run"], 6)
    assert positions[0].tolist() == [3, 0, 1, 5, 2, 4]
    assert scores[0][1] == scores[0][2] == scores[0][3] > scores[0][4] == 0
    assert positions[1].tolist()[:2] == [2, 1]
    assert scores.dtype == np.float32
    assert positions.dtype == np.int64


@pytest.mark.parametrize("query", ["zebra", "the", "", "?!"])
def test_a_query_without_a_known_term_scores_nothing(query: str) -> None:
    scores, positions = Bm25Index(TEXTS).search([query, "cat"], 3)
    assert scores[0].tolist() == [0, 0, 0]
    assert positions[0].tolist() == [0, 1, 2]
    assert positions[1, 0] == 3


def test_edges() -> None:
    index = Bm25Index(TEXTS)
    assert len(index) == 6
    assert index.search(["cat"], 100)[1].shape == (1, 6)
    assert index.search([], 3)[1].shape == (0, 3)
    assert index.search(["cat"], 0)[1].shape == (1, 0)
    assert Bm25Index(["the", "?"]).search(["the cat"], 2)[0].tolist() == [[0, 0]]
    assert (index.scores("cats") == index.search(["cats"], 6)[0][0][[1, 2, 4, 0, 5, 3]]).all()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.data())
def test_the_top_is_the_head_of_a_stable_sort(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values)))
    scores = np.array(values, dtype=np.float32)
    assert top_positions(scores, k).tolist() == np.argsort(-scores, kind="stable")[:k].tolist()


def test_mined_are_the_best_that_are_not_relevant() -> None:
    texts = ["cats", "not mined", "dogs", "zebra"]
    queries, offsets, documents = np.array([0, 2, 3]), np.array([0, 2, 3, 4]), np.array([0, 3, 1, 4])
    table = mine(Bm25Index(TEXTS), texts, queries, offsets, documents, depth=3)
    assert table.tolist() == [[1, 5, -1], [-1, -1, -1], [2, -1, -1], [-1, -1, -1]]
    assert mine(Bm25Index(TEXTS), texts, queries, offsets, documents, depth=1)[:, 0].tolist() == [1, -1, 2, -1]


@pytest.mark.data
def test_scifact_scores_as_published(data_packs: Path) -> None:
    dataset = open_dataset(data_packs / "scifact", ["test"])
    positives = dataset.positives("test")
    queries = [dataset.queries.texts[query] for query in positives.queries]
    _, found = Bm25Index(dataset.passages()).search(queries, 10)
    discounts = 1 / np.log2(np.arange(2, 12))
    gains = [np.isin(found[i], positives.of(i)) @ discounts for i in range(len(positives))]
    ideal = [discounts[: len(positives.of(i))].sum() for i in range(len(positives))]
    assert np.mean(np.divide(gains, ideal)) == pytest.approx(0.676, abs=0.002)


@pytest.mark.data
def test_mining_many_positives_a_query(data_packs: Path) -> None:
    dataset = open_dataset(data_packs / "adi", ["test"])
    positives = dataset.positives("test")
    index = Bm25Index(dataset.passages())
    table = mine(index, dataset.queries.texts, positives.queries, positives.offsets, positives.documents, 20)
    assert (table[:, 0] >= 0).all()
    for row, query in enumerate(positives.queries):
        mined = table[query][table[query] >= 0]
        assert not set(mined) & set(positives.of(row))
        ranking = index.search([dataset.queries.texts[query]], 82)[1][0]
        assert mined.tolist() == [d for d in ranking if d not in positives.of(row)][: len(mined)]
