"""Low-rank adapters trained in an encoder's place (LoRA; Hu et al., 2022, arXiv:2106.09685), by `peft`.

A linear layer W x becomes W x + (alpha / rank) B A x, with A of `rank` rows, B of `rank` columns and zero at first. W
and all else is frozen, so gradients and moments are those of A and B alone. Adapters stand inside the encoder, whose
class and settings stay what they were; what is written is W + (alpha / rank) B A, which needs no `peft` to be read.

By default every linear layer of the blocks gets adapters, as Dettmers et al. (2023, arXiv:2305.14314, figure 2) found
to matter more than the rank. The pooler gets none: no embedding comes out of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raytriever.errors import ConfigError
from raytriever.models.config import ModelConfig
from raytriever.options import did_you_mean

_PART, _BASE = "lora_", "base_layer"
DROPOUT = "lora_dropout"  # the place of an adapter's dropout in a layer
_POOLER = "pooler"


def add_adapters(backbone: nn.Module, config: ModelConfig) -> None:
    """Put fresh adapters into a transformers model, in place, and freeze all else of it.

    Args:
        backbone: not adapted yet.
        config: `lora_rank` above 0.

    Raises:
        ConfigError: `peft` is not installed, or no linear layer is called as asked.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("peft is not installed", "--lora-rank", "pip install 'raytriever[lora]'") from error
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=2 * config.lora_rank if config.lora_alpha is None else config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=_targets(backbone, config.lora_targets),
    )
    inject_adapter_in_model(settings, backbone)


def share_frozen(one: nn.Module, other: nn.Module) -> None:
    """Let two encoders hold one copy of each frozen tensor in which they are equal."""
    own = dict(one.named_parameters())
    for name, parameter in list(other.named_parameters()):
        twin = own.get(name)
        if twin is None or parameter.requires_grad or twin.requires_grad or not torch.equal(parameter, twin):
            continue
        module, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(module), leaf, twin)


@torch.no_grad()
def merged_weights(backbone: nn.Module) -> dict[str, Tensor] | None:
    """Weights in which the adapters are contained, named as before there were any; None where there are none.

    The backbone itself is left as it is, so that training may go on. Takes the memory of the adapted layers.
    """
    layers: dict[str, Any] = {
        name: module for name, module in backbone.named_modules() if isinstance(getattr(module, _BASE, None), nn.Module)
    }
    if not layers:
        return None
    merged = {}
    for name, value in backbone.state_dict().items():
        layer, found, parameter = name.rpartition(f".{_BASE}.")
        if found and parameter == "weight":
            (adapter,) = layers[layer].active_adapters
            value = value + layers[layer].get_delta_weight(adapter)
        if f".{_PART}" not in name:
            merged[f"{layer}.{parameter}" if found else name] = value
    return merged


def _targets(backbone: nn.Module, wanted: str) -> list[str]:
    """Whole names of the linear layers that are asked for by their last parts, or of all but the pooler's."""
    linear = [
        name
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and _POOLER not in name.split(".")
    ]
    if not linear:
        raise ConfigError("the encoder has no linear layer to adapt", "--lora-rank", "train it whole")
    if not wanted.strip():
        return linear
    asked = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in asked:
        if not any(_ends(layer, name) for layer in linear):
            known = {layer.rsplit(".", 1)[-1] for layer in linear}
            raise ConfigError(f"the encoder has no linear layer {name!r}", "--lora-targets", did_you_mean(name, known))
    return [layer for layer in linear if any(_ends(layer, name) for name in asked)]


def _ends(layer: str, name: str) -> bool:
    return f".{layer}".endswith(f".{name}")
