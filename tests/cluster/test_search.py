"""Search by actors in a real Ray session."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from encoding_case import write_store
from processes import processes, wait_for

from raytriever.cluster import actor_pool
from raytriever.cluster.actor_pool import ActorPool
from raytriever.core.errors import ConfigError, ModelError
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.search.exact_search import search_store

ROWS, DIM = 6_000, 16
pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> EmbeddingStore:
    """Three shards of embeddings with many ties."""
    embeddings = np.random.default_rng(0).integers(-2, 3, (ROWS, DIM)).astype(np.float32)
    return write_store(tmp_path / "store", embeddings, 2_000)


def questions(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-2, 3, (count, DIM)).astype(np.float32)


@pytest.mark.parametrize(("actors", "k"), [(1, 10), (2, 10), (5, 5_000)])
def test_results_equal_the_local_search_byte_by_byte(
    session: None, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch, actors: int, k: int
) -> None:
    monkeypatch.setattr(actor_pool, "RESULT_BYTES", 8 * k * 30)  # four batches of queries
    rng = np.random.default_rng(2)
    ties = rng.permutation(ROWS)
    actual = ActorPool(actors, actors).search(store, questions(100), k, ties)
    expected = search_store(store, questions(100), k, ties)
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]


def searchers() -> list[int]:
    return processes("ray::PoolActor", lambda pid: Path(f"/proc/{pid}").stat().st_uid == os.getuid())


def test_an_actor_killed_in_the_middle_changes_no_byte(
    session: None, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_pool, "RESULT_BYTES", 8 * 50 * 2)  # batches of two queries
    expected = search_store(store, questions(300), 50, np.arange(ROWS))
    answered, killed = threading.Event(), []
    following = actor_pool._next

    def next_result(waiting: dict[object, slice]) -> tuple[slice, np.ndarray]:
        actual = following(waiting)
        answered.set()
        return actual

    def kill_one() -> None:
        answered.wait()
        killed.append(searchers()[0])
        os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(actor_pool, "_next", next_result)
    thread = threading.Thread(target=kill_one)
    thread.start()
    actual = ActorPool(2, 2).search(store, questions(300), 50, np.arange(ROWS))
    thread.join()
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]
    wait_for(lambda: not searchers())


def test_an_actor_that_always_dies_is_a_user_error(
    session: None, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def kill_all() -> None:
        while not ended.wait(0.05):
            for process in searchers():
                os.kill(process, signal.SIGKILL)

    thread = threading.Thread(target=kill_all)
    thread.start()
    try:
        with pytest.raises(ConfigError, match="a search actor died 4 times; its shards") as caught:
            ActorPool(1, 1).search(store, questions(3), 50, np.arange(ROWS))
    finally:
        ended.set()
        thread.join()
    assert "\n" not in str(caught.value)


def test_a_user_error_in_an_actor_is_one_line(session: None, store: EmbeddingStore) -> None:
    queries = questions(3)
    queries[1, 2] = np.nan
    with pytest.raises(ModelError, match="query 1 is not finite") as caught:
        ActorPool(2, 2).search(store, queries, 5, np.arange(ROWS))
    assert "\n" not in str(caught.value)


def test_more_actors_than_fit_are_refused_at_once(session: None, store: EmbeddingStore) -> None:
    with pytest.raises(ConfigError, match=r"99 search actors with 2 CPUs each do not fit; use at most 2"):
        ActorPool(99, 99, cpus=2).search(store, questions(3), 5, np.arange(ROWS))
