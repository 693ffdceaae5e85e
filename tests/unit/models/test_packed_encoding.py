"""Packed batches give the embeddings and gradients of padded ones, are chosen on CUDA, and cause no wait."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradients import distance
from numpy import ndarray
from simulated_gpu import CUDA, simulated_gpu
from tiny_models import draw_weights, write_transformer
from torch import Tensor, nn

from raytriever.models.encoder import Encoder, set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packed_attention import (
    AFTER_PADDING,
    FROM_ZERO,
    NAME,
    first_position,
    packing_obstacle,
    use_packed_attention,
    use_repeatable_embeddings,
)
from raytriever.models.packing import TokenBatch, is_packed, move, pack, texts_of
from raytriever.models.retriever import load_retriever

LENGTHS = (3, 600, 17, 64, 3, 130)
LEFT_OUT = (1, 5, 0, 2, 3, 7)  # of the fifth text all tokens
POOLING = "mean+cls+last+max+mean_sqrt_len+weightedmean"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# Distances of packed from padded texts in fp32. CUDA's fused attention multiplies by three products of TF32 and cuts
# off the last bits of sums. Computed so on a CPU, gradients were up to 8e-6 (granite) from those of float64. Packed and
# padded texts may take different kernels. To see one token of another text gives at least 2.5e-4.
ROUNDING = {"cpu": 1e-5, "cuda": 3e-5}
VOCABULARY = 200
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODER = {**SIZES, "intermediate_size": 64, "max_position_embeddings": 700, "pad_token_id": 1}
GROUPED = {**ENCODER, "num_key_value_heads": 1, "use_cache": False}
LOCAL = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
SPECIAL = {f"{role}_token_id": 2 for role in ("bos", "eos", "cls", "sep")}
CONFIGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "ernie", "nomic_bert", "roberta", "camembert", "xlm-roberta"), ENCODER),
    **{name: {**ENCODER, "embedding_size": 16} for name in ("albert", "electra")},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    | {name: ENCODER[name] for name in ("vocab_size", "max_position_embeddings", "pad_token_id")},
    "modernbert": {**ENCODER, **SPECIAL, "local_attention": 32, "layer_types": LOCAL["layer_types"]},
    **{name: {**GROUPED, **SPECIAL} for name in ("eurobert", "phi3", "qwen2")},
    **{name: {**GROUPED, "head_dim": 16} for name in ("gemma", "granite", "llama", "qwen3")},
    "mistral": {**GROUPED, "head_dim": 16, "sliding_window": 16},
    "gemma3_text": {**GROUPED, **LOCAL, "head_dim": 16, "query_pre_attn_scalar": 16},
}
# Decoders whose tokens attend to later tokens, as `--bidirectional` makes them, or as their configuration says.
BOTH_WAYS = {
    "bidirectional qwen3": {"is_causal": False},
    "bidirectional mistral": {"is_causal": False},
    "bidirectional gemma3_text": {"use_bidirectional_attention": True},
    "local qwen2": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 16},
}
CASES = [*CONFIGS, *BOTH_WAYS]


def build(case: str, device: str = "cpu", dropout: float = 0.0, **config: object) -> Encoder:
    """Return an encoder of an architecture, the same at every call."""
    from transformers import AutoConfig, AutoModel

    architecture = case.rpartition(" ")[2]
    settings = {**CONFIGS[architecture], **BOTH_WAYS.get(case, {}), **config}
    backbone = AutoModel.from_config(AutoConfig.for_model(architecture, **settings))
    draw_weights(backbone, seed=0)
    set_dropout(backbone, dropout)
    return Encoder(backbone, POOLING, normalize=True).to(device).train()


def texts_of_lengths(lengths: Sequence[int] = LENGTHS) -> list[ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(5, VOCABULARY, length) for length in lengths]


def padded_batch(texts: list[ndarray]) -> TokenBatch:
    mask = torch.tensor([[int(index < len(text)) for index in range(max(map(len, texts)))] for text in texts])
    ids = torch.full_like(mask, ENCODER["pad_token_id"])
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.from_numpy(text)
    return {"input_ids": ids, "attention_mask": mask}


def packed_batch(encoder: Encoder, texts: list[ndarray]) -> TokenBatch:
    return pack(texts, first_position(encoder.backbone))


def encode(encoder: Encoder, tokens: TokenBatch, precision: str = "fp32") -> tuple[Tensor, list[Tensor]]:
    """Return embeddings, and gradients of a fixed function of them, on the CPU."""
    device = next(encoder.parameters()).device
    tokens = move(tokens, lambda tensor: tensor.to(device))
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        embeddings = encoder(tokens, torch.tensor((LEFT_OUT * 5)[: texts_of(tokens)], device=device))
    weights = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0)).to(device)
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad((embeddings * weights).sum(), trained, allow_unused=True)
    return embeddings.detach().cpu(), [gradient.cpu() for gradient in gradients if gradient is not None]


def test_every_architecture_that_can_be_packed_is_tested() -> None:
    assert set(CONFIGS) == FROM_ZERO | AFTER_PADDING


@pytest.mark.fast_every(5)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_packed_texts_have_the_embeddings_and_gradients_of_padded_texts(case: str, device: str) -> None:
    encoder, texts = build(case, device), texts_of_lengths()
    assert packing_obstacle(encoder.backbone) is None
    embeddings, gradients = encode(encoder, padded_batch(texts))
    packed, packed_gradients = encode(encoder, packed_batch(encoder, texts))
    assert distance([packed], [embeddings]) < ROUNDING[device]
    assert distance(packed_gradients, gradients) < ROUNDING[device]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_packed_texts_in_bf16_are_as_close_to_fp32_as_padded_ones(case: str, device: str) -> None:
    encoder, texts = build(case, device), texts_of_lengths()
    padded, packed = padded_batch(texts), packed_batch(encoder, texts)
    embeddings, gradients = encode(encoder, padded)
    errors = []
    for tokens in (padded, packed):
        own, own_gradients = encode(encoder, tokens, "bf16")
        errors.append((distance([own], [embeddings]), distance(own_gradients, gradients)))
    assert errors[1] != (0, 0)
    assert all(ours < 2 * other for other, ours in zip(*errors, strict=True)), errors


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", ["bert", "xlm-roberta", "modernbert", "bidirectional qwen3"])
def test_the_same_batch_gives_the_same_bits(case: str, device: str) -> None:
    encoder = build(case, device, dropout=0.1)
    use_repeatable_embeddings(encoder.backbone)
    tokens = packed_batch(encoder, texts_of_lengths(LENGTHS * 5))
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        embeddings, gradients = encode(encoder, tokens, "bf16")
        results.append([embeddings, *gradients])
    assert all(torch.equal(result, other) for result, other in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("mpnet", "its attention has a position bias"),
        ("gemma2", "its attention has a soft cap"),
        ("convbert", "packed texts are not tested in a model of type convbert"),
    ],
)
def test_other_architectures_are_padded_for_a_reason(architecture: str, reason: str) -> None:
    from transformers import AutoConfig

    backbone = nn.Module()
    backbone.config = AutoConfig.for_model(architecture)
    assert packing_obstacle(backbone) == reason


def encoder_of(architecture: str) -> Encoder:
    """Return an encoder of six layers and mean pooling, without dropout."""
    local = {"layer_types": LOCAL["layer_types"] * 3} if architecture == "modernbert" else {}
    return Encoder(build(architecture, num_hidden_layers=6, **local).backbone, "mean", normalize=True).train()


def batches(encoder: Encoder) -> tuple[TokenBatch, TokenBatch]:
    """Return the same texts padded and packed, on the CPU."""
    texts = texts_of_lengths((3, 40, 17, 64, 3, 30, 64, 11))
    return padded_batch(texts), packed_batch(encoder, texts)


def step(encoder: nn.Module, tokens: TokenBatch) -> list[Tensor]:
    """Encode in bf16, and return the embeddings and the gradients of a function of them."""
    with torch.autocast("cuda", torch.bfloat16):
        embeddings = encoder(tokens)
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    weights = torch.linspace(-1, 1, embeddings.shape[1], device=CUDA)
    gradients = torch.autograd.grad((embeddings.float() * weights).sum(), trained, allow_unused=True)
    return [embeddings, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize(("architecture", "is_packed"), [("bert", True), ("modernbert", True), ("bert", False)])
def test_a_batch_is_encoded_without_a_wait(architecture: str, is_packed: bool) -> None:
    """The mask of a padded batch would have to be looked at."""
    encoder = encoder_of(architecture)
    padded, packed = batches(encoder)
    with simulated_gpu() as counts:
        encoder.to(CUDA)
        use_packed_attention(encoder.backbone)
        tokens = move(packed if is_packed else padded, lambda tensor: tensor.to(CUDA))
        counts.reset()
        step(encoder, tokens)
        assert not counts.syncs, counts.table()


@pytest.mark.fast_every(2)
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
    with simulated_gpu(capability=(7, 0)):
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
