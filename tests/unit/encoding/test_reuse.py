"""Embeddings of texts that earlier encodings have: only the other texts are encoded, and no byte differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from raytriever.cli.main import run
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding import writer as module
from raytriever.encoding.corpus import embed_corpus, encode_store, plan_embeddings
from raytriever.encoding.loading import load_for_encoding
from raytriever.encoding.reuse import EarlierEmbeddings
from raytriever.encoding.shards import ShardEncoder
from raytriever.encoding.store import EmbeddingStore, shard_folder
from raytriever.encoding.writer import NEXT, StoreWriter, put_next_in_place
from raytriever.errors import StorageError
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever

# Texts of equal length: in fp32 padding changes the last bits (docs/explanation/decisions.md).
TEXTS = [f"{row:06d} is {row:06d}"[::-1] for row in range(100)]
WORDS = ["--precision", "fp32", "--output"]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_SMALLEST", 16)


@pytest.fixture
def config(tiny_encoder: Path) -> ModelConfig:
    return ModelConfig(str(tiny_encoder))


@pytest.fixture
def retriever(config: ModelConfig) -> Retriever:
    return load_for_encoding(config, "fp32", torch.device("cpu"))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of texts of every batch that is encoded from now on."""
    counts: list[int] = []
    encode = Retriever.encode

    def count(self: Retriever, tokens: dict[str, torch.Tensor], side: str) -> torch.Tensor:
        counts.append(len(tokens["input_ids"]))
        return encode(self, tokens, side)  # type: ignore[arg-type]

    monkeypatch.setattr(Retriever, "encode", count)
    return counts


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[[Sequence[str]], Path]:
    """Write a data set with these texts; the ids are those of the texts."""

    def write(texts: Sequence[str]) -> Path:
        folder = tmp_path / "corpus"
        folder.mkdir(exist_ok=True)
        rows = [{"_id": f"d{text[:3]}{text[-6:]}", "title": "", "text": text} for text in texts]
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "queries.jsonl").write_text('{"_id": "q", "text": "a"}\n')
        return folder

    return write


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


NEW = ["newabc is newabc", "andabc is andabc"]
VERSIONS = {
    "changed": ([*TEXTS[:7], *NEW, *TEXTS[9:]], 2),
    "removed": ([*TEXTS[:7], *TEXTS[40:]], 0),
    "added, removed and reordered": ([NEW[0], *TEXTS[:20:-2], NEW[1]], 2),
}


@pytest.mark.parametrize(("version", "dtype"), [*((name, "fp32") for name in VERSIONS), (list(VERSIONS)[-1], "int8")])
def test_only_new_texts_are_encoded_and_no_byte_differs(
    version: str,
    dtype: str,
    config: ModelConfig,
    retriever: Retriever,
    corpus: Callable[[Sequence[str]], Path],
    encoded: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(texts: Sequence[str], path: Path) -> EmbeddingStore:
        dataset = open_dataset(corpus(texts), [])
        plan = plan_embeddings(config, retriever, dataset, "passage", dtype)
        return encode_store(StoreWriter(path, plan), config, retriever, dataset)

    texts, new = VERSIONS[version]
    encode(TEXTS, tmp_path / "cache" / "embeddings" / "first")
    assert sum(encoded) == 100
    encoded.clear()
    second = encode(texts, tmp_path / "cache" / "embeddings" / "second")
    assert sum(encoded) == new
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "empty"))
    whole = encode(texts, tmp_path / "whole")
    assert sum(encoded) == new + len(texts)
    assert files(second.path) == files(whole.path)
    assert EmbeddingStore.open(second.path).meta == whole.meta


def test_every_kind_of_search_finds_them(
    config: ModelConfig, retriever: Retriever, corpus: Callable[[Sequence[str]], Path], encoded: list[int]
) -> None:
    embed_corpus(config, retriever, open_dataset(corpus(TEXTS), []))
    encoded.clear()
    embed_corpus(config, retriever, open_dataset(corpus([*NEW, *TEXTS]), []))
    assert sum(encoded) == 2
    # Another length may give other embeddings.
    shorter = ModelConfig(config.model, passage_length=9)
    embed_corpus(
        shorter, load_for_encoding(shorter, "fp32", torch.device("cpu")), open_dataset(corpus([*NEW, *TEXTS]), [])
    )
    assert sum(encoded) == 2 + 102


def test_texts_of_damaged_shards_and_texts_left_out_are_encoded(
    config: ModelConfig, retriever: Retriever, corpus: Callable[[Sequence[str]], Path], encoded: list[int]
) -> None:
    dataset = open_dataset(corpus(TEXTS), [])
    store = embed_corpus(config, retriever, dataset)
    damaged = shard_folder(store.path, 1) / "embeddings.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    # A shard whose fourth text once killed its process.
    plan = plan_embeddings(config, retriever, dataset, "passage", "fp32")
    writer = StoreWriter(store.path, plan)
    keys = ShardEncoder(writer, lambda: retriever, str(dataset.location)).side_texts.keys(plan.rows_of(2), plan.prefix)
    writer.write(2, store.shard(2), {35: "kills the encoder's process"}, keys)
    encoded.clear()
    second = embed_corpus(config, retriever, open_dataset(corpus([*TEXTS, *NEW]), []))
    assert sum(encoded) == 16 + 1 + 2
    assert second.read(store.left_out).shape == (0, 32)
    assert not second.meta["left_out"]


