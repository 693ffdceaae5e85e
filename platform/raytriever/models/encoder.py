"""Encoder of one tower: transformer, pooling, a head of further modules, optional truncation, and normalization for
cosine similarity."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from raytriever.core.errors import ConfigError, ModelError, setting
from raytriever.models.decoder import disable_cache
from raytriever.models.directory.head import output_dim
from raytriever.models.directory.model_files import check_loaded, empty_model, first_line, load_weights
from raytriever.models.directory.transformer_settings import Transformer
from raytriever.models.lora import DROPOUT
from raytriever.models.packed_attention import packed_states
from raytriever.models.packing import TokenBatch, is_packed
from raytriever.models.pooling import Mask, States, pool, pool_packed

# Encoder-decoder models from which transformers can load only the encoder.
ENCODERS_WITH_DECODER = ("t5", "mt5", "umt5")
# Models whose layers read their dropout probabilities from the configuration.
READ_CONFIG = ("falcon",)


class Encoder(nn.Module):
    """Encoder of tokens into float32 embeddings, `[texts, dim]`.

    Args:
        backbone: a transformers model that returns `last_hidden_state`.
        normalize: scale every embedding to length one, so that a dot product is the cosine.
        pooling: a mode of `pooling.MODES`, or several joined by `+`.
        truncate_dim: number of first components to keep, before normalization; None for all.
        head: modules between pooling and truncation.
    """

    def __init__(
        self,
        backbone: nn.Module,
        pooling: str,
        normalize: bool,
        truncate_dim: int | None = None,
        head: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.ModuleList(head)
        self.pooling = pooling
        self.normalize = normalize
        self.truncate_dim = truncate_dim
        # The pooler gets no gradient. If it were trainable, DDP would fail. If it were removed, AutoModel would
        # initialize it with random weights when it reads a saved directory.
        pooler = getattr(backbone, "pooler", None)
        if isinstance(pooler, nn.Module):
            pooler.requires_grad_(False)

    @property
    def pooled_dim(self) -> int:
        """Dimension after pooling."""
        return hidden_size(self.backbone) * len(self.pooling.split("+"))

    @property
    def full_dim(self) -> int:
        """Dimension before truncation."""
        return output_dim(list(self.head), self.pooled_dim)

    @property
    def dim(self) -> int:
        """Embedding dimension."""
        return self.truncate_dim or self.full_dim

    @property
    def blocks(self) -> list[nn.Module]:
        """Blocks of the transformer: the elements of its outermost module lists."""
        return _outermost_lists(self.backbone)

    def forward(self, tokens: TokenBatch, left_out: int | Tensor = 0) -> Float[Tensor, "texts dim"]:
        """Encode one packed batch, or one padded batch with `input_ids`, `attention_mask` and perhaps `token_type_ids`.

        Args:
            left_out: number of first tokens of each text that are not pooled; an integer, or `[texts]`.
        """
        if is_packed(tokens):
            states = packed_states(self.backbone, tokens)
            return self.finish(pool_packed(states, tokens["starts"], self.pooling, left_out))
        return self.embed(self.backbone(**tokens).last_hidden_state, tokens["attention_mask"], left_out)

    def embed(self, states: States, mask: Mask, left_out: int | Tensor = 0) -> Float[Tensor, "texts dim"]:
        """Compute embeddings from the last hidden states of a padded batch."""
        return self.finish(pool(states, mask, self.pooling, left_out))

    def finish(self, pooled: Float[Tensor, "texts pooled"]) -> Float[Tensor, "texts dim"]:
        """Apply the modules after the pooling, then truncate, then normalize."""
        for module in self.head:
            pooled = module(pooled)
        if self.truncate_dim is not None:
            pooled = pooled[:, : self.truncate_dim]
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def _outermost_lists(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        found += list(child) if isinstance(child, nn.ModuleList) else _outermost_lists(child)
    return found


def hidden_size(backbone: nn.Module) -> int:
    """Return the hidden size of a transformer."""
    return int(backbone.config.hidden_size)  # type: ignore[union-attr,arg-type]


def load_backbone(transformer: Transformer, dtype: torch.dtype = torch.float32, weights: bool = True) -> nn.Module:
    """Load a transformers model from its safetensors, without running code of its directory.

    A pooler without weights in the files is removed, as in a model without a pooler. Raise `ModelError` if files are
    missing or damaged, do not belong to a text encoder, or lack some of its weights.

    Args:
        transformer: folder and configuration of the model.
        dtype: type of the weights. Stored weights of another type are converted one at a time.
        weights: if False, no weights are read, and the model is on the meta device.
    """
    directory, config = transformer.folder, transformer.config
    disable_cache(config)
    _check_not_quantized(config, directory)
    kind = _model_class(config, directory)
    if not weights:
        empty: nn.Module = empty_model(kind, config, directory, dtype, _check_text_encoder)
        return empty
    backbone, loading_info = load_weights(kind, config, directory, dtype, _check_text_encoder)
    pooler = {name for name, _ in backbone.named_parameters() if name.startswith("pooler.")}
    if (
        pooler
        and pooler <= loading_info["missing_keys"]
        and "add_pooling_layer" in signature(type(backbone)).parameters
    ):
        backbone.pooler = None
        loading_info["missing_keys"] -= pooler
    check_loaded(backbone, loading_info, directory)
    return backbone


def _model_class(config: Any, directory: Path) -> Any:
    """Return the class that loads a model. From a T5, it loads only the encoder."""
    from transformers import AutoModel, AutoModelForTextEncoding

    if config.model_type in ENCODERS_WITH_DECODER:
        return AutoModelForTextEncoding
    if config.is_encoder_decoder:
        what = f"is an encoder with a decoder ({config.model_type})"
        raise ModelError(what, str(directory), "give a text encoder, such as a BERT")
    return AutoModel


def _check_not_quantized(config: Any, directory: Path) -> None:
    settings = getattr(config, "quantization_config", None)
    if settings is not None:
        method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
        method = getattr(method, "value", method) or "quantization_config"
        raise ModelError(f"is quantized ({method})", str(directory), "give the model before quantization")


def _check_text_encoder(model: Any, directory: Path) -> None:
    config = model.config
    reads_tokens = model.main_input_name == "input_ids" and isinstance(getattr(config, "hidden_size", None), int)
    if not reads_tokens:
        what = f"is not a text encoder ({config.model_type})"
        raise ModelError(what, str(directory), "give a text encoder, such as a BERT")


def set_dropout(module: nn.Module, probability: float) -> None:
    """Set the probability of every dropout of a transformer, also in its attention. Adapters keep their own dropout.
    Transformers' modules store the probability in an `nn.Dropout`, or as a float such as `attn_pdrop`."""
    for name, submodule in module.named_modules():
        if DROPOUT in name.split("."):
            continue
        if isinstance(submodule, _DropoutNd):
            submodule.p = probability
        _set_probabilities(submodule, probability)
        config = getattr(submodule, "config", None)
        if getattr(config, "model_type", None) in READ_CONFIG:
            _set_probabilities(config, probability)


def _set_probabilities(holder: Any, probability: float) -> None:
    for name, value in vars(holder).items():
        is_dropout = "dropout" in name or name.endswith("pdrop")
        if is_dropout and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(holder, name, probability)


@torch.no_grad()
def check_precision(backbone: nn.Module, precision: str) -> None:
    """Check, with two short texts, that a transformers model can compute in its precision and with the active autocast.
    Raise `ConfigError` if an operation of the model does not exist in this precision, such as the Fourier transform in
    bf16.

    Args:
        precision: name of the precision for the error message.
    """
    device = next(backbone.parameters()).device
    tokens = torch.zeros(2, 4, dtype=torch.long, device=device)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], device=device)
    try:
        backbone(input_ids=tokens, attention_mask=mask)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = f"{type(backbone).__name__} does not compute in {precision} ({first_line(error)[:200]})"
        raise ConfigError(reason, setting("precision"), "use fp32") from error
