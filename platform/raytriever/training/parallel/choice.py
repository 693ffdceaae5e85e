"""Choice of the strategy of data-parallel training by its name."""

from __future__ import annotations

import torch

from raytriever.errors import ConfigError, setting
from raytriever.losses.distributed import WorkerGroup
from raytriever.options import did_you_mean
from raytriever.training.config import STRATEGIES
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

    Raises:
        ConfigError: there is no such strategy, it cannot offload, or its package is not installed.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"unknown value {name!r}", setting("strategy"), did_you_mean(name, STRATEGIES))
    if offload and name not in ("zero1", "zero2", "zero3"):
        raise ConfigError(f"{name} cannot offload the optimizer", setting("strategy"), "use zero1, zero2 or zero3")
    inputs = StrategyInputs(objective, optimizer, workers, device, max_grad_norm)
    if name == "ddp":
        return Replicas(inputs)
    if name == "fsdp2":
        return FullyShard(inputs)
    return Zero(int(name.removeprefix("zero")), inputs, offload)
