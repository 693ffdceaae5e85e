"""Optimizer and learning-rate schedule. The rate is a pure function of the step, so there is no scheduler state."""

from __future__ import annotations

import torch
from torch import nn


def build_optimizer(module: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov & Hutter, 2019) over the trainable parameters, with weight decay on matrices only."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def learning_rate_scale(step: int, warmup_steps: int, total_steps: int) -> float:
    """Return the factor (0 to 1) by which the peak learning rate is multiplied at `step`, counted from 0.

    The schedule is linear warmup, then linear decay to zero at `total_steps`."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
