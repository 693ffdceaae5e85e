"""LoRA adapters, which are trained instead of the encoder's weights (Hu et al., 2022, arXiv:2106.09685), with `peft`.

A linear layer W x becomes W x + (alpha / rank) B A x. A has `rank` rows, and B has `rank` columns and is initially
zero. W and all other weights are frozen, so only A and B have gradients and optimizer moments. The encoder keeps its
class and settings. The saved weights are W + (alpha / rank) B A, so reading them does not need `peft`. If W is bf16, A
and B are float32; the sum is computed in float32 and then rounded.

By default every linear layer of the blocks gets adapters. Dettmers et al. (2023, arXiv:2305.14314, figure 2) found this
more important than the rank. The pooler gets no adapters, because embeddings do not depend on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from raytriever.core.errors import ConfigError, setting
from raytriever.core.paths import expanded
from raytriever.core.unknown_names import did_you_mean
from raytriever.models.directory.hub_or_local import MINILM
from raytriever.models.model_settings import ModelConfig

_PART, _BASE = "lora_", "base_layer"
DROPOUT = "lora_dropout"  # name of the dropout module of an adapter
_POOLER = "pooler"


def add_adapters(backbone: nn.Module, config: ModelConfig) -> None:
    """Add new adapters to a transformers model, in place, and freeze all other weights. Raise `ConfigError` if `peft`
    is not installed, or no linear layer has a requested name."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("peft is not installed", setting("lora_rank"), "pip install 'raytriever[lora]'") from error
    rank, targets = config.lora_rank, _targets(backbone, config.lora_targets)
    alpha = 2 * rank if config.lora_alpha is None else config.lora_alpha
    settings = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=config.lora_dropout, target_modules=targets)
    inject_adapter_in_model(settings, backbone)
    for parameter in backbone.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # peft has created the adapter in the type of its layer


def share_frozen(first: nn.Module, other: nn.Module) -> None:
    """Make two encoders share the frozen tensors that are equal in both, in place."""
    own = dict(first.named_parameters())
    for name, parameter in list(other.named_parameters()):
        twin = own.get(name)
        if twin is None or parameter.requires_grad or twin.requires_grad or not torch.equal(parameter, twin):
            continue
        module, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(module), leaf, twin)


@torch.no_grad()
def merged_weights(backbone: nn.Module) -> dict[str, Tensor] | None:
    """Return the weights with the adapters merged, under their original names; None if there are no adapters. The
    backbone does not change, so training can continue. The result needs memory for a copy of the adapted layers."""
    layers: dict[str, Any] = {
        name: module for name, module in backbone.named_modules() if isinstance(getattr(module, _BASE, None), nn.Module)
    }
    if not layers:
        return None
    merged = {}
    for name, value in backbone.state_dict().items():
        layer, is_adapted, parameter = name.rpartition(f".{_BASE}.")
        if is_adapted and parameter == "weight":
            (adapter,) = layers[layer].active_adapters
            value = (value.float() + layers[layer].get_delta_weight(adapter).float()).to(value.dtype)
        if f".{_PART}" not in name:
            merged[f"{layer}.{parameter}" if is_adapted else name] = value
    return merged


def write_adapters(backbone: Any, config: ModelConfig, directory: Path) -> None:
    """Write the adapters in the format of `peft`. sentence-transformers and transformers load them onto the base model.

    Args:
        config: settings with the name of the base model. If this is local, its absolute path is written.
    """
    (settings,) = backbone.peft_config.values()
    is_local = config.model == MINILM or expanded(config.model).exists()
    settings.base_model_name_or_path = str(Path(backbone.name_or_path).absolute()) if is_local else config.model
    settings.revision = config.revision
    settings.inference_mode = True
    settings.save_pretrained(directory)
    tensors = {
        f"base_model.model.{name.replace('.default.', '.')}": parameter.detach().cpu().contiguous()
        for name, parameter in backbone.named_parameters()
        if f".{_PART}" in name
    }
    save_file(tensors, directory / "adapter_model.safetensors", {"format": "pt"})


def _targets(backbone: nn.Module, suffixes: str) -> list[str]:
    """Return the full names of the linear layers with these suffixes. For "", return all layers except the pooler's."""
    linear = [
        name
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and _POOLER not in name.split(".")
    ]
    if not linear:
        raise ConfigError("the encoder has no linear layer to adapt", setting("lora_rank"), "leave it out")
    if not suffixes.strip():
        return linear
    names = [name.strip() for name in suffixes.split(",") if name.strip()]
    for name in names:
        if not any(_ends(layer, name) for layer in linear):
            endings = {layer.rsplit(".", 1)[-1] for layer in linear}
            what = f"the encoder has no linear layer {name!r}"
            raise ConfigError(what, setting("lora_targets"), did_you_mean(name, endings))
    return [layer for layer in linear if any(_ends(layer, name) for name in names)]


def _ends(layer: str, name: str) -> bool:
    return f".{layer}".endswith(f".{name}")
