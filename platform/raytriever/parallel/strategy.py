"""How the copies of a model on several workers stay one model. DDP: gradients are averaged after every backward."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from raytriever.losses.workers import ALONE, Workers
from raytriever.parallel.gather import GroupWorkers


def current_workers() -> Workers:
    """The process group of this process, or a group of one where there is none."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return GroupWorkers()
    return ALONE


def data_parallel(model: nn.Module, workers: Workers, device: torch.device) -> nn.Module:
    """The model as a training step calls it: itself on one worker, under DDP on several."""
    if workers.size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    devices = [device.index] if device.type == "cuda" else None
    # Buffers are constants here; sending them at every step would only cost time.
    return DistributedDataParallel(model, device_ids=devices, broadcast_buffers=False)
