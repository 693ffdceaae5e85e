"""Exact search against sorting everything."""

import numpy as np
import pytest

from raytriever.index import exact
from raytriever.index.exact import tie_order, top_k


@pytest.mark.parametrize("k", [1, 7, 50, 400])
def test_equals_a_full_sort_with_many_ties_across_blocks(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "DOCUMENT_BLOCK", 64)
    monkeypatch.setattr(exact, "QUERY_BLOCK", 3)
    rng = np.random.default_rng(k)
    queries = rng.integers(-1, 2, (8, 4)).astype(np.float32)
    documents = rng.integers(-1, 2, (300, 4)).astype(np.float32)
    ids = [str(i) for i in rng.permutation(300)]
    ties = tie_order(ids)
    scores, found = top_k(queries, documents, k, ties)
    everything = queries @ documents.T
    expected = np.stack([np.lexsort((ties, -row))[:k] for row in everything])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(everything, expected, 1))


def test_equal_scores_are_ordered_by_descending_id() -> None:
    _, found = top_k(np.ones((1, 1), np.float32), np.ones((3, 1), np.float32), 3, tie_order(["b", "c", "a"]))
    assert found.tolist() == [[1, 0, 2]]
