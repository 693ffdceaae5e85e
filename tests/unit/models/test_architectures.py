"""Architectures of transformers with tiny random weights: loading, training and encoding agree with transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import KINDS, draw_weights, text_of, tokenizer_of
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer

from raytriever.core.errors import UserError
from raytriever.models.device_and_precision import autocast
from raytriever.models.encoder import ENCODERS_WITH_DECODER, check_precision, set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packed_attention import packing_obstacle
from raytriever.models.packing import TokenBatch
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding.load_for_encoding import INT8_MODELS, load_for_encoding

CPU = torch.device("cpu")
TEXTS = [text_of(words, seed=words) for words in (3, 20, 24, 60)]
# Settings besides those of `write`, by the type of the model.
GROUPED = {"num_key_value_heads": 1}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16, "num_hidden_groups": 1},
    "bert": {},
    "big_bird": {"block_size": 8},
    "bloom": {},
    "camembert": {},
    "cohere": GROUPED,
    "convbert": {"embedding_size": 32},
    "data2vec-text": {},
    "deberta": {"pos_att_type": ["c2p", "p2c"], "relative_attention": True},
    "deberta-v2": {"pos_att_type": ["c2p", "p2c"], "relative_attention": True},
    "distilbert": {},
    "electra": {"embedding_size": 32},
    "ernie": {},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 4, "token_dropout": False},
    "eurobert": GROUPED,
    "falcon": {},
    "flaubert": {"emb_dim": 32, "n_layers": 2, "n_heads": 2},
    "fnet": {},
    "funnel": {
        "block_sizes": [1, 1],
        "num_decoder_layers": 1,
        "architectures": ["FunnelModel"],
        "num_hidden_layers": None,
        "d_model": 32,
        "n_head": 2,
        "d_head": 16,
        "d_inner": 64,
    },
    "gemma": {**GROUPED, "head_dim": 16},
    "gemma2": {**GROUPED, "head_dim": 16, "query_pre_attn_scalar": 16},
    "gemma3_text": {**GROUPED, "head_dim": 16, "query_pre_attn_scalar": 16},
    "gpt2": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 2},
    "gpt_neox": {},
    "granite": GROUPED,
    "ibert": {},
    "layoutlm": {},
    "llama": GROUPED,
    "longformer": {"attention_window": 16},
    "megatron-bert": {},
    "mistral": GROUPED,
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "modernbert": {"local_attention": 16},
    "mpnet": {},
    "mpt": {"d_model": 32, "n_heads": 2, "n_layers": 2},
    "mt5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
    "nomic_bert": {},
    "nystromformer": {"segment_means_seq_len": 64, "num_landmarks": 64},
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "phi": {},
    "phi3": GROUPED,
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 16},
    "rembert": {"input_embedding_size": 32},
    "roberta": {},
    "roberta-prelayernorm": {},
    "roformer": {"embedding_size": 32},
    "splinter": {},
    "squeezebert": {"embedding_size": 32},
    "stablelm": {"num_key_value_heads": 2},
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
    "umt5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 2},
    "xlm-roberta": {},
    "xlm-roberta-xl": {},
    "xlnet": {"max_position_embeddings": None, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "d_head": 16},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}
FAST = ("deberta-v2", "llama", "longformer", "t5")
# What some models refuse: an operation does not exist in bf16, or meets two types under autocast.
TRAINS_IN_FP32 = {"deberta": "DebertaModel does not compute in bf16", "xmod": "XmodModel does not compute in bf16"}
NO_BF16 = {
    "deberta": TRAINS_IN_FP32["deberta"],
    "fnet": "FNetModel does not compute in bf16",
    "xlnet": "XLNetModel does not compute in bf16",
}
CASES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]


def write(folder: Path, kind: str, **settings: Any) -> Path:
    tokenizer = tokenizer_of(KINDS["bert"], max_length=64)
    common = {
        "vocab_size": len(tokenizer) + 8,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    changed = common | ARCHITECTURES[kind] | settings
    config = AutoConfig.for_model(kind, **{name: value for name, value in changed.items() if value is not None})
    model = (AutoModelForTextEncoding if kind in ENCODERS_WITH_DECODER else AutoModel).from_config(config)
    draw_weights(model, seed=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config_of(folder: Path, **settings: Any) -> ModelConfig:
    return ModelConfig(str(folder), pooling="mean", similarity="cosine", **settings)


def by_transformers(model: Any, buckets: list[TokenBatch]) -> Tensor:
    """Return mean-pooled embeddings of unit length."""
    pooled = []
    for bucket in buckets:
        mask = bucket["attention_mask"][:, :, None]
        states = model(**bucket).last_hidden_state.float()
        pooled.append((states * mask).sum(1) / mask.sum(1))
    return nn.functional.normalize(torch.cat(pooled), dim=1)


def by_raytriever(retriever: Retriever, buckets: list[TokenBatch], precision: str = "fp32") -> Tensor:
    with autocast("bf16" if precision == "bf16" else "fp32", CPU):
        return torch.cat([retriever.encode(bucket, "passage") for bucket in buckets]).float()


def distance(one: Tensor, other: Tensor) -> float:
    """Return 1 - the lowest cosine of two embeddings of a text."""
    return float(1 - (one.detach().double() * other.detach().double()).sum(1).min())


def gradients(model: nn.Module, embeddings: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a sum of embeddings, by the names of the parameters of a transformers model."""
    model.zero_grad()
    (embeddings * torch.linspace(-1, 1, embeddings.numel()).view_as(embeddings)).sum().backward()
    return {name: item.grad.clone() for name, item in model.named_parameters() if item.grad is not None}


