"""AdamW with weight decay on matrices only, and its learning rate: a linear warm-up, then a linear decay to zero.

Biases and normalization scales have no weight decay."""

from __future__ import annotations

import torch
from torch import nn


def build_optimizer(module: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over the trainable parameters (Loshchilov & Hutter, 2019)."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, fused=True)


def learning_rate_scale(step: int, warmup_steps: int, total_steps: int) -> float:
    """The factor, 0 to 1, on the highest learning rate at `step` (counted from 0) of `total_steps`."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
