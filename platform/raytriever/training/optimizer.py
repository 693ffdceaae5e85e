"""AdamW with weight decay on matrices only: biases and normalisation scales are left alone, as is usual."""

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
