"""Encoder of one tower: a transformer, a pooling, a head of further modules, optional truncation of the embeddings, and
normalisation for cosine similarity.

Poolings are those of sentence-transformers, computed in float32. All modes work with padding on either side and with
packed texts. The first tokens of a text, those of its prompt, can be left out. Packed texts are reduced by torch's
segment reductions: each sum is one loop over the tokens of a text, and each token has one gradient, so results have the
same bits on a GPU at every call. Padding them for `pool` would take the memory of the longest text for every text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from raytriever.errors import ConfigError, ModelError, setting
from raytriever.models.decoder import disable_cache
from raytriever.models.files import check_loaded, empty_model, first_line, load_weights
from raytriever.models.lora import DROPOUT
from raytriever.models.packing import TokenBatch, is_packed
from raytriever.models.pipeline.head import output_width
from raytriever.models.pipeline.transformer import Transformer
from raytriever.models.varlen import packed_states

States = Float[Tensor, "texts tokens width"]
Mask = Int64[Tensor, "texts tokens"]
Pooled = Float[Tensor, "texts width"]


def pool(states: States, mask: Mask, pooling: str, left_out: int | Tensor = 0) -> Float[Tensor, "texts pooled"]:
    """Return one float32 vector per text.

    Args:
        mask: 1 for tokens, 0 for padding.
        pooling: a mode of `MODES`, or several joined by `+`, whose vectors are concatenated.
        left_out: number of first tokens of each text that are not pooled; an integer, or `[texts]`.

    Example:
        >>> states, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]])
        >>> pool(states, mask, "mean+max")
        tensor([[2., 3.]])
    """
    places = mask.cumsum(1)  # 1 for the first token of a text, also after padding
    if isinstance(left_out, Tensor):
        left_out = left_out[:, None]
    kept = mask * (places > left_out)
    return torch.cat([MODES[mode](states, kept, places) for mode in pooling.split("+")], dim=1)


def pool_packed(
    states: Float[Tensor, "tokens width"], starts: Int32[Tensor, " bounds"], pooling: str, left_out: int | Tensor = 0
) -> Float[Tensor, "texts pooled"]:
    """Return one float32 vector per packed text; equals `pool` except for rounding.

    Args:
        starts: index of the first token of each text, and the number of tokens.
        pooling: a mode of `MODES`, or several joined by `+`.
        left_out: number of first tokens of each text that are not pooled; an integer, or `[texts]`.
    """
    starts = starts.long()
    lengths = starts.diff()
    if not isinstance(left_out, Tensor):
        left_out = torch.full_like(lengths, left_out)  # made on the device: nothing is copied
    packed = _Packed(states, starts, lengths, torch.where(left_out < lengths, left_out, lengths))
    return torch.cat([_PACKED_MODES[mode](packed) for mode in pooling.split("+")], dim=1)


@dataclass(frozen=True)
class _Packed:
    """Packed texts.

    Args:
        starts: index of the first token of each text, and the number of tokens.
        lengths: number of tokens of each text.
        left_out: number of first tokens of each text that are not pooled.
    """

    states: Float[Tensor, "tokens width"]
    starts: Int64[Tensor, " bounds"]
    lengths: Int64[Tensor, " texts"]
    left_out: Int64[Tensor, " texts"]

    def spread(self, values: Int64[Tensor, " texts"]) -> Int64[Tensor, " tokens"]:
        """Return the value of its text for each token."""
        # Without its size, a CPU would wait for the GPU to compute it.
        return values.repeat_interleave(self.lengths, output_size=len(self.states))

    @cached_property
    def places(self) -> Int64[Tensor, " tokens"]:
        """Number of each token in its text, counted from 1."""
        return torch.arange(1, len(self.states) + 1, device=self.states.device) - self.spread(self.starts[:-1])

    @cached_property
    def kept(self) -> Bool[Tensor, " tokens"]:
        """True for the tokens that are pooled."""
        return self.places > self.spread(self.left_out)

    def reduce(self, values: Float[Tensor, "tokens width"], how: str) -> Pooled:
        """Return the sum or the max of the values of each text."""
        return torch.segment_reduce(values, how, offsets=self.starts, axis=0, unsafe=True)

    def at(self, tokens: Int64[Tensor, " texts"]) -> Pooled:
        """Return the states of these tokens of each text; of the first token where all are left out."""
        inside = torch.where(self.left_out < self.lengths, tokens, 0)
        return self.states.index_select(0, self.starts[:-1] + inside).to(torch.float32)

    def mean(self, exponent: float = 1.0, weighted: bool = False) -> Pooled:
        """Return the sum of the states, divided by a power of the sum of their weights."""
        weights = (self.kept * self.places if weighted else self.kept).to(torch.float32)[:, None]
        total = self.reduce(weights, "sum").clamp(min=1)
        return self.reduce(self.states.to(torch.float32) * weights, "sum") / total**exponent

    def max(self) -> Pooled:
        """Return the largest value of each component; 0 for a text without tokens."""
        most = self.reduce(self.states.to(torch.float32).masked_fill(~self.kept[:, None], float("-inf")), "max")
        return most.masked_fill((self.left_out == self.lengths)[:, None], 0.0)


_PACKED_MODES: dict[str, Callable[[_Packed], Pooled]] = {
    "mean": _Packed.mean,
    "cls": lambda packed: packed.at(packed.left_out),
    "last": lambda packed: packed.at(packed.lengths - 1),
    "max": _Packed.max,
    "mean_sqrt_len": lambda packed: packed.mean(exponent=0.5),
    "weightedmean": lambda packed: packed.mean(weighted=True),
}


def _mean(states: States, kept: Mask, places: Mask, exponent: float = 1.0, weighted: bool = False) -> Pooled:
    """Return the sum of the states, divided by a power of the sum of their weights."""
    weight = (kept * places if weighted else kept).unsqueeze(-1).to(torch.float32)
    return (states.to(torch.float32) * weight).sum(1) / weight.sum(1).clamp(min=1) ** exponent


def _max(states: States, kept: Mask) -> Pooled:
    """Return the largest value of each component; 0 for a text without tokens."""
    most = states.to(torch.float32).masked_fill(kept.unsqueeze(-1) == 0, float("-inf")).amax(1)
    return most.masked_fill(kept.amax(1, keepdim=True) == 0, 0.0)


def _at(states: States, tokens: Int64[Tensor, " texts"]) -> Pooled:
    return states[torch.arange(len(states), device=states.device), tokens].to(torch.float32)


# Functions of the states, the tokens that are pooled, and the number of each token in its text, counted from 1.
MODES: dict[str, Callable[[States, Mask, Mask], Pooled]] = {
    "mean": _mean,
    "cls": lambda states, kept, places: _at(states, kept.to(torch.int8).argmax(1)),
    "last": lambda states, kept, places: _at(states, (kept * places).argmax(1)),
    "max": lambda states, kept, places: _max(states, kept),
    "mean_sqrt_len": partial(_mean, exponent=0.5),
    # The nth token of a text has the weight n (Muennighoff 2022, arXiv:2202.08904).
    "weightedmean": partial(_mean, weighted=True),
}


# Models with a decoder whose encoder transformers loads alone.
ENCODERS_WITH_DECODER = ("t5", "mt5", "umt5")
# Models whose layers read the probabilities of their dropout in the configuration.
READ_CONFIG = ("falcon",)


class Encoder(nn.Module):
    """Encoder of tokens into float32 embeddings, `[texts, width]`.

    Args:
        backbone: a transformers model that returns `last_hidden_state`.
        normalise: scale every embedding to length one, so that a dot product is the cosine.
        truncate_dim: number of first components that are kept before normalisation; None for all.
        head: modules between pooling and truncation.
    """

    def __init__(
        self,
        backbone: nn.Module,
        pooling: str,
        normalise: bool,
        truncate_dim: int | None = None,
        head: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.ModuleList(head)
        self.pooling = pooling
        self.normalise = normalise
        self.truncate_dim = truncate_dim
        # A pooler head gets no gradient. If it were trainable, DDP would fail. If it were removed, AutoModel would fill
        # its weights with random numbers when it reads a written directory.
        pooler = getattr(backbone, "pooler", None)
        if isinstance(pooler, nn.Module):
            pooler.requires_grad_(False)

    @property
    def pooled_width(self) -> int:
        """Number of components after pooling."""
        return hidden_size(self.backbone) * len(self.pooling.split("+"))

    @property
    def full_width(self) -> int:
        """Number of components before truncation."""
        return output_width(list(self.head), self.pooled_width)

    @property
    def width(self) -> int:
        """Number of components of an embedding."""
        return self.truncate_dim or self.full_width

    @property
    def blocks(self) -> list[nn.Module]:
        """Blocks of the transformer: the elements of its outermost lists of modules."""
        return _outermost_lists(self.backbone)

    def forward(self, tokens: TokenBatch, left_out: int | Tensor = 0) -> Float[Tensor, "texts width"]:
        """Encode one batch: packed, or padded `input_ids` and `attention_mask` (and `token_type_ids` where used).

        Args:
            left_out: number of first tokens of each text that are not pooled; an integer, or `[texts]`.
        """
        if is_packed(tokens):
            states = packed_states(self.backbone, tokens)
            return self.finish(pool_packed(states, tokens["starts"], self.pooling, left_out))
        return self.embed(self.backbone(**tokens).last_hidden_state, tokens["attention_mask"], left_out)

    def embed(self, states: States, mask: Mask, left_out: int | Tensor = 0) -> Float[Tensor, "texts width"]:
        """Compute embeddings from the last states of the tokens of a padded batch."""
        return self.finish(pool(states, mask, self.pooling, left_out))

    def finish(self, pooled: Float[Tensor, "texts pooled"]) -> Float[Tensor, "texts width"]:
        """Apply the modules after the pooling, truncation and normalisation."""
        for module in self.head:
            pooled = module(pooled)
        if self.truncate_dim is not None:
            pooled = pooled[:, : self.truncate_dim]
        return nn.functional.normalize(pooled, dim=-1) if self.normalise else pooled


def _outermost_lists(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        found += list(child) if isinstance(child, nn.ModuleList) else _outermost_lists(child)
    return found


def hidden_size(backbone: nn.Module) -> int:
    """Return the number of components of a transformer's states."""
    return int(backbone.config.hidden_size)  # type: ignore[union-attr,arg-type]


