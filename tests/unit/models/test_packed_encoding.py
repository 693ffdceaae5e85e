"""Packed batches give the embeddings and gradients of padded batches, in every architecture that can be packed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy import ndarray
from tests.support.tiny_models import ARCHITECTURES, write_transformer
from torch import Tensor

from raytriever.models.encoder import Encoder, load_backbone, set_dropout
from raytriever.models.packing import TokenBatch, move, pack, texts_of
from raytriever.models.varlen import can_pack, first_position

PACKED = tuple(name for name in ARCHITECTURES if name not in ("mpnet", "t5"))
LENGTHS = (3, 600, 17, 64, 3, 130)
LEFT_OUT = (1, 5, 0, 2, 3, 7)  # of one text all tokens
POOLING = "mean+cls+last+max+mean_sqrt_len+weightedmean"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

Build = Callable[..., Encoder]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that loads an encoder of an architecture, the same at every call."""

    def build(architecture: str, device: str = "cpu", **config: object) -> Encoder:
        directory = tmp_path_factory.mktemp(architecture)
        backbone = load_backbone(write_transformer(directory, architecture, positions=640, **config))
        set_dropout(backbone, 0.0)
        return Encoder(backbone, POOLING, normalise=True).to(device).train()

    return build


def texts_for(encoder: Encoder, lengths: tuple[int, ...] = LENGTHS) -> list[ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(5, encoder.backbone.config.vocab_size, length) for length in lengths]


def padded_batch(texts: list[ndarray], padding: int) -> TokenBatch:
    mask = torch.tensor([[int(place < len(text)) for place in range(max(map(len, texts)))] for text in texts])
    ids = torch.full_like(mask, padding)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.from_numpy(text)
    return {"input_ids": ids, "attention_mask": mask}


def encode(encoder: Encoder, tokens: TokenBatch, device: str, precision: str = "fp32") -> tuple[Tensor, list[Tensor]]:
    """Return embeddings, and gradients of a fixed function of them, on the CPU."""
    tokens = move(tokens, lambda tensor: tensor.to(device))
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
        embeddings = encoder(tokens, torch.tensor(LEFT_OUT[: texts_of(tokens)]).to(device))
    weights = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0)).to(device)
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad((embeddings * weights).sum(), trained, allow_unused=True)
    return embeddings.detach().cpu(), [one.cpu() for one in gradients if one is not None]


def distance(ours: list[Tensor], others: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest component."""
    largest = max(float(other.abs().max()) for other in others)
    return max(float((own - other).abs().max()) for own, other in zip(ours, others, strict=True)) / largest


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("architecture", PACKED)
def test_packed_texts_have_the_embeddings_and_gradients_of_padded_texts(
    build: Build, architecture: str, device: str
) -> None:
    encoder = build(architecture, device)
    assert can_pack(encoder.backbone)
    texts = texts_for(encoder)
    tokens = padded_batch(texts, encoder.backbone.config.pad_token_id)
    embeddings, gradients = encode(encoder, tokens, device)
    packed, packed_gradients = encode(encoder, pack(texts, first_position(encoder.backbone)), device)
    assert distance([packed], [embeddings]) < 1e-5
    assert distance(packed_gradients, gradients) < 1e-5
