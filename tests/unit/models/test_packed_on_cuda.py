"""Packed texts on a CUDA device: when they are chosen, what they compute, and how many kernels they launch."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raytriever.models.config import ModelConfig
from raytriever.models.encoder import Encoder, set_dropout
from raytriever.models.packing import TokenBatch, is_packed, move, pack
from raytriever.models.retriever import load_retriever
from raytriever.models.varlen import NAME, first_position, use_packed_attention

sys.path.append(str(Path(__file__).parents[2] / "support"))
from sham_device import CUDA, sham_device
from tiny_models import draw_weights, write_transformer

LENGTHS = (3, 40, 17, 64, 3, 30, 64, 11)
LAYERS = 6


SETTINGS: dict[str, dict[str, int]] = {
    "modernbert": {f"{role}_token_id": 2 for role in ("bos", "eos", "cls", "sep")},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8, "use_cache": False},
    "llama": {"num_key_value_heads": 2, "use_cache": False},
}


def encoder_of(architecture: str) -> Encoder:
    from transformers import AutoConfig, AutoModel

    sizes = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    others = {"intermediate_size": 64, "max_position_embeddings": 80, "pad_token_id": 1}
    backbone = AutoModel.from_config(
        AutoConfig.for_model(architecture, **sizes, **others, **SETTINGS.get(architecture, {}))
    )
    draw_weights(backbone, seed=0)
    set_dropout(backbone, 0.0)
    return Encoder(backbone, "mean", normalise=True).train()


def batches(encoder: Encoder) -> tuple[TokenBatch, TokenBatch]:
    """Return the same texts padded and packed, on the CPU."""
    random = np.random.default_rng(0)
    texts = [random.integers(5, 200, length) for length in LENGTHS]
    mask = torch.tensor([[int(index < length) for index in range(max(LENGTHS))] for length in LENGTHS])
    ids = torch.ones_like(mask)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.from_numpy(text)
    return {"input_ids": ids, "attention_mask": mask}, pack(texts, first_position(encoder.backbone))


def step(encoder: nn.Module, tokens: TokenBatch) -> list[torch.Tensor]:
    """Encode in bf16, and return the embeddings and the gradients of a function of them."""
    with torch.autocast("cuda", torch.bfloat16):
        embeddings = encoder(tokens)
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    weights = torch.linspace(-1, 1, embeddings.shape[1], device=CUDA)
    gradients = torch.autograd.grad((embeddings.float() * weights).sum(), trained, allow_unused=True)
    return [embeddings, *(one for one in gradients if one is not None)]


def distance(ours: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """Return the norm of the difference over the norm of the others."""
    pairs = [tuple(each.detach().cpu().double() for each in pair) for pair in zip(ours, others, strict=True)]
    squares = sum(float((own - other).square().sum()) for own, other in pairs)
    return float((squares / sum(float(other.square().sum()) for _, other in pairs)) ** 0.5)


class Plain(nn.Module):
    """Encoder as transformers alone computes it: one padded batch, and the mean of the states of its tokens."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, tokens: TokenBatch) -> torch.Tensor:
        mask = tokens["attention_mask"][:, :, None].float()
        states = self.backbone(**tokens).last_hidden_state.float()
        return nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta", "modernbert", "qwen3"])
def test_a_packed_step_launches_at_most_a_third_more_kernels_than_one_padded_batch(architecture: str) -> None:
    encoder = encoder_of(architecture)
    padded, packed = batches(encoder)
    launches = {}
    with sham_device() as counts:
        encoder.to(CUDA)
        for name, module, tokens in (("plain", Plain(encoder.backbone), padded), ("packed", encoder, packed)):
            tokens = move(tokens, lambda tensor: tensor.to(CUDA))
            counts.reset()
            step(module, tokens)
            launches[name] = counts.launches.total()
            if name == "packed":
                assert not counts.syncs, counts.table()
    assert launches["packed"] <= 1.3 * launches["plain"], launches


def test_a_padded_batch_is_encoded_without_a_look_at_its_mask() -> None:
    encoder = encoder_of("bert")
    padded, _ = batches(encoder)
    with sham_device() as counts:
        encoder.to(CUDA)
        use_packed_attention(encoder.backbone)
        tokens = move(padded, lambda tensor: tensor.to(CUDA))
        counts.reset()
        step(encoder, tokens)
        assert not counts.syncs, counts.table()


@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta", "modernbert", "llama"])
def test_the_kernel_gives_the_embeddings_and_gradients_of_padded_texts(architecture: str, cuda: torch.device) -> None:
    encoder = encoder_of(architecture).to(cuda)
    padded, packed = (step(encoder, move(tokens, lambda tensor: tensor.to(cuda))) for tokens in batches(encoder))
    assert distance(packed[:1], padded[:1]) < 0.05
    assert distance(packed[1:], padded[1:]) < 0.1


def test_both_sides_are_packed_on_cuda_in_bf16_and_else_padded(
    tiny_encoder: Path, cuda: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    retriever.choose_packing("bf16")
    assert not retriever.packs
    retriever.to(cuda)
    caplog.set_level(logging.DEBUG, "raytriever")
    retriever.choose_packing("fp32")
    assert not retriever.packs
    assert "Texts are padded: fp32 has no kernel for packed texts." in caplog.text
    assert retriever.passage.backbone.config._attn_implementation == NAME
    retriever.choose_packing("bf16")
    assert retriever.packs
    queries, passages = retriever.tokenize(["ab", "abc"], "query"), retriever.tokenize(["abcdef"], "passage")
    ((together, side),) = retriever.passes(queries, passages)
    assert (len(together.buckets), side) == (1, "passage")
    assert is_packed(together.buckets[0])
    assert together.buckets[0]["lengths"].tolist() == [4, 5, 8]
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_texts_are_padded_on_a_gpu_without_bf16(tiny_encoder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "raytriever")
    with sham_device(capability=(7, 0)):
        retriever = load_retriever(ModelConfig(str(tiny_encoder))).to(CUDA)
        retriever.choose_packing("bf16")
    assert not retriever.packs
    assert "Texts are padded: this GPU has no bf16." in caplog.text


def test_a_model_that_cannot_be_packed_keeps_its_attention(
    tmp_path: Path, cuda: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    retriever = load_retriever(ModelConfig(str(write_transformer(tmp_path, "mpnet", positions=64)))).to(cuda)
    before = retriever.passage.backbone.config._attn_implementation
    caplog.set_level(logging.DEBUG, "raytriever")
    retriever.choose_packing("bf16")
    assert not retriever.packs
    assert "Texts are padded: its attention has a position bias." in caplog.text
    assert retriever.passage.backbone.config._attn_implementation == before