def is_refused(act: Callable[[], Any], expected: str | None) -> bool:
    """Return whether `act` raises the expected one-line error; without an expected one, `act` must succeed."""
    if expected is None:
        act()
        return False
    with pytest.raises(UserError, match=expected) as raised:
        act()
    assert "\n" not in str(raised.value)
    return True


@pytest.mark.parametrize("kind", CASES)
def test_loading_training_and_encoding_agree_with_transformers(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", kind)
    automatic = AutoModelForTextEncoding if kind in ENCODERS_WITH_DECODER else AutoModel
    library = automatic.from_pretrained(folder).eval()
    retriever = load_retriever(config_of(folder))
    buckets = retriever.tokenize(TEXTS, "passage").buckets
    theirs = by_transformers(library, buckets)
    assert (theirs.detach() @ theirs.T - torch.eye(len(TEXTS))).max() < 0.99, "embeddings of different texts are alike"
    assert distance(by_raytriever(retriever, buckets), theirs) < 1e-5

    # Training without dropout: the same result for every seed, and the gradients of transformers.
    backbone = retriever.query.backbone
    set_dropout(retriever, 0.0)
    retriever.train()
    trained = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        trained.append(by_raytriever(retriever, buckets))
    assert distance(trained[0], trained[1]) < 1e-6
    assert distance(trained[0], theirs) < 1e-5
    actual, expected = gradients(backbone, trained[1]), gradients(library, theirs)
    norm = torch.stack([value.norm() for value in expected.values()]).norm()
    for name, gradient in expected.items():
        assert (actual[name] - gradient).norm() < 1e-3 * norm, name
    with autocast("bf16", CPU):
        trains_in_fp32 = is_refused(lambda: check_precision(backbone, "bf16"), TRAINS_IN_FP32.get(kind))
    if not trains_in_fp32:
        assert distance(by_raytriever(retriever, buckets, "bf16"), theirs) < 0.1

    # With dropout, two seeds differ.
    set_dropout(retriever, 0.3)
    dropped = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        dropped.append(by_raytriever(retriever, buckets))
    assert distance(dropped[0], dropped[1]) > 1e-4

    with torch.inference_mode():
        packed = load_for_encoding(config_of(folder), "fp32", CPU)
        assert distance(by_raytriever(packed, buckets), theirs) < 1e-5
        if packing_obstacle(backbone) is None:
            contents = retriever.contents(TEXTS, "passage")
            retriever.eval().packs = True
            order = retriever.tokenize(TEXTS, "passage").buckets
            retriever.packs = False
            unpacked = retriever.batch_of(contents, "passage")
            assert (
                distance(by_raytriever(retriever, order), by_raytriever(retriever, unpacked.buckets)[unpacked.indices])
                < 1e-5
            )
        if not is_refused(lambda: load_for_encoding(config_of(folder), "bf16", CPU), NO_BF16.get(kind)):
            rounded = by_transformers(automatic.from_pretrained(folder, dtype=torch.bfloat16).eval(), buckets)
            ours = torch.cat(
                [load_for_encoding(config_of(folder), "bf16", CPU).encode(bucket, "passage") for bucket in buckets]
            )
            assert distance(ours, theirs) < 2 * distance(rounded, theirs) + 1e-3
        no_int8 = None if kind in INT8_MODELS else f"a model of type {kind} has no int8 layers"
        if not is_refused(lambda: load_for_encoding(config_of(folder), "int8", CPU), no_int8):
            assert distance(by_raytriever(load_for_encoding(config_of(folder), "int8", CPU), buckets), theirs) < 0.02


@pytest.mark.parametrize("by", ["config.json", "setting"])
@pytest.mark.parametrize(
    "kind", ["bert", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("roberta", "electra"))]
)
def test_an_encoder_that_reads_earlier_tokens_alone_is_the_same_everywhere(kind: str, by: str, tmp_path: Path) -> None:
    """transformers makes the mask of a BERT by `is_decoder`, and reads `is_causal` in batches without padding alone."""
    folder = write(tmp_path / "model", kind, **({"is_decoder": True} if by == "config.json" else {}))
    config = config_of(folder, **({} if by == "config.json" else {"bidirectional": False}))
    library = AutoModel.from_pretrained(folder, is_decoder=True, attn_implementation="eager").eval()
    symmetric = AutoModel.from_pretrained(folder, is_decoder=False).eval()
    retriever = load_retriever(config)
    texts = retriever.assemble(retriever.contents(TEXTS, "passage"), "passage")
    with torch.inference_mode():
        for buckets in ([retriever.pad(texts)], [retriever.pad([text]) for text in texts]):
            theirs = by_transformers(library, buckets)
            assert distance(theirs, by_transformers(symmetric, buckets)) > 0.05
            assert distance(by_raytriever(retriever.eval(), buckets), theirs) < 1e-5
            set_dropout(retriever, 0.0)
            assert distance(by_raytriever(retriever.train(), buckets), theirs) < 1e-5
            for precision, most in (("fp32", 1e-5), ("bf16", 0.01), ("int8", 0.02)):
                assert distance(by_raytriever(load_for_encoding(config, precision, CPU), buckets), theirs) < most
        assert distance(by_raytriever(retriever.eval(), [retriever.pack(texts, "passage")]), theirs) < 1e-5


def test_an_added_token_without_an_embedding_is_text(tmp_path: Path) -> None:
    """The published tokenizer of EmbeddingGemma has a token for images with the number of its embeddings."""
    folder = write(tmp_path / "model", "gemma3_text", vocab_size=len(tokenizer_of(KINDS["bert"])))
    texts = ["an <image_soft_token> token", "a plain text"]
    before = load_retriever(config_of(folder)).token_ids(texts, "passage")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    assert max(tokenizer(texts[0])["input_ids"]) == len(tokenizer) - 1
    tokenizer.save_pretrained(folder)
    after = load_retriever(config_of(folder)).token_ids(texts, "passage")
    assert [item.tolist() for item in after] == [item.tolist() for item in before]
