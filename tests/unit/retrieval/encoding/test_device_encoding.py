"""Encoding on a CUDA device: values of the CPU, resuming, and no wait between batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from simulated_gpu import CUDA, simulated_gpu

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.models import inference
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding import encode_texts as module
from raytriever.retrieval.encoding.embed_corpus import embed_corpus, encode_store, plan_embeddings
from raytriever.retrieval.encoding.embedding_store import EmbeddingPlan
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.encoding.shard_encoder import ShardEncoder
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter, shard_rows

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "WINDOW", 64)
    monkeypatch.setitem(inference.TOKEN_BUDGET, "cuda", 300)
    monkeypatch.setattr(inference, "_GPU_STATES", 0)


@pytest.fixture
def config(tiny_encoder: Path) -> ModelConfig:
    return ModelConfig(str(tiny_encoder))


@pytest.fixture
def dataset(tiny_dataset: Path, small_batches: None) -> RetrievalDataset:
    return open_dataset(tiny_dataset, [])


def texts() -> list[str]:
    lengths = np.random.default_rng(1).integers(0, 80, 150)
    return [" ".join("abcdefgh"[(row + index) % 8] for index in range(length)) for row, length in enumerate(lengths)]


@pytest.mark.fast_every(9)
@pytest.mark.parametrize(("precision", "error"), [("fp32", 2e-5), ("bf16", 3e-2)])
def test_embeddings_equal_those_of_the_cpu(
    config: ModelConfig, precision: str, error: float, cuda: torch.device
) -> None:
    expected = encode_texts(load_for_encoding(config, "fp32", CPU), texts(), "passage")
    actual = encode_texts(load_for_encoding(config, precision, cuda), texts(), "passage")
    assert (np.abs(actual).sum(1) > 0).all()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=error)


def four_shards(config: ModelConfig, dataset: RetrievalDataset, cuda: torch.device) -> EmbeddingPlan:
    retriever = load_for_encoding(config, "fp32", cuda)
    return replace(plan_embeddings(config, retriever, dataset, "passage", "fp32"), shard_rows=48)


@pytest.mark.slow
def test_an_interrupted_encoding_resumes_with_the_same_bytes(
    config: ModelConfig, dataset: RetrievalDataset, tmp_path: Path, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, retriever = four_shards(config, dataset, cuda), load_for_encoding(config, "fp32", cuda)
    whole = encode_store(StoreWriter(tmp_path / "whole", plan), config, retriever, dataset)
    writer = StoreWriter(tmp_path / "interrupted", plan)
    start = ShardEncoder._start

    def interrupt(self: ShardEncoder, shard: object) -> object:
        if shard.number == 2:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return start(self, shard)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ShardEncoder, "_start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            encode_store(writer, config, retriever, dataset)
    assert writer.missing() == [2, 3]
    assert encode_store(writer, config, retriever, dataset).array().tobytes() == whole.array().tobytes()


def test_a_store_of_the_cpu_is_used(config: ModelConfig, dataset: RetrievalDataset, cuda: torch.device) -> None:
    assert list(map(shard_rows, (160, 10**6, 10**7))) == [1_024, 3_907, 39_063]
    cached = embed_corpus(config, load_for_encoding(config, "fp32", CPU), dataset)
    assert embed_corpus(config, load_for_encoding(config, "fp32", cuda), dataset).path == cached.path


def test_nothing_waits_for_the_device_between_batches(config: ModelConfig) -> None:
    with simulated_gpu() as counts:
        retriever = load_for_encoding(config, "bf16", CUDA)
        counts.reset()
        encode_texts(retriever, texts(), "passage")
    windows = -(-150 // 64)
    assert sum(counts.syncs.values()) == windows, counts.table()
    assert not counts.pageable, counts.table()
    back = sum(number for line, number in counts.pinned.items() if line.startswith("to the host"))
    assert back > 2 * windows
    there = sum(number for line, number in counts.pinned.items() if line.startswith("to the device"))
    assert there <= 4 * back
