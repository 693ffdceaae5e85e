"""Prepare a loaded retriever for training, in place: LoRA adapters, activation checkpointing, and on a CPU our own
attention and dropout."""

from __future__ import annotations

import torch
from torch import nn

from raytriever.errors import ConfigError
from raytriever.models.attention import use_cpu_attention
from raytriever.models.config import ModelConfig, check_lora
from raytriever.models.dropout import Dropout
from raytriever.models.lora import add_adapters, share_frozen
from raytriever.models.retriever import Retriever


def prepare_for_training(retriever: Retriever, config: ModelConfig, seed: int) -> None:
    """Make a retriever as it is to be trained, in place; the same on every worker.

    Called once, before optimiser and strategy are made. Both of what it adds acts in training mode only: adapters'
    dropout and checkpointing need `retriever.train()`, whatever the encoder's own dropout is.

    Args:
        retriever: as loaded, on any device.
        config: its settings.
        seed: fixes the adapters' first weights; the generators of the process are left as they stand.

    Raises:
        ConfigError: settings contradict each other, a package is missing, or the encoder cannot do it.
    """
    check_lora(config)
    backbones = [retriever.query.backbone]
    if retriever.passage is not retriever.query:
        backbones.append(retriever.passage.backbone)
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
    """Activation checkpointing (Chen et al., 2016, arXiv:1604.06174), block by block, dropout drawn again alike."""
    # transformers 5.23 warns of the old name; earlier ones know no other.
    new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    enable = getattr(backbone, new, None) or getattr(backbone, old)
    # Nothing here generates; left on, transformers tells in every process that it is turned off.
    backbone.config.use_cache = False  # type: ignore[union-attr]
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise ConfigError(
            f"{type(backbone).__name__} cannot do it", "--activation-checkpointing", "drop it, or cache gradients"
        ) from error


def train_on_cpu(retriever: Retriever) -> None:
    """Give every tower the attention and the dropout that are fast on a CPU, in place; parameters stay as they are."""
    for tower in {retriever.query, retriever.passage}:
        use_cpu_attention(tower.backbone)
    for name, part in list(retriever.named_modules()):
        if type(part) is nn.Dropout:
            retriever.set_submodule(name, Dropout(part.p).train(part.training))
