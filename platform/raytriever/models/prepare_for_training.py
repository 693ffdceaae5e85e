"""Prepare a loaded retriever for training, in place: add LoRA adapters and activation checkpointing."""

from __future__ import annotations

import torch
from torch import nn

from raytriever.core.errors import ConfigError, setting
from raytriever.core.setting_declarations import check_changed
from raytriever.models.lora import add_adapters, share_frozen
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever


def prepare_for_training(retriever: Retriever, config: ModelConfig, seed: int) -> None:
    """Add adapters and activation checkpointing to a retriever, in place. The result is the same on every worker.

    Call this once, before the optimizer and the strategy are created. The dropout of adapters and checkpointing are
    active in training mode only, so call `retriever.train()` even if the encoder has no dropout. Raise `ConfigError` if
    settings contradict each other, a package is missing, or the encoder lacks support.

    Args:
        seed: seed of the adapters' initial weights. The random generators of the process do not change.
    """
    check_changed(config)
    backbones = [retriever.query.backbone]
    if retriever.passage.backbone is not retriever.query.backbone:
        backbones.append(retriever.passage.backbone)
    if config.save_adapters and (len(backbones) > 1 or config.bidirectional is not None):
        several = len(backbones) > 1
        kind = "in a model with two transformers" if several else f"with {setting('bidirectional', True)}"
        what = f"sentence-transformers cannot load adapters {kind}"
        raise ConfigError(what, setting("save_adapters", True), "leave it out, and use the merged weights in model/")
    if config.lora_rank:
        device = next(retriever.parameters()).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for backbone in backbones:
                add_adapters(backbone, config)
        if len(backbones) > 1:
            share_frozen(*backbones)
        retriever.train(retriever.training)
    if config.activation_checkpointing:
        for backbone in backbones:
            _checkpoint_blocks(backbone)


def _checkpoint_blocks(backbone: nn.Module) -> None:
    """Checkpoint activations block by block (Chen et al., 2016, arXiv:1604.06174), with the same dropout masks."""
    # transformers 5.23 warns about the old name; earlier versions have only the old name.
    new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    enable = getattr(backbone, new, None) or getattr(backbone, old)
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        what = f"{type(backbone).__name__} does not support activation checkpointing"
        remedy = "leave it out, or use gradient caching"
        raise ConfigError(what, setting("activation_checkpointing", True), remedy) from error
