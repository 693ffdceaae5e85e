"""Exact search of a store of embeddings."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from raytriever.encoding.store import EmbeddingStore
from raytriever.encoding.writer import EmbeddingPlan, StoreWriter
from raytriever.errors import ModelError, StorageError
from raytriever.index.exact.search import top_k
from raytriever.search.exact import search_store
from raytriever.store import parts

ROWS, WIDTH, SHARD_ROWS = 100, 8, 16


def write_store(folder: Path, embeddings: ndarray, left_out: dict[int, str], dtype: str = "fp32") -> EmbeddingStore:
    """A store as encoding makes it."""
    plan = EmbeddingPlan(
        model="m", model_digest="", dataset="d", data_digest="", side="passage", prefix="", length=8, pooling="mean",
        similarity="dot", precision="fp32", dtype=dtype, rows=len(embeddings), width=WIDTH, shard_rows=SHARD_ROWS,
    )  # fmt: skip
    work = StoreWriter(folder, plan)
    work.begin()
    for number in range(plan.shards):
        rows = plan.rows_of(number)
        work.write(number, embeddings[rows.start : rows.stop], {row: left_out[row] for row in rows if row in left_out})
    return work.finish("d", [""] * len(embeddings))


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_results_equal_those_of_the_array_without_rows_that_have_no_embedding(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    queries, embeddings = (rng.standard_normal((count, WIDTH)).astype(np.float32) for count in (5, ROWS))
    left_out = {0: "x", 17: "x", 31: "x", 99: "x"}
    embeddings[list(left_out)] = 0
    store = write_store(tmp_path / "store", embeddings, left_out, dtype)
    ties = rng.permutation(ROWS)
    scores, ranking = search_store(store, queries, ROWS, ties)
    assert (ranking[:, -4:] == -1).all()
    expected = top_k(queries, store.array(), ROWS, ties)
    for query in range(5):
        is_kept = ~np.isin(expected[1][query], list(left_out))
        np.testing.assert_array_equal(ranking[query, :-4], expected[1][query][is_kept])
        np.testing.assert_array_equal(scores[query, :-4], expected[0][query][is_kept])


def test_queries_and_ties_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", np.ones((ROWS, WIDTH), np.float32), {})
    with pytest.raises(ModelError, match=r"store: holds embeddings of 100 documents, but the data set has 7; encode"):
        search_store(store, np.ones((1, WIDTH), np.float32), 3, np.arange(7))
    with pytest.raises(ModelError, match=r"width 8, but the queries have 4"):
        search_store(store, np.ones((1, 4), np.float32), 3, np.arange(ROWS))


class Killed(BaseException):
    """As sudden as a signal."""


def kill_at(shard: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kill a search when it reads a shard, and return the list of the shards that it reads."""
    read, reads = EmbeddingStore.shard, []

    def shard_of(store: EmbeddingStore, number: int) -> ndarray:
        if number == shard:
            raise Killed
        reads.append(number)
        return read(store, number)

    monkeypatch.setattr(EmbeddingStore, "shard", shard_of)
    return reads


@pytest.fixture
def kept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the ranking after every shard."""
    monkeypatch.setattr(parts, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(parts, "MOST_SHARE", 1e9)


@pytest.mark.usefixtures("kept_often")
def test_a_search_that_was_killed_continues_after_its_last_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    queries, embeddings = (rng.standard_normal((count, WIDTH)).astype(np.float32) for count in (5, ROWS))
    store = write_store(tmp_path / "store", embeddings, {})
    ties, exclude, folder = rng.permutation(ROWS), np.array([3, -1, 50, 99, 7]), tmp_path / "unfinished"
    expected = search_store(store, queries, 20, ties, exclude)
    with monkeypatch.context() as patch:
        kill_at(4, patch)
        with pytest.raises(Killed):
            search_store(store, queries, 20, ties, exclude, folder)
    reads = kill_at(-1, monkeypatch)
    for other in ((queries + 1, 20, ties, exclude), (queries, 19, ties, exclude), (queries, 20, ties, None)):
        search_store(store, *other, folder)  # which it must not take for its own
        assert reads == list(range(7))
        reads.clear()
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    [file] = damaged.glob("search-*/ranking.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    for kept, read_again in ((folder, [4, 5, 6]), (damaged, list(range(7)))):
        actual = search_store(store, queries, 20, ties, exclude, kept)
        assert reads == read_again
        reads.clear()
        for one, wanted in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, wanted)
        assert not list(kept.iterdir())


@pytest.mark.usefixtures("kept_often")
def test_a_search_whose_ranking_cannot_be_kept_says_so_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    embeddings = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)
    store = write_store(tmp_path / "store", embeddings, {})

    def fail(*_: object, **__: object) -> None:
        raise StorageError("no space left on the disk", str(tmp_path))

    monkeypatch.setattr(parts, "committed_directory", fail)
    scores, _ = search_store(store, embeddings[:3], 5, np.arange(ROWS), unfinished=tmp_path / "unfinished")
    np.testing.assert_array_equal(scores, top_k(embeddings[:3], embeddings, 5, np.arange(ROWS))[0])
    assert capsys.readouterr().err.count("it starts again") == 1