def test_shards_of_a_killed_encoding_are_used(
    config: ModelConfig,
    retriever: Retriever,
    corpus: Callable[[Sequence[str]], Path],
    encoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = ShardEncoder._start

    def interrupt(self: ShardEncoder, texts: object) -> object:
        if texts.number == 3:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return start(self, texts)  # type: ignore[arg-type]

    def embed(texts: Sequence[str]) -> EmbeddingStore:
        return embed_corpus(config, retriever, open_dataset(corpus(texts), []))

    with monkeypatch.context() as patch:
        patch.setattr(ShardEncoder, "_start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            embed(TEXTS)
        assert sum(encoded) == 48
        # The new version is killed too, and continues.
        with pytest.raises(KeyboardInterrupt):
            embed([*NEW, *TEXTS])
        assert sum(encoded) == 48 + 2
    embed([*NEW, *TEXTS])
    assert sum(encoded) == 102


def test_texts_are_encoded_if_the_earlier_store_is_removed_meanwhile(
    config: ModelConfig,
    retriever: Retriever,
    corpus: Callable[[Sequence[str]], Path],
    encoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = embed_corpus(config, retriever, open_dataset(corpus(TEXTS), []))
    embeddings = first.array()
    copy = EarlierEmbeddings.copy

    def remove(self: EarlierEmbeddings, number: int) -> object:
        if number == 2:
            shutil.rmtree(first.path)
        return copy(self, number)

    monkeypatch.setattr(EarlierEmbeddings, "copy", remove)
    encoded.clear()
    second = embed_corpus(config, retriever, open_dataset(corpus([*TEXTS, *NEW]), []))
    assert sum(encoded) == 2 + 100 - 32
    assert second.array()[:100].tobytes() == embeddings.tobytes()


def output_of(texts: Path, encoder: Path, output: Path) -> None:
    assert run("encode", ["--dataset", str(texts), "--model", str(encoder), *WORDS, str(output)]) == 0


def test_an_output_follows_its_data_set(
    tiny_encoder: Path,
    corpus: Callable[[Sequence[str]], Path],
    encoded: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output_of(corpus(TEXTS), tiny_encoder, tmp_path / "store")
    old = EmbeddingStore.open(tmp_path / "store")
    encoded.clear()
    output_of(corpus([*NEW, *TEXTS]), tiny_encoder, tmp_path / "store")
    output_of(corpus([*NEW, *TEXTS]), tiny_encoder, tmp_path / "other")  # found by its recorded location
    assert sum(encoded) == 2
    assert "102 texts, 100 of them from earlier encodings" in capsys.readouterr().err
    with pytest.raises(StorageError, match="was encoded again while it was read; open it again"):
        old.array()
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "empty"))
    output_of(corpus([*NEW, *TEXTS]), tiny_encoder, tmp_path / "whole")
    assert files(tmp_path / "store") == files(tmp_path / "other") == files(tmp_path / "whole")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("moves", range(4))
def test_a_kill_while_the_new_store_takes_its_place_loses_nothing(
    moves: int,
    tiny_encoder: Path,
    corpus: Callable[[Sequence[str]], Path],
    encoded: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output_of(corpus(TEXTS), tiny_encoder, tmp_path / "store")
    rename = Path.rename
    left = moves

    def fail(self: Path, target: Path) -> Path:
        nonlocal left
        if self.parent.name == NEXT:
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return rename(self, target)

    dataset = corpus(TEXTS[::-1])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        words = ["--dataset", str(dataset), "--model", str(tiny_encoder), *WORDS, str(tmp_path / "store")]
        assert (run("encode", words) == 0) == (moves == 3)
    put_next_in_place(tmp_path / "store")
    assert not (tmp_path / "store" / NEXT).exists()
    embeddings = EmbeddingStore.open(tmp_path / "store").array()
    assert sum(encoded) == 100
    output_of(dataset, tiny_encoder, tmp_path / "other")
    assert embeddings.tobytes() == EmbeddingStore.open(tmp_path / "other").array().tobytes()


def test_another_data_set_or_model_is_still_refused(
    tiny_encoder: Path, corpus: Callable[[Sequence[str]], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(corpus(TEXTS), tiny_encoder, tmp_path / "store")
    before = files(tmp_path / "store")
    other = corpus([*NEW, *TEXTS]).rename(tmp_path / "letters")
    words = ["--model", str(tiny_encoder), *WORDS, str(tmp_path / "store")]
    assert run("encode", ["--dataset", str(other), *words]) == 2
    assert run("encode", ["--dataset", str(corpus(NEW)), *words, "--passage-length", "9"]) == 2
    assert capsys.readouterr().err.count("has other content than these embeddings; give another --output") == 2
    assert files(tmp_path / "store") == before


def test_the_key_of_a_text_depends_on_its_prompt(retriever: Retriever, corpus: Callable[[Sequence[str]], Path]) -> None:
    from raytriever.encoding.shards import SideTexts

    passages: RetrievalDataset = open_dataset(corpus(TEXTS), [])
    texts = SideTexts(passages, "passage")
    assert (texts.keys(range(3), "") != texts.keys(range(3), "query: ")).any()
    assert (texts.keys(range(3), "") == texts.keys(range(100), "")[:3]).all()
