"""Encoder of one tower: a transformer, a pooling (mean, CLS or last token), optional truncation of the embeddings, and
normalisation for cosine similarity."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from raytriever.errors import ModelError
from raytriever.models.decoder import disable_cache
from raytriever.models.files import stored_tensors
from raytriever.models.lora import DROPOUT
from raytriever.models.weights import check_loaded, check_sizes, load_config, loading

States = Float[Tensor, "texts tokens width"]
Mask = Int64[Tensor, "texts tokens"]
Pooled = Float[Tensor, "texts width"]
TokenBatch = dict[str, Tensor]
_REMEDY = "give a directory with config.json and model.safetensors"


def mean_pooling(states: States, mask: Mask) -> Pooled:
    """Return the mean over a text's own tokens, in float32 for states of any type."""
    weights = mask.unsqueeze(-1).to(torch.float32)
    return (states.to(torch.float32) * weights).sum(1) / weights.sum(1).clamp(min=1)


def cls_pooling(states: States, mask: Mask) -> Pooled:
    """Return the first token of the text, with padding on either side."""
    first = mask.to(torch.int8).argmax(1)
    return states[torch.arange(len(states), device=states.device), first].to(torch.float32)


def last_pooling(states: States, mask: Mask) -> Pooled:
    """Return the last token of the text, with padding on either side."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * positions).argmax(1)
    return states[torch.arange(len(states), device=states.device), last].to(torch.float32)


POOLING: dict[str, Callable[[States, Mask], Pooled]] = {
    "mean": mean_pooling,
    "cls": cls_pooling,
    "last": last_pooling,
}


class Encoder(nn.Module):
    """Encoder of tokens into float32 embeddings, `[texts, width]`.

    Args:
        backbone: a transformers model that returns `last_hidden_state`.
        pooling: `mean`, `cls` or `last`.
        normalise: scale every embedding to length one, so that a dot product is the cosine.
        truncate_dim: number of first components that are kept before normalisation; None for all.
    """

    def __init__(self, backbone: nn.Module, pooling: str, normalise: bool, truncate_dim: int | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        self.normalise = normalise
        self.truncate_dim = truncate_dim
        # A pooler head gets no gradient. If it were trainable, DDP would fail. If it were removed, AutoModel would fill
        # its weights with random numbers when it reads a written directory.
        pooler = getattr(backbone, "pooler", None)
        if isinstance(pooler, nn.Module):
            pooler.requires_grad_(False)

    def forward(self, tokens: TokenBatch) -> Float[Tensor, "texts width"]:
        """Encode one padded batch of `input_ids` and `attention_mask` (and `token_type_ids` where used)."""
        return self.embed(self.backbone(**tokens).last_hidden_state, tokens["attention_mask"])

    def embed(
        self, states: Float[Tensor, "texts tokens hidden"], mask: Int64[Tensor, "texts tokens"]
    ) -> Float[Tensor, "texts width"]:
        """Compute embeddings from the last states of the tokens."""
        pooled = POOLING[self.pooling](states, mask)
        if self.truncate_dim is not None:
            pooled = pooled[:, : self.truncate_dim]
        return nn.functional.normalize(pooled, dim=-1) if self.normalise else pooled


def load_backbone(directory: Path) -> nn.Module:
    """Load a transformers model from the safetensors of a local directory, without running code of the directory.

    A pooler without weights in the files is removed, as in a model without a pooler.

    Raises:
        ModelError: the files are missing or damaged, are not of a text encoder, or do not hold all of its weights.
    """
    from transformers import AutoModel

    config, stored = load_config(directory, _REMEDY), stored_tensors(directory)
    disable_cache(config)
    with loading(directory, _REMEDY):
        with torch.device("meta"):
            empty = AutoModel.from_config(config, trust_remote_code=False)
        _check_text_encoder(empty, directory)
        check_sizes(empty, stored, directory)
        model, report = AutoModel.from_pretrained(
            directory,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    backbone: nn.Module = model
    pooler = {name for name, _ in backbone.named_parameters() if name.startswith("pooler.")}
    if pooler and pooler <= report["missing_keys"] and "add_pooling_layer" in signature(type(backbone)).parameters:
        backbone.pooler = None  # type: ignore[assignment]
        report["missing_keys"] -= pooler
    check_loaded(backbone, report, directory)
    return backbone


def _check_text_encoder(model: Any, directory: Path) -> None:
    """Check that a model reads tokens and returns a state for each of them; raises `ModelError`."""
    config = model.config
    reads_tokens = model.main_input_name == "input_ids" and isinstance(getattr(config, "hidden_size", None), int)
    if config.is_encoder_decoder or not reads_tokens:
        kind = "an encoder with a decoder" if config.is_encoder_decoder else "not a text encoder"
        raise ModelError(f"is {kind} ({config.model_type})", str(directory), "give a text encoder, such as a BERT")


def set_dropout(module: nn.Module, probability: float) -> None:
    """Set the probability of every dropout of a transformer, including its attention; adapters keep their own."""
    for name, submodule in module.named_modules():
        if isinstance(submodule, nn.Dropout) and DROPOUT not in name.split("."):
            submodule.p = probability
