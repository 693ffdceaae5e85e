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

from raytriever.core.errors import ConfigError, ModelError
from raytriever.retrieval.index import exact_top_k
from raytriever.retrieval.index.exact_top_k import Corpus, tie_order, top_k, top_k_of_blocks
from raytriever.retrieval.index.pair_scores import pair_scores
from raytriever.retrieval.index.rank_keys import TieOrder, merge_keys

KINDS = st.sampled_from(["plain", "ties", "alike", "copies", "norms", "huge", "tiny", "bf16"])


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small tiles and blocks, so that small cases need several of them."""
    for name in ("TILE_BYTES", "SCORE_BYTES"):
        monkeypatch.setattr(exact_top_k, name, 3 * 4 * 128)
    monkeypatch.setattr(exact_top_k, "MORE", 2)
    monkeypatch.setattr(exact_top_k, "FEWEST_ROWS", 96)


def everything(queries: ndarray, documents: ndarray, k: int, ties: ndarray) -> tuple[ndarray, ndarray]:
    """Score every pair exactly, and sort every row."""
    scores = np.array([[true_score(query, document) for document in documents] for query in queries], np.float32)
    order = np.array([np.lexsort((ties, -row))[:k] for row in scores])
    return np.take_along_axis(scores, order, 1), order


def true_score(query: ndarray, document: ndarray) -> np.float32:
    """Return the dot product, rounded to float64 and then to float32."""
    with np.errstate(over="ignore"):
        return np.float32(math.fsum((query.astype(np.float64) * document).tolist())) + np.float32(0)


def vectors(rng: np.random.Generator, count: int, kind: str, dim: int = 12) -> ndarray:
    """Return embeddings whose order is hard to compute, for reasons that depend on `kind`."""
    if kind == "ties":
        return rng.integers(-1, 2, (count, dim)).astype(np.float32)
    values = rng.standard_normal((count, dim)).astype(np.float32)
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
    elif kind == "near":
        values = 1 + values * 2e-3
    elif kind == "bf16":
        values = torch.from_numpy(values).bfloat16().float().numpy()
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
)
def test_any_blocks_give_the_bytes_of_sorting_all_documents(
    small_tiles: None, seed: int, kind: str, size: int, k: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    queries, documents = vectors(rng, 7, kind), vectors(rng, size, kind)
    ties = rng.permutation(size)
    pieces = list(cut(rng, documents, count))
    actual = top_k_of_blocks(queries, pieces, k, ties)
    for value, other in zip(actual, everything(queries, documents, k, ties), strict=True):
        assert value.dtype == other.dtype
        np.testing.assert_array_equal(value, other)
    order = TieOrder.of(ties)
    shards = [Corpus(lambda shard=shard: pieces[shard::3], order).keys(queries, k) for shard in (2, 0, 1)]  # type: ignore[misc]
    merged = order.read(merge_keys(shards, min(k, size)))
    assert [array.tobytes() for array in merged] == [array.tobytes() for array in actual]


@pytest.mark.parametrize(("kind", "autocast"), [("near", False), ("near", True), ("bf16", True)])
def test_a_caller_that_allows_tf32_or_autocast_changes_no_byte(kind: str, autocast: bool) -> None:
    rng = np.random.default_rng(4)
    queries, documents = vectors(rng, 5, kind), vectors(rng, 3_000, kind)
    expected = top_k(queries, documents, 9, np.arange(3_000), torch.device("cpu"))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # bf16 on a CPU that has it
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            actual = top_k(queries, documents, 9, np.arange(3_000), torch.device("cpu"))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]
    for value, other in zip(actual, everything(queries, documents, 9, np.arange(3_000)), strict=True):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize("kind", ["plain", "ties", "huge", "copies"])
def test_threads_that_search_for_some_queries_each_change_no_byte(small_tiles: None, kind: str) -> None:
    rng, before = np.random.default_rng(4), torch.get_num_threads()
    queries, documents, ties = vectors(rng, 70, kind), vectors(rng, 500, kind), rng.permutation(500)
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(top_k(queries, documents, 20, ties))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert [array.tobytes() for array in results[0]] == [array.tobytes() for array in results[1]]


def test_20_000_equal_rows_are_ordered_by_their_ties() -> None:
    rng = np.random.default_rng(6)
    documents = np.repeat(vectors(rng, 2, "plain"), [20_000, 50], axis=0)
    ties, query = rng.permutation(len(documents)), documents[:1]
    scores, ranking = top_k(query, documents, 1_000, ties)
    others = np.flatnonzero(documents @ query[0] > documents[0] @ query[0])
    equal = np.argsort(ties[:20_000])
    expected = np.concatenate([others[np.argsort(ties[others])], equal])[:1_000]
    assert ranking.tolist() == [expected.tolist()]
    assert len(np.unique(scores)) <= 2


KINDS_AND_DIMS = [
    ("plain", 1),
    ("plain", 7),
    ("plain", 63),
    ("plain", 1_024),
    ("norms", 12),
    ("huge", 12),
    ("tiny", 12),
]


@pytest.mark.parametrize(("kind", "dim"), KINDS_AND_DIMS)
def test_pairs_have_the_bytes_of_exact_sums(kind: str, dim: int) -> None:
    rng = np.random.default_rng(2)
    queries, documents = vectors(rng, 20, kind, dim), vectors(rng, 300, kind, dim)
    of, to = rng.integers(0, 20, 999), rng.integers(0, 300, 999)
    scores = pair_scores(queries, documents, of, to)
    expected = np.array([true_score(queries[q], documents[d]) for q, d in zip(of, to, strict=True)])
    assert scores.dtype == expected.dtype
    assert scores.tobytes() == expected.tobytes()


def test_equal_scores_are_ordered_by_descending_id() -> None:
    _, ranking = top_k(np.ones((1, 1), np.float32), np.ones((3, 1), np.float32), 3, tie_order(["b", "c", "a"]))
    assert ranking.tolist() == [[1, 0, 2]]


# The last 200 documents have the best scores, but their sums begin with numbers beyond float32.
OVERFLOWING = np.zeros((400, 16))
OVERFLOWING[:200, 0] = 1e17
OVERFLOWING[200:] = np.repeat([-1e20, 1e20], 8)
OVERFLOWING[200:, 15] += 1e18
HOSTILE = {
    "zero and minus zero": ([[1e-30]], [[-1e-30], [1e-30], [0.0], [-0.0]]),
    "scores beyond float32": ([[1e30]], [[1e30], [-1e30], [-1e30], [1.0]]),
    "sums that overflow before a finite score": (np.full((1, 16), 1e20), OVERFLOWING),
    # These lie next to the middle of two float32 numbers, nearer than float64's sums of these numbers resolve.
    "rounded by float64": (np.ones((1, 5)), [[1, 2.0**-24, 2.0**-70, big, -big] for big in (0, 2.0**30, 2.0**60)]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_numbers_have_the_bytes_of_exact_sums(small_tiles: None, kind: str) -> None:
    queries, documents = (np.array(values, np.float32) for values in HOSTILE[kind])
    rows = np.arange(len(documents))
    blocks = [(0, documents[: len(rows) // 2]), (len(rows) // 2, documents[len(rows) // 2 :])]
    actual, expected = top_k_of_blocks(queries, blocks, 4, rows[::-1]), everything(queries, documents, 4, rows[::-1])
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]
    scores = pair_scores(queries, documents, np.zeros_like(rows), rows)
    assert scores.tolist() == [true_score(queries[0], document) for document in documents]


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
    assert_refused(lambda: top_k(queries, documents[:, :3], 1, np.arange(5)), ModelError, "(5, 3)", "dimension 4")
    with pytest.raises(ValueError, match="documents 3 to 7, but there are 5"):
        top_k_of_blocks(queries, [(3, documents)], 1, np.arange(5))


FORK = """
import os, sys
import numpy as np
from raytriever.core.errors import ConfigError
from raytriever.retrieval.index.exact_top_k import top_k
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
