"""Texts of 8,192 tokens: embeddings and training steps equal those of sentence-transformers, in memory that is linear
in the length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from directories import written
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from tiny_models import text_of

from raytriever.models.encoder import set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import ATTENTION, BUCKET_COST, SHORT, cut_points, token_cost
from raytriever.models.retriever import load_retriever
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding

LONG = 8_192
TEXTS = [text_of(7_000, seed=1), text_of(3_000, seed=2), text_of(5, seed=3)]
WRITERS: dict[str, Callable[[Path], None]] = {
    "modernbert": written("modernbert", "cls", positions=LONG, max_length=LONG),
    "qwen3": written("qwen3", "lasttoken", Normalize, positions=LONG, max_length=LONG),
    "xlm-roberta": written("xlm-roberta", "mean", positions=LONG, max_length=LONG),
}


def config_of(directory: Path) -> ModelConfig:
    return ModelConfig(str(directory), query_length=LONG, passage_length=LONG, similarity="cosine")


@pytest.fixture(scope="module", params=WRITERS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "model"
    WRITERS[request.param](folder)
    return folder


@pytest.fixture(scope="module")
def by_library(directory: Path) -> np.ndarray:
    model = SentenceTransformer(str(directory), device="cpu", local_files_only=True)
    return model.encode_document(TEXTS, batch_size=1, normalize_embeddings=True)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.99999), ("bf16", 0.98)])
def test_embeddings_equal_those_of_the_library(
    directory: Path, by_library: np.ndarray, precision: str, least: float
) -> None:
    retriever = load_for_encoding(config_of(directory), precision, torch.device("cpu"))
    assert len(retriever.token_ids(TEXTS, "passage")[0]) == LONG
    embeddings = encode_texts(retriever, TEXTS, "passage")
    assert (embeddings * by_library).sum(1).min() > least


@pytest.mark.fast_every(9)
def test_training_keeps_no_scores_and_has_the_gradient_of_plain_attention(directory: Path) -> None:
    text = text_of(700, seed=1)
    gradients = []
    for is_plain in (False, True):
        retriever = load_retriever(config_of(directory)).train()
        set_dropout(retriever, 0.0)
        if is_plain:
            retriever.query.backbone.set_attn_implementation("eager")
        [bucket] = retriever.tokenize([text], "passage").buckets
        retriever.encode(bucket, "passage")[0, :8].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in retriever.parameters() if p.grad is not None]))
    assert (gradients[0] - gradients[1]).norm() < 1e-4 * gradients[1].norm()


@pytest.mark.slow
def test_training_a_long_text_keeps_memory_linear_in_its_length(directory: Path) -> None:
    retriever = load_retriever(config_of(directory)).train()
    set_dropout(retriever, 0.0)
    saved_bytes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved_bytes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def kept_by(length: int) -> int:
        saved_bytes.clear()
        [bucket] = retriever.batch_of([np.full(length, 200)], "passage").buckets
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = retriever.encode(bucket, "passage")
        mask = max(saved_bytes.values()) if max(saved_bytes.values()) >= length**2 else 0
        (output**2).sum().backward()
        return sum(saved_bytes.values()) - mask

    short, long = kept_by(LONG // 4), kept_by(LONG)
    # Two heads' scores of one layer; a mask of the batch, which all layers share, is not counted.
    assert long < 2 * LONG**2 * 4
    assert long < 5 * short


def test_costs_are_tokens_up_to_512_and_then_quadratic() -> None:
    lengths = np.array([1, 100, SHORT, 2 * SHORT, LONG])
    quadratic = (lengths.astype(float) ** 2 - SHORT**2).clip(min=0) / ATTENTION
    np.testing.assert_allclose(token_cost(lengths), lengths + quadratic, atol=1)


def test_long_texts_share_a_bucket_only_if_their_attention_stays_cheap() -> None:
    def in_tokens(lengths: np.ndarray, cuts: list[int]) -> int:
        return sum(int(part.max()) * len(part) + BUCKET_COST for part in np.split(lengths, cuts))

    # 100 padded tokens cost less than a bucket, but their attention to 8,092 others costs more.
    lengths = np.array([8_092, 8_192])
    assert in_tokens(lengths, []) <= in_tokens(lengths, [1])
    assert cut_points(lengths) == [1]
    assert cut_points(np.array([412, 512])) == []


def test_batches_of_long_texts_are_smaller_than_their_tokens(tiny_encoder: Path) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    for length, texts, budget, expected in ((512, 16, 4_096, [8, 8]), (4_096, 6, 65_536, [5, 1])):
        inputs = [np.zeros(length, np.int64)] * texts
        assert [len(batch) for batch in retriever.batches(inputs, budget)] == expected
