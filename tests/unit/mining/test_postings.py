"""Postings of BM25: equal to those of bm25s, in memory and in the cache."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import bm25s
import numpy as np
import pytest
import Stemmer

from raytriever.data.dataset import Documents
from raytriever.errors import DataError
from raytriever.mining import bm25
from raytriever.mining.analyser import ENGLISH_ANALYSER
from raytriever.mining.bm25 import K1, B, Bm25Index, Postings, PostingsBlock
from raytriever.store.parts import Parts

ODD = [
    "",
    "the of",
    "Ünïcode ÜNÏCODE naïve",
    "x_1 x_1 42 4",
    "日本語のテキスト",
    "runs running ran runner",
    "don't can't",
]


def draw_texts(count: int) -> list[str]:
    rng = np.random.default_rng(5)
    words = np.array([f"word{number}" for number in range(400)] + ["the", "and", "runs", "running"])
    shares = 1 / np.arange(1, len(words) + 1)
    lengths = rng.integers(0, 60, count)
    return [" ".join(rng.choice(words, length, p=shares / shares.sum())) for length in lengths] + ODD


def weights_of(index: Postings) -> dict[tuple[str, int], float]:
    return {
        (term, int(index.documents[posting])): float(index.weights[posting])
        for term, number in index.vocabulary.items()
        for posting in range(index.starts[number], index.starts[number + 1])
    }


def test_weights_equal_those_of_bm25s_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = draw_texts(500)
    tokens = bm25s.tokenize(texts, stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False)
    expected = bm25s.BM25(k1=K1, b=B)
    expected.index(tokens, show_progress=False)
    data, documents, starts = (expected.scores[name] for name in ("data", "indices", "indptr"))
    weights = {
        (term, int(documents[posting])): float(data[posting])
        for term, number in tokens.vocab.items()
        if number + 1 < len(starts)
        for posting in range(starts[number], starts[number + 1])
    }
    assert weights_of(Postings.of(texts)) == weights
    monkeypatch.setattr(bm25, "BLOCK", 60)
    in_blocks = Postings.of(texts)
    assert weights_of(in_blocks) == weights
    for start, end in zip(in_blocks.starts, in_blocks.starts[1:], strict=False):
        assert (np.diff(in_blocks.documents[start:end].astype(np.int64)) > 0).all()


def test_terms_of_a_block_are_those_of_the_analyser() -> None:
    texts = draw_texts(40)
    block = PostingsBlock.of(texts)
    assert block.lengths.tolist() == [len(words) for words in ENGLISH_ANALYSER.analyse(texts)]
    assert block.terms == sorted({word for words in ENGLISH_ANALYSER.analyse(texts) for word in words})
    assert PostingsBlock.of(["", "the"]).terms == []


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Documents:
    """Corpus of five blocks that is too large for the memory."""
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    monkeypatch.setattr(bm25, "BLOCK", 30)
    monkeypatch.setattr(bm25, "IN_MEMORY", 100)
    texts = draw_texts(130)
    return Documents([str(row) for row in range(len(texts))], [""] * len(texts), texts)


def test_a_large_corpus_is_indexed_in_the_cache_once(corpus: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    index, in_memory = Bm25Index.of(corpus), Bm25Index(corpus.texts)
    assert isinstance(index._postings.documents.base, np.memmap)
    queries = ["word1 word2 word3", "runner word399 word7", "nothing"]
    for one, other in zip(index.search(queries, 40), in_memory.search(queries, 40), strict=True):
        assert (one == other).all()
    assert (index.scores(queries[0]) == in_memory.scores(queries[0])).all()
    monkeypatch.setattr(bm25, "_make", None)
    assert (Bm25Index.of(corpus).search(queries, 40)[1] == index.search(queries, 40)[1]).all()


def test_an_index_of_english_keeps_its_name_and_other_languages_have_their_own(
    corpus: Documents, tmp_path: Path
) -> None:
    Bm25Index.of(corpus)
    [english] = (tmp_path / "bm25").iterdir()
    terms = "two or more letters, digits or underscores, in lower case"
    analyser = {"terms": terms, "stop_words": "English", "stemmer": "Snowball, English"}  # as in version 0.2
    versions = [version(package) for package in ("bm25s", "PyStemmer")]
    content = json.dumps([1, corpus.digest, analyser, 0.9, 0.4, versions])
    assert english.name == hashlib.sha256(content.encode()).hexdigest()[:16]
    Bm25Index.of(replace(corpus, bm25_language="it"))
    assert len(list((tmp_path / "bm25").iterdir())) == 2


def test_a_killed_command_costs_its_unfinished_blocks(corpus: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write = bm25._in_processes

    def record(parts, blocks, analyser):  # type: ignore[no-untyped-def]
        chosen = list(blocks)
        written.extend(parts.folder / name for name, _ in chosen)
        return write(parts, chosen, analyser)

    monkeypatch.setattr(bm25, "_in_processes", record)
    with monkeypatch.context() as patch:
        patch.setattr(bm25, "merge", None)
        with pytest.raises(TypeError):
            Bm25Index.of(corpus)
    assert [folder.name for folder in written] == ["000000", "000001", "000002", "000003", "000004"]
    (written[3] / "rows.npy").unlink()
    written.clear()
    assert len(Bm25Index.of(corpus)) == len(corpus)
    assert [folder.name for folder in written] == ["000003"]
    assert [path.name for path in written[0].parent.parent.iterdir() if path.name.endswith("-blocks")] == []


class Deadly:
    """Object that ends the process that receives it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (1,)


def test_a_process_that_dies_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a process died while it analysed documents for BM25; free memory"):
        list(bm25._in_processes(Parts(tmp_path), [("block", [Deadly()])], ENGLISH_ANALYSER))  # type: ignore[list-item]