def load_backbone(transformer: Transformer, dtype: torch.dtype = torch.float32, weights: bool = True) -> nn.Module:
    """Load a transformers model from its safetensors, without running code of its directory.

    A pooler without weights in the files is removed, as in a model without a pooler.

    Args:
        dtype: type of the weights; stored weights of another type are converted one at a time.
        weights: whether weights are read; otherwise the model is on the meta device.

    Raises:
        ModelError: the files are missing or damaged, are not of a text encoder, or do not hold all of its weights.
    """
    directory, config = transformer.folder, transformer.config
    disable_cache(config)
    _check_not_quantised(config, directory)
    kind = _model_class(config, directory)
    if not weights:
        empty: nn.Module = empty_model(kind, config, directory, dtype, _check_text_encoder)
        return empty
    backbone, report = load_weights(kind, config, directory, dtype, _check_text_encoder)
    pooler = {name for name, _ in backbone.named_parameters() if name.startswith("pooler.")}
    if pooler and pooler <= report["missing_keys"] and "add_pooling_layer" in signature(type(backbone)).parameters:
        backbone.pooler = None
        report["missing_keys"] -= pooler
    check_loaded(backbone, report, directory)
    return backbone


def _model_class(config: Any, directory: Path) -> Any:
    """Return the class that loads a model: of a T5, only the encoder is loaded."""
    from transformers import AutoModel, AutoModelForTextEncoding

    if config.model_type in ENCODERS_WITH_DECODER:
        return AutoModelForTextEncoding
    if config.is_encoder_decoder:
        raise ModelError(
            f"is an encoder with a decoder ({config.model_type})", str(directory), "give a text encoder, such as a BERT"
        )
    return AutoModel


