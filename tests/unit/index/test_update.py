"""Indexes of a changed corpus: documents are added and hidden, and searches find what is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from raytriever.cli.main import run
from raytriever.index.approximate.build import DocumentVectors, build_index, update_index
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.faiss_finders import Hnsw
from raytriever.index.approximate.index import recall
from raytriever.index.approximate.store import read_index, read_meta
from raytriever.index.exact.search import top_k
from raytriever.search.approximate import bytes_of_finder
from raytriever.store import capacity

sys.path.append(str(Path(__file__).parents[2] / "support"))
from indexes import write_index

ROWS, WIDTH = 1_000, 16


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
    reserve, are_mapped = Hnsw.reserve, []

    def recorded(self: Hnsw, count: int) -> Hnsw:
        are_mapped.append(not self.index.hnsw.neighbors.is_owned)
        return reserve(self, count)

    with monkeypatch.context() as patch:
        patch.setattr(Hnsw, "reserve", recorded)
        output = index(changed)
    assert are_mapped == [True]  # the graph was left in its file until there was room for all
    assert "hnsw over 59 passages of width 32, updated in" in output
    assert "corpus: 1 passages were added to the index, and 2 removed" in output
    assert "new is newest" in output
    assert "opened" in index(changed)
    assert read_meta(Path("index"))["built"] == 60
    assert "hnsw over 20 passages of width 32, built in" in index(texts[:20])
    assert read_meta(Path("index"))["built"] == 20
    assert "holds another index" in index(texts, "--index", "ivf")
    assert "holds another index" in index(texts, "--passage-length", "9")
