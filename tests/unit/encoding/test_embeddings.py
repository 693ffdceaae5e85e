"""Stores of embeddings: writing, reading, damaged shards and the cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.unanswerable import with_questions
from raytriever.encoding.corpus import embed_corpus, encode_store, plan_embeddings
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.shards import ShardEncoder, encode_in_process
from raytriever.encoding.store import EmbeddingStore, read_embeddings, shard_folder, write_embeddings
from raytriever.encoding.writer import EmbeddingPlan, StoreWriter
from raytriever.errors import ModelError, StorageError
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.store.cache import BOUNDS
from raytriever.store.commit import read_manifest


@pytest.fixture
def config(tiny_encoder: Path) -> ModelConfig:
    return ModelConfig(str(tiny_encoder))


@pytest.fixture
def retriever(config: ModelConfig) -> Retriever:
    return load_retriever(config)


@pytest.fixture
def dataset(tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetrievalDataset:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    return open_dataset(tiny_dataset, [])


@pytest.fixture
def plan(config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset) -> EmbeddingPlan:
    """160 documents in four shards, the last one short."""
    return replace(plan_embeddings(config, retriever, dataset, "passage", "fp32"), shard_rows=48)


# How far a stored row may be from the row of length one, and what it may cost in bytes.
@pytest.mark.parametrize(("dtype", "error", "bytes_a_row"), [("fp32", 0, 128), ("fp16", 5e-4, 64), ("int8", 6e-3, 36)])
def test_stored_embeddings_are_read_back(
    config: ModelConfig,
    retriever: Retriever,
    dataset: RetrievalDataset,
    plan: EmbeddingPlan,
    tmp_path: Path,
    dtype: str,
    error: float,
    bytes_a_row: int,
) -> None:
    work = StoreWriter(tmp_path / "store", replace(plan, dtype=dtype))
    encoded = encode_store(work, config, retriever, dataset)
    store = EmbeddingStore.open(tmp_path / "store")
    assert store.meta == encoded.meta
    assert (len(store), store.width) == (160, 32)
    expected = encode_texts(retriever, dataset.passages(), "passage")
    # Batches differ, so the last bits may.
    np.testing.assert_allclose(store.array(), expected, atol=error + 2e-6)
    assert [(first, len(part)) for first, part in store.blocks()] == [(0, 48), (48, 48), (96, 48), (144, 16)]
    rows = np.array([159, 3, 3, 47, 48])
    assert (store.read(rows) == store.array()[rows]).all()
    files = read_manifest(store.path)["files"]
    is_value = ("embeddings.npy", "scales.npy")
    stored_bytes = sum(entry["size"] for name, entry in files.items() if name.endswith(is_value))
    assert stored_bytes - 8 * 128 <= 160 * bytes_a_row <= stored_bytes
    with pytest.raises(IndexError):
        store.read(np.array([160]))
    file = shard_folder(store.path, 2) / "embeddings.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError, match=r"000002/embeddings\.npy: changed"):
        EmbeddingStore.open(store.path)


def test_only_missing_or_damaged_shards_are_encoded_again(
    config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset, plan: EmbeddingPlan, tmp_path: Path
) -> None:
    work = StoreWriter(tmp_path / "store", plan)
    whole = encode_store(work, config, retriever, dataset)
    before = {file: file.read_bytes() for file in whole.path.rglob("*") if file.is_file()}
    stamps = {number: shard_folder(whole.path, number).stat().st_mtime_ns for number in range(4)}
    damaged = shard_folder(whole.path, 1) / "embeddings.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    (whole.path / "manifest.json").unlink()
    (shard_folder(whole.path, 3) / "manifest.json").unlink()
    # What a process leaves that dies during a commit, and one that dies after it.
    (whole.path / "shards" / ".000001.aside-a").mkdir()
    (whole.path / "shards" / ".000002.aside-b.lock").write_text("{}")
    with pytest.raises(StorageError, match="never completed"):
        EmbeddingStore.open(whole.path)
    assert work.missing() == [1, 3]
    encode_store(work, config, retriever, dataset)
    assert {file: file.read_bytes() for file in whole.path.rglob("*") if file.is_file()} == before
    assert {n for n, stamp in stamps.items() if shard_folder(whole.path, n).stat().st_mtime_ns == stamp} == {0, 2}


def test_a_directory_with_other_content_is_not_changed(
    config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset, plan: EmbeddingPlan, tmp_path: Path
) -> None:
    encode_store(StoreWriter(tmp_path / "store", plan), config, retriever, dataset)
    before = {file: file.read_bytes() for file in tmp_path.rglob("store/**/*") if file.is_file()}
    other = StoreWriter(tmp_path / "store", replace(plan, length=9))
    with pytest.raises(StorageError, match="has other content"):
        encode_store(other, config, retriever, dataset)
    assert {file: file.read_bytes() for file in tmp_path.rglob("store/**/*") if file.is_file()} == before


def test_queries_in_memory_are_encoded_in_this_process(
    config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    """An actor opens the data set on disk, which lacks them."""
    more = with_questions(dataset, "test", ["who painted it"], "hard")

    def in_actors(encoder: ShardEncoder, numbers: Sequence[int], on_progress: Callable[[int], None]) -> None:
        encoder.__dict__.pop("side_texts")  # a process opens the texts itself
        encode_in_process(encoder, numbers, on_progress)

    stores = []
    for one, side in ((dataset, "query"), (more, "query"), (more, "passage")):
        plan = plan_embeddings(config, retriever, one, side, "fp32")
        writer = StoreWriter(tmp_path / f"{side}-{plan.rows}", plan)
        stores.append(encode_store(writer, config, retriever, one, in_actors))
    assert list(map(len, stores)) == [160, 161, 160]
    np.testing.assert_allclose(stores[1].array()[:160], stores[0].array(), atol=2e-6)


def test_another_number_of_tokens_per_batch_is_another_store(
    config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    for tokens in (64, 4_096):
        plan = plan_embeddings(config, retriever, dataset, "passage", "fp32", tokens)
        encode_store(StoreWriter(tmp_path / str(tokens), plan), config, retriever, dataset)
    one, other = (EmbeddingStore.open(tmp_path / name) for name in ("64", "4096"))
    assert one.meta["key"] != other.meta["key"]
    # Matrices of another size may be multiplied in another order, which decides the last bits.
    np.testing.assert_allclose(one.array(), other.array(), atol=2e-6)
    with pytest.raises(StorageError, match="has other content"):
        encode_store(StoreWriter(one.path, plan), config, retriever, dataset)


def test_prepared_tokens_give_the_embeddings_of_the_texts(
    config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset, tiny_dataset: Path, tmp_path: Path
) -> None:
    from raytriever.encoding.shards import SideTexts, tokenisation_of

    prepared = open_dataset(tiny_dataset, [], tokenisation=tokenisation_of(retriever))
    assert prepared.tokens is not None
    for side in ("passage", "query"):
        actual, expected = (SideTexts(each, side).read(retriever, range(5, 90))[0] for each in (prepared, dataset))
        assert [ids.tolist() for ids in actual] == [ids.tolist() for ids in expected]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retriever, "contents", None)  # so that nothing could be tokenised
        embed_corpus(config, retriever, prepared)


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ({"manifest.json": "{"}, "encoding its damaged shards again"),
        ({"plan.json": "{"}, ""),  # the manifest holds the same
        ({"manifest.json": None, "plan.json": None}, "encoding again\n"),
        ({"manifest.json": "[]", "plan.json": '{"key": 7}'}, "encoding again\n"),
    ],
)
def test_a_damaged_entry_of_the_cache_is_encoded_again(
    config: ModelConfig,
    retriever: Retriever,
    dataset: RetrievalDataset,
    capsys: pytest.CaptureFixture[str],
    damaged: dict[str, str | None],
    message: str,
) -> None:
    first = embed_corpus(config, retriever, dataset)
    embeddings = first.array()
    for name, content in damaged.items():
        (first.path / name).unlink()
        if content is not None:
            (first.path / name).write_text(content)
    if message:
        assert (embed_corpus(config, retriever, dataset).array() == embeddings).all()
        assert f"{first.path}: is damaged or changed; {message}" in capsys.readouterr().err
    else:
        with pytest.raises(StorageError, match=r"damaged|incomplete"):
            EmbeddingStore.open(first.path)
        assert (embed_corpus(config, retriever, dataset).array() == embeddings).all()


def test_the_cache_keeps_the_most_recently_used_stores(
    config: ModelConfig,
    retriever: Retriever,
    dataset: RetrievalDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = embed_corpus(config, retriever, dataset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retriever, "encode", None)  # so that nothing could be encoded
        assert (embed_corpus(config, retriever, dataset).array() == first.array()).all()
    del first  # it would be in use
    monkeypatch.setitem(BOUNDS, "embeddings", 1)
    shorter = replace(config, passage_length=9)
    second = embed_corpus(shorter, load_retriever(shorter), dataset)
    assert list((tmp_path / "cache" / "embeddings").iterdir()) == [second.path]


def test_an_embedding_that_is_not_finite_ends_in_one_line_without_a_store(
    config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset, plan: EmbeddingPlan, tmp_path: Path
) -> None:
    import torch

    with torch.no_grad():
        next(retriever.parameters()).fill_(float("nan"))
    with pytest.raises(ModelError, match=f"not finite, the first of text {dataset.passage_text(0)!r}") as caught:
        encode_store(StoreWriter(tmp_path / "store", plan), config, retriever, dataset)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store" / "manifest.json").exists()
    marks = [json.loads(mark.read_bytes()) for mark in (tmp_path / "store" / "work").iterdir()]
    assert marks
    assert all(mark["deaths"] == [] for mark in marks)


def test_fp16_refuses_components_beyond_its_range(tmp_path: Path) -> None:
    rows = np.array([[1e5, 1], [0, 0]], np.float32)
    with pytest.raises(ModelError, match="beyond fp16"):
        write_embeddings(tmp_path, rows, "fp16")
    write_embeddings(tmp_path, rows, "int8")
    np.testing.assert_allclose(read_embeddings(tmp_path, rows.shape), rows, atol=1e5 / 254)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((59, 8), np.float32), "has the shape 59 x 8, expected 60 x 8"),
        (np.zeros((60, 9), np.float32), "has the shape 60 x 9, expected 60 x 8"),
        (np.zeros((60, 8), np.float64), "holds values of type '<f8', expected float32 or float16 or int8"),
        (np.zeros((60, 8), np.int8), "scales.npy: is missing"),
    ],
)
def test_a_shard_of_another_shape_ends_in_one_line(tmp_path: Path, values: np.ndarray, message: str) -> None:
    fixture = Path(__file__).parents[2] / "fixtures" / "version_0_1" / "passages"
    shutil.copytree(fixture, tmp_path / "store")
    store = EmbeddingStore.open(tmp_path / "store")
    np.save(tmp_path / "store" / "shards" / "000000" / "embeddings.npy", values)
    with pytest.raises(StorageError, match=message):
        store.array()
