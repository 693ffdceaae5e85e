"""Exact search, compared with scoring and sorting all documents."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy import ndarray

from raytriever.errors import ConfigError, ModelError
from raytriever.index import score as arithmetic
from raytriever.index.exact import device as device_search
from raytriever.index.exact import search
from raytriever.index.exact.search import best_keys, tie_order, top_k, top_k_of_blocks
from raytriever.index.ranking import TieOrder, merge_keys
from raytriever.index.score import pair_scores

KINDS = st.sampled_from(["plain", "ties", "alike", "copies", "norms", "huge", "tiny"])


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small tiles and compiled scores, so that small cases need several of them."""
    monkeypatch.setattr(arithmetic, "FEW_PAIRS", -1)
    monkeypatch.setattr(search, "QUERY_TILE", 3)
    monkeypatch.setattr(search, "MORE", 2)
    monkeypatch.setattr(device_search, "QUERY_TILE", 3)
    monkeypatch.setattr(device_search, "TILE_BYTES", 3 * 4 * 128)
    monkeypatch.setattr(search, "FEWEST_ROWS", 96)


def everything(
    queries: ndarray, documents: ndarray, k: int, ties: ndarray, exclude: ndarray | None
) -> tuple[ndarray, ndarray]:
    """Score every pair, and sort every row."""
    of, to = np.divmod(np.arange(len(queries) * len(documents)), len(documents))
    scores = pair_scores(queries, documents, of, to).reshape(len(queries), -1)
    k = min(k, len(documents))
    result, best = np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32)
    for query, row in enumerate(scores):
        order = np.lexsort((ties, -row))
        if exclude is not None:
            order = order[order != exclude[query]]
        order = order[:k]
        result[query, : len(order)], best[query, : len(order)] = order, row[order]
    return best, result


def vectors(rng: np.random.Generator, count: int, kind: str) -> ndarray:
    """Return embeddings whose order is hard to compute, for reasons that depend on `kind`."""
    width = 12
    if kind == "ties":
        return rng.integers(-1, 2, (count, width)).astype(np.float32)
    values = rng.standard_normal((count, width)).astype(np.float32)
    if kind == "alike":
        values = 1 + values * 1e-6
    elif kind == "copies":
        values = values[rng.integers(0, max(1, count // 50), count)]
    elif kind == "norms":
        values *= np.exp(rng.uniform(-80, 80, (count, 1)))
    elif kind == "huge":
        values *= 3e37
    elif kind == "tiny":
        values *= 1e-22
    return values.astype(np.float32)


def cut(rng: np.random.Generator, documents: ndarray, count: int) -> Iterator[tuple[int, ndarray]]:
    """Yield blocks of any sizes, including 0, in any order."""
    cuts = [0, *sorted(rng.integers(0, len(documents) + 1, count - 1).tolist()), len(documents)]
    for part in rng.permutation(count):
        yield cuts[part], documents[cuts[part] : cuts[part + 1]]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    kind=KINDS,
    size=st.integers(1, 900),
    k=st.sampled_from([1, 2, 10, 100, 1_000, 10_000]),
    count=st.integers(1, 9),
    excluding=st.booleans(),
)
def test_any_blocks_give_the_bytes_of_sorting_all_documents(
    small_tiles: None, seed: int, kind: str, size: int, k: int, count: int, excluding: bool
) -> None:
    rng = np.random.default_rng(seed)
    queries, documents = vectors(rng, 7, kind), vectors(rng, size, kind)
    ties = rng.permutation(size)
    exclude = rng.integers(-1, size, 7) if excluding else None
    expected = everything(queries, documents, k, ties, exclude)
    pieces = list(cut(rng, documents, count))
    actual = top_k_of_blocks(queries, pieces, k, ties, exclude)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    order = TieOrder.of(ties)
    shards = [best_keys(queries, pieces[shard::3], k, order, exclude) for shard in (2, 0, 1)]
    merged = order.read(merge_keys(shards, min(k, size)))
    assert [array.tobytes() for array in merged] == [array.tobytes() for array in actual]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    kind=KINDS,
    k=st.sampled_from([1, 30, 1_000]),
    parts=st.sampled_from([1, 3]),
    tile=st.sampled_from([3 * 4 * 128, 2**20]),
)
def test_the_search_in_torch_has_the_same_bytes(
    small_tiles: None, precision: str, seed: int, kind: str, k: int, parts: int, tile: int
) -> None:
    rng = np.random.default_rng(seed)
    queries, documents = vectors(rng, 5, kind), vectors(rng, 900, kind)
    ties, exclude = rng.permutation(900), rng.integers(-1, 900, 5)
    expected = top_k(queries, documents, k, ties, exclude)
    order = TieOrder.of(ties)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_search, "TILE_BYTES", tile)
        patch.setattr(device_search, "quick_precision", lambda device: precision)
        walk = device_search.TorchScan(
            queries=queries,
            k=min(k, 900),
            order=order,
            exclude=exclude,
            device=torch.device("cpu"),
            documents=-(-900 // parts),
        )
        for positions in (np.arange(250, 900), np.arange(250)[::-1].copy()):
            walk.add(positions, documents[positions])
        actual = order.read(walk.keys())
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]