def _check_not_quantised(config: Any, directory: Path) -> None:
    """Check that a model has weights that can be trained; raises `ModelError`."""
    settings = getattr(config, "quantization_config", None)
    if settings is not None:
        method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
        method = getattr(method, "value", method) or "quantization_config"
        raise ModelError(f"is quantised ({method})", str(directory), "give the model before quantisation")


def _check_text_encoder(model: Any, directory: Path) -> None:
    """Check that a model reads tokens and returns a state for each of them; raises `ModelError`."""
    config = model.config
    reads_tokens = model.main_input_name == "input_ids" and isinstance(getattr(config, "hidden_size", None), int)
    if not reads_tokens:
        raise ModelError(
            f"is not a text encoder ({config.model_type})", str(directory), "give a text encoder, such as a BERT"
        )


def set_dropout(module: nn.Module, probability: float) -> None:
    """Set the probability of every dropout of a transformer, including its attention; adapters keep their own.

    A module of transformers keeps it as an `nn.Dropout`, or as a float such as `attention_dropout` or `attn_pdrop`.
    """
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
    """Check that a transformers model computes with its weights and the autocast that is active, by two short texts.

    Args:
        precision: name for the message.

    Raises:
        ConfigError: an operation of the model does not exist in this precision, such as the Fourier transform in bf16.
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
