"""Exact search of a store of embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from encoding_case import write_store

from raytriever.retrieval.index.exact_top_k import top_k
from raytriever.retrieval.search.exact_search import search_store


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_results_equal_those_of_the_array(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    queries, embeddings = (rng.standard_normal((count, 8)).astype(np.float32) for count in (5, 100))
    store = write_store(tmp_path / "store", embeddings, 16, dtype)
    ties = rng.permutation(100)
    actual, expected = search_store(store, queries, 100, ties), top_k(queries, store.array(), 100, ties)
    for value, wanted in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)
