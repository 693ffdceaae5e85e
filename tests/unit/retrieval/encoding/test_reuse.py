"""Embeddings of texts that earlier encodings have: only the other texts are encoded, and no byte differs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from beir import write_rows
from encoding_case import files

from raytriever.cli.main import run
from raytriever.core.errors import StorageError
from raytriever.core.store import commit
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever
from raytriever.retrieval.encoding import write_or_reuse_embeddings as module
from raytriever.retrieval.encoding.embed_corpus import embed_corpus, encode_store, plan_embeddings
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore, file_of, shard_path
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.encoding.shard_encoder import ShardEncoder, SideTexts
from raytriever.retrieval.encoding.write_or_reuse_embeddings import EarlierEmbeddings, StoreWriter

# Texts of equal length: in fp32 padding changes the last bits (docs/explanation/decisions.md).
TEXTS = [f"{row:06d} is {row:06d}"[::-1] for row in range(100)]
NEW = ["newabc is newabc", "andabc is andabc"]


class Corpus:
    """A data set whose texts change, and its encoder; `encoded` has the number of texts of each encoded batch."""

    def __init__(self, encoder: Path, folder: Path) -> None:
        self.config, self.folder = ModelConfig(str(encoder)), folder
        self.retriever = load_for_encoding(self.config, "fp32", torch.device("cpu"))
        self.encoded: list[int] = []

    def write(self, texts: Sequence[str]) -> Path:
        folder = self.folder / "corpus"
        folder.mkdir(exist_ok=True)
        write_rows(folder / "corpus.jsonl", ({"_id": f"d{text[:3]}{text[-6:]}", "text": text} for text in texts))
        return write_rows(folder / "queries.jsonl", [{"_id": "q", "text": "a"}]).parent

    def open(self, texts: Sequence[str]) -> RetrievalDataset:
        return open_dataset(self.write(texts), [])

    def encode(self, texts: Sequence[str], path: Path, dtype: str) -> EmbeddingStore:
        dataset = self.open(texts)
        plan = plan_embeddings(self.config, self.retriever, dataset, "passage", dtype)
        return encode_store(StoreWriter(path, plan), self.config, self.retriever, dataset)

    def embed(self, texts: Sequence[str]) -> EmbeddingStore:
        return embed_corpus(self.config, self.retriever, self.open(texts))

    def command(self, folder: Path, output: str, *words: str) -> int:
        given = ["--dataset", str(folder), "--model", self.config.model, "--precision", "fp32"]
        return run("encode", [*given, "--output", str(self.folder / output), *words])

    def count(self) -> int:
        """Return the number of texts that were encoded since the last call."""
        total = sum(self.encoded)
        self.encoded.clear()
        return total


@pytest.fixture
def corpus(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_SMALLEST", 16)
    corpus, encode = Corpus(tiny_encoder, tmp_path), Retriever.encode

    def counted(self: Retriever, tokens: dict[str, torch.Tensor], side: str) -> torch.Tensor:
        corpus.encoded.append(len(tokens["input_ids"]))
        return encode(self, tokens, side)  # type: ignore[arg-type]

    monkeypatch.setattr(Retriever, "encode", counted)
    return corpus


VERSIONS = {
    "changed": ([*TEXTS[:7], *NEW, *TEXTS[9:]], 2),
    "removed": ([*TEXTS[:7], *TEXTS[40:]], 0),
    "added, removed and reordered": ([NEW[0], *TEXTS[:20:-2], NEW[1]], 2),
}


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(("version", "dtype"), [*((name, "fp32") for name in VERSIONS), (list(VERSIONS)[-1], "int8")])
def test_only_new_texts_are_encoded_and_no_byte_differs(
    version: str, dtype: str, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, new = VERSIONS[version]
    corpus.encode(TEXTS, tmp_path / "cache" / "embeddings" / "first", dtype)
    assert corpus.count() == 100
    second = corpus.encode(texts, tmp_path / "cache" / "embeddings" / "second", dtype)
    assert corpus.count() == new
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "empty"))
    whole = corpus.encode(texts, tmp_path / "whole", dtype)
    assert corpus.count() == len(texts)
    assert files(second.path) == files(whole.path)
    assert EmbeddingStore.open(second.path).plan == whole.plan


@pytest.mark.slow
def test_texts_of_damaged_shards_and_other_lengths_are_encoded(corpus: Corpus) -> None:
    store = corpus.embed(TEXTS)
    damaged = file_of(shard_path(store.path, store.plan.key, 1), "embeddings")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    corpus.count()
    corpus.embed([*TEXTS, *NEW])
    assert corpus.count() == 16 + 2
    shorter = ModelConfig(corpus.config.model, passage_length=9)
    embed_corpus(shorter, load_for_encoding(shorter, "fp32", torch.device("cpu")), corpus.open([*TEXTS, *NEW]))
    assert corpus.count() == 102


def test_shards_of_a_killed_encoding_are_used(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    start = ShardEncoder._start

    def interrupt(self: ShardEncoder, texts: object) -> object:
        if texts.number == 3:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return start(self, texts)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ShardEncoder, "_start", interrupt)
        # The new version is killed too, and continues.
        for texts, new in ((TEXTS, 48), ([*NEW, *TEXTS], 2)):
            with pytest.raises(KeyboardInterrupt):
                corpus.embed(texts)
            assert corpus.count() == new
    corpus.embed([*NEW, *TEXTS])
    assert corpus.count() == 52


def test_texts_are_encoded_if_the_earlier_store_is_removed_meanwhile(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = corpus.embed(TEXTS)
    embeddings = first.array()
    copy = EarlierEmbeddings.copy

    def remove(self: EarlierEmbeddings, number: int) -> object:
        if number == 2:
            shutil.rmtree(first.path)
        return copy(self, number)

    monkeypatch.setattr(EarlierEmbeddings, "copy", remove)
    corpus.count()
    second = corpus.embed([*TEXTS, *NEW])
    assert corpus.count() == 2 + 100 - 32
    assert second.array()[:100].tobytes() == embeddings.tobytes()


@pytest.mark.slow
def test_an_output_follows_its_data_set(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert corpus.command(corpus.write(TEXTS), "store") == 0
    old = EmbeddingStore.open(tmp_path / "store")
    corpus.count()
    folder = corpus.write([*NEW, *TEXTS])
    for output in ("store", "other"):  # found by its recorded location
        assert corpus.command(folder, output) == 0
    assert corpus.count() == 2
    assert "102 texts, 100 of them from earlier encodings" in capsys.readouterr().err
    with pytest.raises(StorageError, match="was encoded again while it was read; open it again"):
        old.array()
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "empty"))
    assert corpus.command(folder, "whole") == 0
    before = files(tmp_path / "whole")
    assert files(tmp_path / "store") == files(tmp_path / "other") == before
    # Another data set, or another length, is refused.
    other = corpus.write(TEXTS).rename(tmp_path / "letters")
    assert corpus.command(other, "whole") == 2
    assert corpus.command(corpus.write(NEW), "whole", "--passage-length", "9") == 2
    assert capsys.readouterr().err.count("by this encoder; give another output") == 2
    assert files(tmp_path / "whole") == before


@pytest.mark.parametrize("step", ["write_atomically", "remove"])
def test_a_kill_while_the_new_store_takes_its_place_loses_nothing(
    step: str, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the manifest is written, or before the earlier version is removed."""
    old = corpus.encode(TEXTS, tmp_path / "store", "fp32")
    embeddings, act = old.array(), getattr(commit, step)

    def fail(path: Path, *more: object, **options: object) -> None:
        if path.name in ("manifest.json", "work"):
            raise KeyboardInterrupt
        act(path, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module.commit, step, fail)
        with pytest.raises(KeyboardInterrupt):
            corpus.encode(TEXTS[::-1], tmp_path / "store", "fp32")
    there = EmbeddingStore.open(tmp_path / "store").array()  # a reader meets the old store or the new one
    assert there.tobytes() == (embeddings if step == "write_atomically" else embeddings[::-1]).tobytes()
    again = corpus.encode(TEXTS[::-1], tmp_path / "store", "fp32")
    assert corpus.count() == 100
    assert again.array().tobytes() == embeddings[::-1].tobytes()
    assert len(list((tmp_path / "store").iterdir())) == 2


def test_the_key_of_a_text_depends_on_its_prompt(corpus: Corpus) -> None:
    texts = SideTexts(corpus.open(TEXTS), "passage")
    assert (texts.keys(range(3), "") != texts.keys(range(3), "query: ")).any()
    assert (texts.keys(range(3), "") == texts.keys(range(100), "")[:3]).all()
