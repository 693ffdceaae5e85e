"""Indexes of FAISS grow a block at a time, a build that was killed continues, and a changed corpus updates an index."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from indexes import write_index
from raytriever.cli.main import run
from raytriever.index.approximate import build
from raytriever.index.approximate.build import DocumentVectors, build_index, grow, update_index
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.faiss_finders import FILE, Hnsw, Ivf, faiss
from raytriever.index.approximate.index import recall
from raytriever.index.approximate.store import read_index, read_meta
from raytriever.index.exact.search import top_k
from raytriever.search.approximate import bytes_of_finder
from raytriever.store import capacity, parts

ROWS, WIDTH, BLOCK = 1_000, 16, 128


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> ndarray:
    """Rows that are added in eight blocks, each of which is kept."""
    monkeypatch.setattr(build, "BLOCK", BLOCK)
    monkeypatch.setattr(parts, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(parts, "MOST_SHARE", 1e9)
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


KINDS = {
    "ivf": lambda rows: (partial(Ivf.trained, rows, None, None, 3, 1), Ivf.load),
    "ivfpq": lambda rows: (partial(Ivf.trained, rows, None, 4, 3, 1), Ivf.load),
    "hnsw": lambda rows: (lambda *_: Hnsw.empty(WIDTH, 8, 30, 3), partial(Hnsw.load, seed=3, mapped=True)),
}


def content(finder: Ivf | Hnsw, folder: Path) -> bytes:
    folder.mkdir()
    finder.save(folder)
    return (folder / FILE).read_bytes()


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_build_continues_with_the_same_bytes(
    kind: str, rows: ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, load = KINDS[kind](rows)
    whole = content(grow(begin, load, rows, 1), tmp_path / "whole")
    kept = tmp_path / "indexes" / "kept"
    finder = type(begin())
    add, added, left = finder.add, [], [3]

    def counted(self, block, threads):  # type: ignore[no-untyped-def]
        if len(added) == left[0]:
            raise KeyboardInterrupt
        added.append(self.index.ntotal)
        return add(self, block, threads)

    monkeypatch.setattr(finder, "add", counted)
    with pytest.raises(KeyboardInterrupt):
        grow(begin, load, rows, 1, kept)
    assert added == [0, BLOCK, 2 * BLOCK]
    left[0] = -1
    resumed = grow(begin, load, rows, 1, kept)
    assert added == [number * BLOCK for number in range(8)]
    assert content(resumed, tmp_path / "resumed") == whole
    damaged = bytearray((kept / FILE).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (kept / FILE).write_bytes(damaged)
    added.clear()
    assert content(grow(begin, load, rows, 1, kept), tmp_path / "again") == whole
    assert len(added) == 8


@pytest.mark.parametrize("lists", [3, 20])  # some rows are drawn for the few lists
def test_a_killed_kmeans_continues_and_learns_what_faiss_learns(
    lists: int, rows: ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, kept = partial(Ivf.trained, rows, lists, 4, 3, 1), tmp_path / "indexes" / "kept"
    plain = faiss.IndexIVFPQ(faiss.IndexFlatIP(WIDTH), WIDTH, lists, 4, 8, faiss.METRIC_INNER_PRODUCT)
    plain.cp.seed = plain.pq.cp.seed = 3
    plain.cp.min_points_per_centroid = 1
    plain.train(rows)
    train, left = faiss.Clustering.train, [4]

    def trained(self, *arguments):  # type: ignore[no-untyped-def]
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        train(self, *arguments)

    monkeypatch.setattr(faiss.Clustering, "train", trained)
    with pytest.raises(KeyboardInterrupt):
        grow(begin, Ivf.load, rows, 1, kept)
    left[0] = 6
    grown = grow(begin, Ivf.load, rows, 1, kept)
    assert left == [0]
    assert content(grown, tmp_path / "grown") == content(Ivf(plain).add(rows, 1), tmp_path / "plain")


def test_nothing_is_kept_on_a_full_disk_or_of_a_short_build(
    rows: ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, load = KINDS["hnsw"](rows)
    kept = tmp_path / "indexes" / "kept"
    with monkeypatch.context() as patch:
        patch.setattr(capacity, "free_space", lambda folder: 1_000)
        grow(begin, load, rows, 1, kept)
    assert not kept.exists()
    said = capsys.readouterr().err
    assert said.count("if a build is stopped, it starts again") == 1
    assert "1.0 KB is free" in said
    grow(begin, load, rows, 1, tmp_path / "with-room" / "kept")
    assert "it starts again" not in capsys.readouterr().err
    (tmp_path / "file").touch()
    grow(begin, load, rows, 1, tmp_path / "file" / "kept")
    assert "it starts again" in capsys.readouterr().err
    monkeypatch.setattr(parts, "LEAST_SECONDS", 60.0)
    grow(begin, load, rows, 1, kept)
    assert not kept.exists()


def test_memory_that_is_reserved_is_enough_and_changes_nothing(rows: ndarray, tmp_path: Path) -> None:
    reserved = Hnsw.empty(WIDTH, 8, 30, 3).reserve(ROWS)
    assert reserved.index.ntotal == 0
    links = reserved.index.hnsw
    arrays = (links.neighbors, links.levels, links.offsets, faiss.downcast_index(reserved.index.storage).codes)
    before = [int(array.data()) for array in arrays]
    full = reserved.add(rows[:500], 1).add(rows[500:], 1)
    assert [int(array.data()) for array in arrays] == before  # no array has outgrown its memory and was copied
    assert links.neighbors.size() > ROWS * links.nb_neighbors(0)
    plain = Hnsw.empty(WIDTH, 8, 30, 3).add(rows[:500], 1).add(rows[500:], 1)
    assert content(full.reserve(ROWS), tmp_path / "reserved") == content(plain, tmp_path / "plain")


@pytest.mark.parametrize("is_earlier", [False, True], ids=["float16", "float32-of-an-earlier-version"])
def test_a_graph_grows_from_its_file_and_is_in_memory_once(is_earlier: bool, rows: ndarray, tmp_path: Path) -> None:
    first, degree = Hnsw.empty(WIDTH, 8, 30, 3), 8
    if is_earlier:
        first = Hnsw(faiss.IndexHNSWFlat(WIDTH, degree, faiss.METRIC_INNER_PRODUCT), seed=3)
        first.index.hnsw.efConstruction = 30
    first = first.add(rows[:500], 1)
    content(first, tmp_path / "first")
    mapped = Hnsw.load(tmp_path / "first", (500, WIDTH), seed=3, mapped=True)
    large = mapped.index.hnsw.neighbors, faiss.downcast_index(mapped.index.storage).codes
    assert not any(array.is_owned for array in large)
    grown = mapped.reserve(ROWS).add(rows[500:], 1)
    assert grown.bytes == first.add(rows[500:], 1).bytes
    assert content(grown, tmp_path / "grown") == content(first, tmp_path / "whole")
    true = top_k(rows, rows, 10, np.arange(ROWS))[1]
    assert recall(grown.find(rows, 10, 60, 1).rows, true).mean() > 0.9


def test_a_graph_holds_embeddings_beyond_the_range_of_float16(rows: ndarray) -> None:
    queries = np.random.default_rng(1).standard_normal((100, WIDTH)).astype(np.float32)
    large = rows * np.float32(2e4)  # some components are beyond 65,504
    true = top_k(queries, large, 10, np.arange(ROWS))[1]
    found = Hnsw.empty(WIDTH, 8, 30, 3).add(large, 1).find(queries, 10, 60, 1).rows
    assert recall(found, true).mean() > 0.9


def vectors(rows: int, seed: int) -> ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["ivf", "ivfpq", "hnsw"])
def test_an_updated_index_finds_what_is_in_the_corpus(kind: str, tmp_path: Path) -> None:
    first, queries = vectors(ROWS, 0), vectors(50, 1)
    first[7] = first[8]  # two documents of one text
    index = build_index(DocumentVectors.of(first), IndexConfig(index=kind), None, 0, 1)
    # Without 60 documents, in another order, with 90 more.
    stay = np.random.default_rng(2).permutation(ROWS)[:-60]
    assert {7, 8} <= set(stay)
    now = np.concatenate([vectors(40, 3), first[stay], vectors(50, 4)])
    updated = update_index(index, DocumentVectors.of(now), ROWS, 1)
    assert updated is not None
    assert (updated.count, len(updated.documents)) == (len(now), ROWS + 90)
    present = updated.documents >= 0
    assert (updated.embeddings[present] == now[updated.documents[present]]).all()
    assert len(np.unique(updated.documents[present])) == len(now)
    write_index(tmp_path / "index", updated, kind, {})
    true = top_k(queries, now, 10, np.arange(len(now)))
    for one in (updated, read_index(tmp_path / "index")):
        scores, retrieved = one.search(queries, 10)
        assert (retrieved >= 0).all()
        assert recall(retrieved, true[1]).mean() > 0.9
        np.testing.assert_allclose(scores, (queries[:, None] * now[retrieved]).sum(2), atol=1e-6)
    # 60 hidden and 90 added rows, and 51 more, exceed a fifth.
    assert update_index(updated, DocumentVectors.of(now[:-51]), ROWS, 1) is None


def test_other_kinds_are_built_again() -> None:
    rows = DocumentVectors.of(vectors(100, 0))
    assert update_index(build_index(rows, IndexConfig(index="flat"), None, 0, 1), rows, 100, 1) is None


@pytest.mark.slow
def test_the_command_updates_the_index_of_a_data_set_that_has_changed(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    Path("corpus/queries.jsonl").write_text('{"_id": "q", "text": "a"}\n')
    texts = [f"{row:04d} is {row:04d}"[::-1] for row in range(60)]

    def index(texts: list[str], *flags: str) -> str:
        rows = [{"_id": f"d{text}", "title": "", "text": text} for text in texts]
        Path("corpus/corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ["--dataset", "corpus", "--model", str(tiny_encoder), "--output", "index", *flags]
        code = run("index", [*words, "--query", texts[-1], "--top", "1"])
        out, err = capsys.readouterr()
        return str(out) + str(err) if code == 0 else f"{code}: {err}"

    assert "hnsw over 60 passages of width 32, built in" in index(texts)
    changed = [*texts[2:], "new is newest"]
    with monkeypatch.context() as patch:
        needed = bytes_of_finder(IndexConfig(), 59, 32)
        patch.setattr(capacity, "free_system_memory", lambda: needed - 1)
        assert "the structures of the index, and the embeddings that it learns from, need" in index(changed)
    output = index(changed)
    assert "hnsw over 59 passages of width 32, updated in" in output
    assert "corpus: 1 passages were added to the index, and 2 removed" in output
    assert "new is newest" in output
    assert "opened" in index(changed)
    assert read_meta(Path("index"))["built"] == 60
    assert "hnsw over 20 passages of width 32, built in" in index(texts[:20])
    assert read_meta(Path("index"))["built"] == 20
    assert "holds another index" in index(texts, "--index", "ivf")
    assert "holds another index" in index(texts, "--passage-length", "9")
