"""Approximate indexes: scores and order of an exact search, blocks that fill them, files, and user errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray
from synthetic import control

from indexes import write_index
from raytriever.core.errors import ConfigError, ModelError, StorageError
from raytriever.core.reading.arrays import read_array
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.retrieval.index.approximate import build_index as build_module
from raytriever.retrieval.index.approximate.ann_index import AnnIndex, ApproximateIndex, recall
from raytriever.retrieval.index.approximate.build_index import build_index, fill
from raytriever.retrieval.index.approximate.faiss_indexes import FILE, Hnsw, Ivf, default_code_bytes, faiss
from raytriever.retrieval.index.approximate.index_settings import INDEXES, IndexConfig
from raytriever.retrieval.index.approximate.stored_index import read_index, write_embeddings
from raytriever.retrieval.index.exact_top_k import top_k
from raytriever.retrieval.index.pair_scores import check_finite

SET = control(1_200, 40, dim=24, rank=8, common=4, own=2)
CONFIGS = {kind: IndexConfig(index=kind, m=16, ef_construction=60, nearest=20) for kind in INDEXES}
CONFIGS["ivfpq"] = IndexConfig(index="ivfpq", lists=8, code_bytes=12)
TIES = np.arange(1_200)[::-1].copy()
# Above it at a search size of 40; a code of 12 bytes is coarse.
FOUND = {"flat": 1.0, "ivf": 0.95, "ivfpq": 0.7, "hnsw": 0.9, "vamana": 0.9, "roargraph": 0.95}


@cache
def build(kind: str, threads: int) -> AnnIndex:
    return build_index(SET.documents, CONFIGS[kind], SET.training, 3, threads).ann_index


def index_of(ann_index: AnnIndex, search_size: int = 40) -> ApproximateIndex:
    return ApproximateIndex(ann_index, SET.documents, TIES, search_size)


def exact(queries: ndarray, k: int) -> tuple[ndarray, ndarray]:
    return top_k(queries, SET.documents, k, TIES)


@pytest.mark.parametrize("kind", INDEXES)
def test_results_are_scored_and_ordered_as_in_exact_search(kind: str, tmp_path: Path) -> None:
    queries = np.concatenate([SET.shifted, SET.unshifted])
    index = index_of(build(kind, 1))
    scores, ranking = index.search(queries, 10)
    true_scores, true = exact(queries, 10)
    assert recall(ranking, true).mean() >= FOUND[kind]
    whole = (ranking == true).all(1)
    assert whole.mean() > 0.2
    assert scores[whole].tobytes() == true_scores[whole].tobytes()
    assert (np.diff(scores) <= 0).all()
    write_index(tmp_path / "index", index, kind, {})
    again = read_index(tmp_path / "index")
    assert again.search_size == 40
    assert [array.tobytes() for array in again.search(queries, 10)] == [scores.tobytes(), ranking.tobytes()]


def test_embeddings_of_an_index_are_written_and_mapped(tmp_path: Path) -> None:
    first = SET.documents[:300]
    written = write_embeddings(tmp_path, iter([first[:200], first[200:]]), first.shape)
    index = build_index(written, IndexConfig(index="ivf"), None, 0, 1)
    mapped = index.embeddings
    while isinstance(mapped.base, np.ndarray):
        mapped = mapped.base
    assert isinstance(mapped, np.memmap)
    assert index.embeddings.tobytes() == first.tobytes()
    assert read_array(tmp_path / "embeddings.npy", ["float32"], first.shape, "").tobytes() == first.tobytes()


@pytest.mark.parametrize("kind", ["ivf", "ivfpq", "hnsw", "roargraph"])
def test_more_effort_scores_more_candidates(kind: str) -> None:
    ann_index = build(kind, 1)
    few, many = (ann_index.find(SET.shifted, 5, search_size, 1).candidates for search_size in (1, 30))
    assert 0 < few < many <= 1_200 + 8 * 30


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("kind", ["ivf", "ivfpq", "hnsw", "vamana", "roargraph"])
def test_a_seed_gives_one_index_for_any_number_of_threads(kind: str) -> None:
    again = build(kind, 1 if kind == "hnsw" else 2)  # FAISS inserts into HNSW as threads come
    one, two = (ann_index.find(SET.shifted, 10, 3, threads) for threads, ann_index in ((2, build(kind, 1)), (1, again)))
    assert one.rows.tobytes() == two.rows.tobytes()
    assert one.candidates == two.candidates or kind == "vamana"


def test_vectors_are_checked_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raytriever.retrieval.index.pair_scores._CHECKED_ROWS", 2)
    vectors = np.zeros((5, 3), np.float32)
    check_finite(vectors, "document")
    vectors[3, 1] = np.inf
    with pytest.raises(ModelError, match="document 3 is not finite"):
        check_finite(vectors, "document")
    with pytest.raises(ModelError, match="document 70 is not finite"):
        check_finite(vectors, "document", np.arange(40, 90, 10))


def test_an_index_refuses_queries_and_settings_that_do_not_fit() -> None:
    index = index_of(build("flat", 1))
    with pytest.raises(ConfigError, match="k = 0"):
        index.search(SET.shifted, 0)
    with pytest.raises(ModelError, match="dimension 24, but the queries have"):
        index.search(SET.shifted[:, :3], 1)
    with pytest.raises(ModelError, match="query 2 is not finite"):
        index.search(np.where(np.arange(40)[:, None] == 2, np.float32(np.nan), SET.shifted), 1)
    with pytest.raises(ConfigError, match=r"lists: 2,000 lists exceed 1,200 documents"):
        Ivf.trained(SET.documents, 2_000, None, 0, 1)
    with pytest.raises(ConfigError, match=r"code_bytes: 5 does not divide the dimension 24; choose from 1, 2, 3, 4"):
        Ivf.trained(SET.documents, None, 5, 0, 1)
    with pytest.raises(ConfigError, match="at least 256 documents, but there are only 100"):
        Ivf.trained(SET.documents[:100], None, 4, 0, 1)
    assert [default_code_bytes(dim) for dim in (384, 128, 24, 7, 1)] == [96, 32, 6, 1, 1]


def test_a_changed_file_is_refused_before_a_library_reads_it(tmp_path: Path) -> None:
    write_index(tmp_path / "index", index_of(build("hnsw", 1)), "hnsw", {})
    file = tmp_path / "index" / "ann_index" / "index.faiss"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError, match=r"index.faiss: has changed: its SHA-256 is not the manifest's"):
        read_index(tmp_path / "index")


# Codes of a byte are learnt from at least 256 documents.
SIZES = [(kind, count) for kind in INDEXES for count in (1, 2, 7, 300) if kind != "ivfpq" or count >= 256]


@pytest.mark.fast_every(12)
@pytest.mark.parametrize(("kind", "count"), SIZES)
@pytest.mark.parametrize("content", ["distinct", "copies", "equal"])
def test_a_document_is_returned_once_for_any_k(kind: str, content: str, count: int) -> None:
    rng = np.random.default_rng(count)
    documents = rng.standard_normal((count, 8)).astype(np.float32)
    if content != "distinct":
        documents = documents[rng.integers(0, 3 if content == "copies" else 1, count) % count]
    queries, ties = rng.standard_normal((20, 8)).astype(np.float32), rng.permutation(count)
    config = IndexConfig(index=kind, m=4, ef_construction=10, nearest=5, code_bytes=4)
    built = build_index(documents, config, queries, 3, 1, ties)
    for search_size in (1, 50):
        index = replace(built, search_size=search_size)
        for k in sorted({1, max(1, count // 3), max(1, count - 1), count, count + 1, 3 * count}):
            scores, ranking = index.search(queries, k)
            true_scores, true = top_k(queries, documents, k, ties)
            if 2 * k >= count:
                assert (ranking.tobytes(), scores.tobytes()) == (true.tobytes(), true_scores.tobytes())
            assert ranking.shape == true.shape
            assert ((ranking >= -1) & (ranking < count)).all()
            all_scores, all_found = top_k(queries, documents, count, ties)
            score_of = np.full((20, count), -np.inf, np.float32)
            rows, places = np.nonzero(all_found >= 0)
            score_of[rows, all_found[rows, places]] = all_scores[rows, places]
            for row in range(20):
                here = ranking[row][ranking[row] >= 0]
                assert len(set(here)) == len(here)
                assert (ranking[row, : len(here)] >= 0).all()
                assert (scores[row, : len(here)] == score_of[row, here]).all()
                assert (scores[row, len(here) :] == -np.inf).all()
                keys = list(zip(-scores[row, : len(here)], ties[here], strict=True))
                assert keys == sorted(keys)


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
    monkeypatch.setattr(build_module, "BLOCK", BLOCK)
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


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An HNSW index of 60 documents of dimension 8."""
    rows = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    write_index(tmp_path / "made", build_index(rows, IndexConfig(index="hnsw"), None, 0, 1), "hnsw", {})
    return tmp_path / "made"


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "rows": (
        lambda p: np.save(p / "embeddings.npy", np.zeros((59, 8), np.float32)),
        "has the shape 59 x 8, expected 60",
    ),
    "ties": (lambda p: np.save(p / "ties.npy", np.full(60, -1)), "ties.npy: holds a rank that is not from 0 to 59"),
}


