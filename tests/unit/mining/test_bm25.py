"""BM25 rankings and scores, and the published figures of SciFact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raytriever.data.prepare.open import open_dataset
from raytriever.mining.bm25 import Bm25Index

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


def test_sizes_of_results_and_texts_without_terms() -> None:
    index = Bm25Index(TEXTS)
    assert len(index) == 6
    assert index.search(["cat"], 100)[1].shape == (1, 6)
    assert index.search([], 3)[1].shape == (0, 3)
    assert index.search(["cat"], 0)[1].shape == (1, 0)
    assert Bm25Index(["the", "?"]).search(["the cat"], 2)[0].tolist() == [[0, 0]]
    assert (index.scores("cats") == index.search(["cats"], 6)[0][0][[1, 2, 4, 0, 5, 3]]).all()


def test_a_ranking_does_not_depend_on_the_other_queries() -> None:
    rng = np.random.default_rng(3)
    words = [f"word{n}" for n in range(60)]
    texts = [" ".join(rng.choice(words, 8)) for _ in range(90)]
    queries = [" ".join(rng.choice(words, 3)) for _ in range(600)]  # several threads' worth
    index = Bm25Index(texts)
    scores, positions = index.search(queries, 40)
    for row in (0, 255, 256, 599):
        every = index.scores(queries[row])
        assert positions[row].tolist() == np.argsort(-every, kind="stable")[:40].tolist()
        assert (scores[row] == every[positions[row]]).all()
        assert (index.search([queries[row]], 40)[1][0] == positions[row]).all()


def test_rankings_of_frequent_and_rare_words() -> None:
    rng = np.random.default_rng(4)
    words = np.array([f"word{n}" for n in range(3000)])
    drawn = words[(3000 ** rng.random((20_000, 3))).astype(int) - 1]  # scores often tie
    index = Bm25Index([" ".join(row) for row in drawn])
    queries = ["word0", "word0 word1 word0", "word2500", "word2000 word2990 word40", "word0 word2999", "zebra"]
    for k in (5, 300, 16_000):
        scores, positions = index.search(queries, k)
        for row, query in enumerate(queries):
            every = index.scores(query)
            assert positions[row].tolist() == np.argsort(-every, kind="stable")[:k].tolist()
            assert (scores[row] == every[positions[row]]).all()


def test_scores_of_pairs_are_those_of_the_ranking() -> None:
    result = Bm25Index(TEXTS).scores_of(["cats", "zebra"], np.array([[3, -1, 4], [0, 1, -1]]))
    assert np.isnan(result).tolist() == [[False, True, False], [False, False, True]]
    assert result[0, 0] == Bm25Index(TEXTS).scores("cats")[3] > 0
    assert result[0, 2] == result[1, 0] == 0


@pytest.mark.data
def test_scifact_scores_as_published(data_packs: Path) -> None:
    dataset = open_dataset(data_packs / "scifact", ["test"])
    positives = dataset.positives("test")
    queries = [dataset.queries.texts[query] for query in positives.queries]
    _, ranking = Bm25Index(dataset.passages()).search(queries, 10)
    discounts = 1 / np.log2(np.arange(2, 12))
    gains = [np.isin(ranking[i], positives.of(i)) @ discounts for i in range(len(positives))]
    ideal = [discounts[: len(positives.of(i))].sum() for i in range(len(positives))]
    assert np.mean(np.divide(gains, ideal)) == pytest.approx(0.676, abs=0.002)