@pytest.mark.parametrize("kind", ["plain", "norms", "huge", "tiny"])
def test_few_pairs_are_scored_in_torch_with_the_same_bytes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    queries, documents = vectors(rng, 20, kind), vectors(rng, 300, kind)
    rows = rng.integers(0, 20, 999), rng.integers(0, 300, 999)
    with monkeypatch.context() as patch:
        patch.setattr(arithmetic, "_score_pairs", None)
        few = pair_scores(queries, documents, *rows)
    monkeypatch.setattr(arithmetic, "FEW_PAIRS", 998)
    many = pair_scores(queries, documents, *rows)
    assert few.dtype == many.dtype
    assert few.tobytes() == many.tobytes()


def test_scores_are_dot_products_rounded_once() -> None:
    rng = np.random.default_rng(5)
    for width in (1, 7, 8, 63, 384, 1_024):
        queries, documents = (rng.standard_normal((20, width)).astype(np.float32) for _ in range(2))
        scores = pair_scores(queries, documents, np.arange(20), np.arange(20))
        true = [
            math.fsum(float(a) * float(b) for a, b in zip(q, d, strict=True))
            for q, d in zip(queries, documents, strict=True)
        ]
        np.testing.assert_array_equal(scores, np.array(true, np.float32))


def test_equal_scores_are_ordered_by_descending_id() -> None:
    _, ranking = top_k(np.ones((1, 1), np.float32), np.ones((3, 1), np.float32), 3, tie_order(["b", "c", "a"]))
    assert ranking.tolist() == [[1, 0, 2]]


def test_zero_and_minus_zero_are_equal() -> None:
    documents = np.array([[-1e-30], [1e-30], [0.0], [-0.0]], np.float32)
    scores, ranking = top_k(np.full((1, 1), 1e-30, np.float32), documents, 4, np.array([3, 2, 1, 0]))
    assert ranking.tolist() == [[3, 2, 1, 0]]
    assert not np.signbit(scores).any()


def test_scores_beyond_float32_are_infinite_and_still_found() -> None:
    documents = np.array([[1e30], [-1e30], [-1e30], [1.0]], np.float32)
    scores, ranking = top_k(np.full((1, 1), 1e30, np.float32), documents, 4, np.arange(4))
    assert ranking.tolist() == [[0, 3, 1, 2]]
    assert scores.tolist() == [[np.inf, np.float32(1e30), -np.inf, -np.inf]]


def test_sums_that_overflow_before_a_finite_score_do_not_mislead(small_tiles: None) -> None:
    """The last 200 documents have the best scores, but their sums begin with numbers beyond float32."""
    documents = np.zeros((400, 16), np.float32)
    documents[:200, 0] = 1e17
    documents[200:] = np.repeat(np.array([-1e20, 1e20], np.float32), 8)
    documents[200:, 15] += np.float32(1e18)
    queries = np.full((1, 16), 1e20, np.float32)
    scores, ranking = top_k_of_blocks(queries, [(0, documents[:200]), (200, documents[200:])], 3, np.arange(400))
    assert ranking.tolist() == [[200, 201, 202]]
    assert np.isfinite(scores).all()


def test_an_excluded_document_leaves_the_last_column_empty() -> None:
    documents = np.arange(3, dtype=np.float32)[:, None]
    scores, ranking = top_k(np.ones((2, 1), np.float32), documents, 3, np.arange(3), np.array([2, -1]))
    assert ranking.tolist() == [[1, 0, -1], [2, 1, 0]]
    assert scores.tolist() == [[1, 0, -np.inf], [2, 1, 0]]


def test_empty_queries_and_corpora() -> None:
    none, one = np.empty((0, 4), np.float32), np.ones((1, 4), np.float32)
    assert top_k(one, none, 5, np.arange(0))[1].shape == (1, 0)
    assert top_k(none, one, 5, np.arange(1))[1].shape == (0, 1)
    assert top_k_of_blocks(one, [], 1, np.arange(3))[1].tolist() == [[-1]]


def assert_refused(search: Callable[[], object], kind: type[Exception], *words: str) -> None:
    with pytest.raises(kind) as caught:
        search()
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_embedding_that_is_not_finite_is_refused_with_its_position(small_tiles: None, bad: float) -> None:
    queries, documents = np.ones((5, 4), np.float32), np.ones((700, 4), np.float32)
    documents[613, 2] = bad
    assert_refused(lambda: top_k(queries, documents, 3, np.arange(700)), ModelError, "document 613 is not finite")
    queries[4, 0] = bad
    assert_refused(lambda: top_k(queries, documents, 3, np.arange(700)), ModelError, "query 4 is not finite")


def test_user_errors_are_one_line() -> None:
    queries, documents = np.ones((1, 4), np.float32), np.ones((5, 4), np.float32)
    assert_refused(lambda: top_k(queries, documents, 0, np.arange(5)), ConfigError, "k = 0")
    assert_refused(lambda: top_k(queries, documents[:, :3], 1, np.arange(5)), ModelError, "(5, 3)", "width 4")
    with pytest.raises(ValueError, match="documents 3 to 7 of 5"):
        top_k_of_blocks(queries, [(3, documents)], 1, np.arange(5))


FORK = """
import os, sys
import numpy as np
from raytriever.errors import ConfigError
from raytriever.index.exact.search import top_k
one = np.ones((1, 4), np.float32)
search = lambda: top_k(one, one, 1, np.arange(1))
def in_child():
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        search()
    except ConfigError as error:
        os._exit(3 if "spawn" in str(error) else 4)
    os._exit(0)
assert in_child() == 0  # no search yet
search()
assert in_child() == 3
"""


@pytest.mark.slow
def test_a_process_forked_after_a_search_is_refused() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=100)
