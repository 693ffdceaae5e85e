"""Exact search of a store of embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from raytriever.encoding.store import EmbeddingStore
from raytriever.encoding.writer import EmbeddingPlan, StoreWriter
from raytriever.errors import ModelError
from raytriever.index.exact import top_k
from raytriever.search.exact import search_store

ROWS, WIDTH, SHARD_ROWS = 100, 8, 16


def write_store(folder: Path, embeddings: ndarray, dtype: str = "fp32") -> EmbeddingStore:
    """A store as encoding makes it."""
    plan = EmbeddingPlan(
        model="m", model_digest="", dataset="d", data_digest="", side="passage", prefix="", length=8, pooling="mean",
        similarity="dot", precision="fp32", dtype=dtype, rows=len(embeddings), width=WIDTH, shard_rows=SHARD_ROWS,
    )  # fmt: skip
    work = StoreWriter(folder, plan)
    work.begin()
    for number in range(plan.shards):
        rows = plan.rows_of(number)
        work.write(number, embeddings[rows.start : rows.stop])
    return work.finish()


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_results_equal_those_of_the_array(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    queries, embeddings = (rng.standard_normal((count, WIDTH)).astype(np.float32) for count in (5, ROWS))
    store = write_store(tmp_path / "store", embeddings, dtype)
    ties = rng.permutation(ROWS)
    actual, expected = search_store(store, queries, ROWS, ties), top_k(queries, store.array(), ROWS, ties)
    for one, wanted in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, wanted)


def test_queries_and_ties_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", np.ones((ROWS, WIDTH), np.float32))
    with pytest.raises(ModelError, match=r"store: holds embeddings of 100 documents, but the data set has 7; encode"):
        search_store(store, np.ones((1, WIDTH), np.float32), 3, np.arange(7))
    with pytest.raises(ModelError, match=r"width 8, but the queries have 4"):
        search_store(store, np.ones((1, 4), np.float32), 3, np.arange(ROWS))
