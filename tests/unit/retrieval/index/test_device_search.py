"""Exact search on a CUDA device, compared with float64 products and with the CPU byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy import ndarray

from raytriever.core.errors import ModelError
from raytriever.retrieval.index import exact_top_k
from raytriever.retrieval.index.exact_top_k import Corpus, top_k, top_k_of_blocks
from raytriever.retrieval.index.rank_keys import TieOrder

CPU = torch.device("cpu")
SMALL_TILE = 2**18


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_top_k, "GPU_TILE_BYTES", SMALL_TILE)
    monkeypatch.setattr(exact_top_k, "BLOCK_BYTES", 2**18)
    monkeypatch.setattr(exact_top_k, "FEWEST_ROWS", 64)


def embeddings(rows: int, dim: int = 40, seed: int = 0) -> ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def assert_equal_to_the_cpu(queries: ndarray, documents: ndarray, k: int, cuda: torch.device) -> None:
    ties = np.random.default_rng(1).permutation(len(documents))
    expected = top_k(queries, documents, k, ties, CPU)
    actual = top_k(queries, documents, k, ties, cuda)
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]


@pytest.mark.parametrize("k", [10, 600])
def test_rankings_are_those_of_float64_products(k: int, cuda: torch.device) -> None:
    queries, documents = embeddings(20), embeddings(1_500, seed=1)
    scores, ranking = top_k(queries, documents, k, np.arange(1_500), device=cuda)
    products = queries.astype(np.float64) @ documents.T.astype(np.float64)
    order = np.argsort(-products.astype(np.float32), axis=1, kind="stable")[:, :k]
    assert (ranking == order).mean() > 0.9999  # the order of float64's own sums may decide the last bit
    np.testing.assert_allclose(scores, np.take_along_axis(products, ranking, 1), rtol=0, atol=1e-7)
    assert_equal_to_the_cpu(queries, documents, k, cuda)


@pytest.mark.slow
def test_equal_scores_have_the_order_of_the_ties(cuda: torch.device) -> None:
    documents = np.repeat(embeddings(5), 300, axis=0)
    for k in (1, 301):
        assert_equal_to_the_cpu(embeddings(4, seed=2), documents, k, cuda)


@pytest.mark.fast_every(9)
@pytest.mark.parametrize(("queries", "documents", "dim"), [(1, 1, 1), (3, 2, 7), (17, 129, 13), (18, 531, 384)])
def test_ragged_sizes(queries: int, documents: int, dim: int, cuda: torch.device) -> None:
    for k in (1, 600):
        assert_equal_to_the_cpu(embeddings(queries, dim), embeddings(documents, dim, 1), k, cuda)


@pytest.mark.parametrize("scale", ["small", "large", "mixed"])
def test_vectors_of_extreme_lengths(scale: str, cuda: torch.device) -> None:
    lengths = {"small": 1e-25, "large": 3e30, "mixed": np.exp(np.linspace(-70, 70, 900))[:, None]}[scale]
    documents = (embeddings(900, 12) * lengths).astype(np.float32)
    assert_equal_to_the_cpu(embeddings(9, 12, 1), documents, 30, cuda)


def test_blocks_in_any_order_and_an_error_that_names_the_document(cuda: torch.device) -> None:
    queries, documents = embeddings(20), embeddings(3_000, seed=1)
    blocks = [(2_000, documents[2_000:]), (0, documents[:13]), (13, documents[13:2_000])]
    expected = top_k(queries, documents, 70, np.arange(3_000), device=CPU)
    actual = top_k_of_blocks(queries, blocks, 70, np.arange(3_000), device=cuda)
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]
    documents[2_345, 3] = np.nan
    with pytest.raises(ModelError, match="document 2345 is not finite"):
        top_k(queries, documents, 3, np.arange(3_000), device=cuda)
    queries[4, 0] = np.inf
    with pytest.raises(ModelError, match="query 4 is not finite"):
        top_k(queries, documents, 3, np.arange(3_000), device=cuda)


@pytest.mark.parametrize("fits", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_corpus_is_copied_once_for_several_searches_if_it_fits(
    fits: bool, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, reads = embeddings(1_200, seed=1), []

    def blocks() -> list[tuple[int, ndarray]]:
        reads.append(1)
        return [(900, documents[900:]), (0, documents[:900])]

    if not fits:
        monkeypatch.setattr(exact_top_k, "free_memory", lambda device: 1_200 * 40 * 4)
    ties = np.random.default_rng(2).permutation(1_200)
    corpus = Corpus(blocks, TieOrder.of(ties), cuda)
    for number, k in enumerate((5, 100, 2_000)):
        queries = embeddings(20, seed=3 + number)
        expected = top_k(queries, documents, k, ties, device=CPU)
        assert [array.tobytes() for array in corpus.top_k(queries, k)] == [array.tobytes() for array in expected]
    assert len(reads) == (1 if fits else 3)
    documents[123, 3] = np.nan
    with pytest.raises(ModelError, match="document 123 is not finite"):
        Corpus(blocks, TieOrder.of(ties), cuda).top_k(queries, 5)
