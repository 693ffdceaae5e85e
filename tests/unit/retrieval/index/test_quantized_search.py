"""Quantized search as in sentence-transformers; recall, candidates and rates of an index."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
import torch
from numpy import ndarray
from sentence_transformers.util.quantization import _dequantize_embeddings, quantize_embeddings, semantic_search_faiss
from synthetic import control

from raytriever.retrieval.index.approximate.build_index import build_index
from raytriever.retrieval.index.approximate.index_recall import evaluate_recall, one_thread
from raytriever.retrieval.index.approximate.index_settings import IndexConfig
from raytriever.retrieval.index.exact_top_k import tie_order, top_k
from raytriever.retrieval.index.quantized_search import INT8, UBINARY, QuantisedDocuments, Quantizer, bytes_per_document
from search_size import at_recall, search_sizes

DIM = 36  # no whole number of bytes of bits


def normalized(rows: int, seed: int) -> ndarray:
    vectors = np.random.default_rng(seed).normal(0.1, 1, (rows, DIM)).astype(np.float32)
    vectors[:, 3] = 0.25  # a component without a range
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


QUERIES, DOCUMENTS, SAMPLE = normalized(20, 1), normalized(400, 2), normalized(150, 3)
DOCUMENTS[:, 3] = SAMPLE[:, 3] = 0.25


def quantized(dtype: str) -> QuantisedDocuments:
    ties = tie_order([f"{i:04}" for i in range(len(DOCUMENTS))])
    blocks = [(0, DOCUMENTS[:150]), (150, DOCUMENTS[150:])]
    return QuantisedDocuments(Quantizer.fit(dtype, SAMPLE), lambda: blocks, DOCUMENTS.__getitem__, ties)


@pytest.mark.parametrize("dtype", ["int8", "binary", "ubinary"])
def test_codes_are_those_of_sentence_transformers(dtype: str) -> None:
    quantizer = Quantizer.fit(dtype, SAMPLE)
    theirs = quantize_embeddings(DOCUMENTS, dtype, calibration_embeddings=SAMPLE)
    codes = quantizer.encode(DOCUMENTS)
    assert codes.dtype == theirs.dtype
    assert np.array_equal(codes, theirs)
    assert codes[0].nbytes == bytes_per_document(dtype, DIM)
    if dtype == INT8:
        values = _dequantize_embeddings(theirs, dtype, quantizer.ranges)
        assert np.allclose(quantizer.decode(codes, DIM), values, atol=1e-6)


def test_binary_search_is_that_of_sentence_transformers() -> None:
    codes = quantize_embeddings(DOCUMENTS, UBINARY)
    for dtype in ("binary", "ubinary"):  # they differ in the stored type alone
        scores, ranking = quantized(dtype).search(QUERIES, 5, 400)
        theirs, _ = semantic_search_faiss(QUERIES, codes, corpus_precision=UBINARY, top_k=5, rescore_multiplier=80)
        assert np.allclose(scores, [[hit["score"] for hit in hits] for hits in theirs], atol=1e-6)
        assert ranking.tolist() == [[hit["corpus_id"] for hit in hits] for hits in theirs]


@pytest.mark.parametrize("dtype", ["int8", "ubinary"])
def test_the_first_results_come_from_the_candidates_alone(dtype: str) -> None:
    own = quantized(dtype)
    codes = quantize_embeddings(DOCUMENTS, dtype, calibration_embeddings=SAMPLE)
    queries = quantize_embeddings(QUERIES, dtype, calibration_embeddings=SAMPLE)
    if dtype == INT8:
        quick = queries.astype(int) @ codes.astype(int).T
        values = _dequantize_embeddings(codes, dtype, own.quantizer.ranges)
    else:
        quick = -np.unpackbits(queries[:, None] ^ codes[None], axis=-1).sum(-1, dtype=int)
        values = np.unpackbits(codes, axis=-1)[:, :DIM]
    exact = QUERIES.astype(float) @ values.T.astype(float)
    scores, ranking = own.search(QUERIES, 30, 12)
    names = -np.arange(len(DOCUMENTS))  # of equal documents the id that sorts last is first
    for row in range(len(QUERIES)):
        order = np.lexsort((names, -quick[row]))
        expected = [part[np.argsort(-exact[row, part], kind="stable")] for part in (order[:12], order[12:30])]
        assert np.allclose(scores[row], exact[row, np.concatenate(expected)], atol=1e-6)
        assert set(ranking[row, :12]) == set(order[:12])
    pairs = np.arange(20), np.arange(20) * 7
    assert np.allclose(own.score(QUERIES, *pairs), exact[pairs], atol=1e-6)


SET = control(1_000, 50, seed=4, dim=24, rank=8, common=4, own=2)
TRUE = top_k(SET.shifted, SET.documents, 10, np.arange(1_000))[1]


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("kind", ["ivf", "roargraph", "vamana"])
def test_candidates_at_a_recall_lie_between_those_of_the_nearest_efforts(kind: str) -> None:
    index = build_index(SET.documents, IndexConfig(index=kind), SET.training, 0, 1)
    points = [
        evaluate_recall(index, SET.shifted, TRUE, search_size, timed=False) for search_size in search_sizes(index, 10)
    ]
    target = points[0].recall * 0.75 + points[1].recall * 0.25
    actual = at_recall(index, SET.shifted, TRUE, target)
    assert actual.search_size == points[1].search_size
    if kind == "vamana":
        assert isnan(actual.candidates)
    else:
        expected = points[0].candidates ** 0.75 * points[1].candidates ** 0.25
        assert points[0].candidates < actual.candidates < points[1].candidates
        assert actual.candidates == pytest.approx(expected, rel=1e-6)
    assert points[-1].recall == pytest.approx(1.0, abs=0.02)
    least = at_recall(index, SET.shifted, TRUE, 0.0)
    assert (least.search_size, least.recall) == (points[0].search_size, points[0].recall)
    assert isnan(at_recall(index, SET.shifted, TRUE, 1.1).candidates)


def test_rates_are_measured_on_one_thread() -> None:
    index = build_index(SET.documents, IndexConfig(index="flat"), None, 0, 1)
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    point = evaluate_recall(index, SET.shifted, TRUE, 1)
    assert (point.recall, point.candidates) == (1.0, 1_000.0)
    assert point.qps > 0
