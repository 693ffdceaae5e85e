"""Indexes of FAISS are filled a block at a time; a search finds as many documents as it is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from raytriever.retrieval.index.approximate import build_index as build
from raytriever.retrieval.index.approximate.ann_index import recall
from raytriever.retrieval.index.approximate.build_index import build_index, fill
from raytriever.retrieval.index.approximate.faiss_indexes import FILE, Hnsw, Ivf, faiss
from raytriever.retrieval.index.approximate.index_settings import IndexConfig
from raytriever.retrieval.index.exact_top_k import top_k

ROWS, DIM, BLOCK = 1_000, 16, 128


@pytest.fixture
def rows() -> ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)


EMPTY = {
    "ivf": lambda rows: Ivf.trained(rows, None, None, 3, 1),
    "ivfpq": lambda rows: Ivf.trained(rows, None, 4, 3, 1),
    "hnsw": lambda rows: Hnsw.empty(DIM, 8, 30, 3, len(rows)),
}


def content(ann_index: Ivf | Hnsw, folder: Path) -> bytes:
    folder.mkdir()
    ann_index.save(folder)
    return (folder / FILE).read_bytes()


@pytest.mark.parametrize("kind", EMPTY)
def test_blocks_give_the_bytes_of_one_addition(
    kind: str, rows: ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(EMPTY[kind](rows).add(rows, 1), tmp_path / "whole")
    monkeypatch.setattr(build, "BLOCK", BLOCK)
    in_blocks = fill(EMPTY[kind](rows), rows, 1)
    if kind != "hnsw":  # a graph draws the levels of a block at once, and links it in their order
        assert content(in_blocks, tmp_path / "blocks") == whole
    true = top_k(rows, rows, 10, np.arange(ROWS))[1]
    assert recall(in_blocks.find(rows, 10, 60, 1).rows, true).mean() > 0.9


def test_memory_that_is_reserved_is_enough_and_changes_nothing(rows: ndarray, tmp_path: Path) -> None:
    reserved = Hnsw.empty(DIM, 8, 30, 3, ROWS)
    assert reserved.index.ntotal == 0
    links = reserved.index.hnsw
    arrays = (links.neighbors, links.levels, links.offsets, faiss.downcast_index(reserved.index.storage).codes)
    before = [int(array.data()) for array in arrays]
    full = reserved.add(rows[:500], 1).add(rows[500:], 1)
    assert [int(array.data()) for array in arrays] == before  # no array has outgrown its memory and was copied
    assert links.neighbors.size() > ROWS * links.nb_neighbors(0)
    plain = Hnsw.empty(DIM, 8, 30, 3).add(rows[:500], 1).add(rows[500:], 1)
    assert content(full, tmp_path / "reserved") == content(plain, tmp_path / "plain")


def test_a_graph_holds_embeddings_beyond_the_range_of_float16(rows: ndarray) -> None:
    queries = np.random.default_rng(1).standard_normal((100, DIM)).astype(np.float32)
    large = rows * np.float32(2e4)  # some components are beyond 65,504
    true = top_k(queries, large, 10, np.arange(ROWS))[1]
    found = Hnsw.empty(DIM, 8, 30, 3).add(large, 1).find(queries, 10, 60, 1).rows
    assert recall(found, true).mean() > 0.9


@pytest.mark.parametrize("kind", ["ivf", "ivfpq", "hnsw"])
def test_a_search_finds_as_many_documents_as_it_is_asked_for(kind: str, rows: ndarray) -> None:
    index = build_index(
        rows, IndexConfig(index=kind, **{"nprobe" if kind.startswith("ivf") else "ef_search": 1}), None, 0, 1
    )
    queries = np.random.default_rng(1).standard_normal((20, DIM)).astype(np.float32)
    for k in (1, 10, 100, 400):
        scores, documents = index.search(queries, k)
        assert (documents >= 0).all()
        assert all(len(set(row)) == k for row in documents.tolist())
        assert (np.diff(scores, axis=1) <= 0).all()
        np.testing.assert_allclose(scores, (queries[:, None] * rows[documents]).sum(2), atol=1e-5)
    # A larger search size is spent on the queries that need it: one list has fewer than 400 of 1,000 documents.
    assert index.propose(queries, 400, 1).candidates > index.propose(queries, 10, 1).candidates
