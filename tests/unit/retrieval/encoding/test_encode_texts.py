"""Encoding keeps the order of the texts; batches follow the token budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import current_thread

import numpy as np
import pytest
import torch
from torch import nn

from raytriever.models import inference
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import TokenBatch
from raytriever.models.prompts import Side
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import PackedLinear, load_for_encoding, speed_up


def test_order_and_values_do_not_depend_on_batches(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    rng = np.random.default_rng(1)
    texts = ["a" * int(n) for n in rng.integers(0, 80, 150)]
    one_by_one = np.concatenate([encode_texts(retriever, [text], "passage") for text in texts])
    monkeypatch.setattr("raytriever.retrieval.encoding.encode_texts.WINDOW", 40)
    monkeypatch.setitem(inference.TOKEN_BUDGET, "cpu", 200)
    np.testing.assert_allclose(encode_texts(retriever, texts, "passage"), one_by_one, atol=1e-5)


@pytest.fixture
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_batches_in_threads_give_the_same_bytes(
    tiny_encoder: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = load_for_encoding(ModelConfig(str(tiny_encoder)), precision, torch.device("cpu"))
    rng = np.random.default_rng(1)
    texts = ["a" * int(n) for n in rng.integers(1, 80, 300)]
    inputs = retriever.assemble(retriever.contents(texts, "passage"), "passage")
    rows = retriever.batches(inputs, 400)
    rows[5] = []
    done, threads = [], set()
    encode = retriever.encode

    def noted(tokens: TokenBatch, side: Side) -> torch.Tensor:
        threads.add((current_thread().name, torch.get_num_threads()))
        return encode(tokens, side)

    retriever.encode = noted  # type: ignore[method-assign]
    together = retriever.start(inputs, rows, "passage", done.append).result()
    assert {cores for _, cores in threads} == {1}
    assert torch.get_num_threads() == 2
    assert sum(done) == sum(map(len, rows))
    threads.clear()
    monkeypatch.setattr(inference, "MOST_THREADS", 1)
    alone = retriever.start(inputs, rows, "passage").result()
    assert threads == {("MainThread", 2)}
    assert together.tobytes() == alone.tobytes()


@pytest.mark.usefixtures("two_cores")
def test_an_error_in_a_thread_ends_all(tiny_encoder: Path) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    calls: list[int] = []

    def broken(tokens: TokenBatch, side: Side) -> torch.Tensor:
        calls.append(len(calls))
        raise RuntimeError("no memory")

    retriever.encode = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no memory"):
        retriever.start([np.array([1, 2])] * 60, [[row] for row in range(60)], "passage")
    assert len(calls) <= 4
    assert torch.get_num_threads() == 2


def test_a_budget_smaller_than_one_text_still_encodes_it(tiny_encoder: Path) -> None:
    inputs = [np.zeros(length, np.int64) for length in (5, 9, 2)]
    assert load_retriever(ModelConfig(str(tiny_encoder))).batches(inputs, budget=4) == [[1], [0], [2]]


def test_in_int8_an_embedding_does_not_depend_on_the_other_texts() -> None:
    retriever = load_for_encoding(ModelConfig("minilm"), "int8", torch.device("cpu"))
    rng = np.random.default_rng(0)
    words = ["alpha", "beta", "gamma", "delta", "river", "stone", "model", "query"]
    texts = [" ".join(rng.choice(words, length)) for length in (3, 3, 9, 11, 12, 27, 40, 75)]
    together = encode_texts(retriever, texts, "passage")
    alone = np.concatenate([encode_texts(retriever, [text], "passage") for text in texts])
    assert together.tobytes() == alone.tobytes()


TEXTS = ["a" * n for n in (1, 5, 5, 30, 61)]


@pytest.fixture
def retriever(tiny_encoder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(tiny_encoder)))


def test_fp32_agrees_up_to_rounding(retriever: Retriever) -> None:
    plain = encode_texts(retriever, TEXTS, "passage")
    assert any(isinstance(module, PackedLinear) for module in speed_up(retriever).modules())
    assert not any(type(module) is nn.Linear for module in retriever.query.backbone.encoder.modules())
    np.testing.assert_allclose(encode_texts(retriever, TEXTS, "passage"), plain, atol=1e-6)


def test_bf16_is_as_close_to_fp32_as_before(retriever: Retriever) -> None:
    exact = encode_texts(retriever, TEXTS, "passage")
    retriever.to(torch.bfloat16)
    plain = encode_texts(retriever, TEXTS, "passage")
    fast = encode_texts(speed_up(retriever), TEXTS, "passage")
    away, away_before = (1 - (result * exact).sum(1) for result in (fast, plain))
    assert away.max() < 2 * away_before.max()
    assert away.max() < 1e-3


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_the_number_of_threads_changes_no_byte(tiny_encoder: Path, precision: str) -> None:
    retriever = load_for_encoding(ModelConfig(str(tiny_encoder)), precision, torch.device("cpu"))
    [bucket] = retriever.tokenize(["a" * 50] * 40, "passage").buckets
    embeddings = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        with torch.inference_mode():
            embeddings.append(retriever.encode(bucket, "passage"))
    assert all(torch.equal(embedding, embeddings[0]) for embedding in embeddings)
