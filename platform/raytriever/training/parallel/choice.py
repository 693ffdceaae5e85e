"""Choice of the strategy of data-parallel training by its name."""

from __future__ import annotations

import torch

from raytriever.losses.distributed import WorkerGroup
from raytriever.training.parallel.fsdp2 import FullyShard
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.strategy import Replicas, Strategy, StrategyInputs
from raytriever.training.parallel.zero import Zero


def build_strategy(
    name: str,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    workers: WorkerGroup,
    device: torch.device,
    max_grad_norm: float,
    offload: bool = False,
) -> Strategy:
    """Return the strategy of a name, which takes over objective and optimizer.

    Args:
        name: one of `STRATEGIES`.
        offload: keep the optimizer's state in CPU memory, with ZeRO stage 1 to 3.

    Raises:
        ConfigError: its package is not installed.
    """
    inputs = StrategyInputs(objective, optimizer, workers, device, max_grad_norm)
    if name == "ddp":
        return Replicas(inputs)
    if name == "fsdp2":
        return FullyShard(inputs)
    return Zero(int(name.removeprefix("zero")), inputs, offload)