def seal(folder: Path, to: Path, change: Callable[[Path], None], **meta: object) -> Path:
    with committed_directory(to, {**read_manifest(folder)["meta"], **meta}) as aside:
        shutil.copytree(folder, aside, dirs_exist_ok=True, ignore=lambda *_: ["manifest.json"])
        change(aside)
    return to


@pytest.mark.parametrize("name", CHANGES)
def test_arrays_that_do_not_fit_end_in_one_line(made: Path, tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    with pytest.raises(StorageError, match=rf"{message}.*; build the index again$"):
        read_index(seal(made, tmp_path / "index", change))


def test_an_ann_index_of_other_embeddings_ends_in_one_line(made: Path, tmp_path: Path) -> None:
    def shorten(folder: Path) -> None:
        for name in ("embeddings", "ties"):
            np.save(folder / f"{name}.npy", np.load(folder / f"{name}.npy")[:40] % 40)

    with pytest.raises(
        StorageError, match=r"ann_index.*: holds 60 vectors of dimension 8, not 40 of dimension 8; build the"
    ):
        read_index(seal(made, tmp_path / "index", shorten, rows=40))


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"rows": "many"}, "'rows' is a text, expected a whole number"),
        ({"search_size": None}, "'search_size' is null, expected a whole number"),
        ({"index": ["hnsw"]}, "is not an index"),
    ],
)
def test_a_manifest_of_another_form_ends_in_one_line(
    made: Path, tmp_path: Path, meta: dict[str, object], message: str
) -> None:
    with pytest.raises(StorageError, match=message):
        read_index(seal(made, tmp_path / "index", lambda folder: None, **meta))
