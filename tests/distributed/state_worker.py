"""One worker of a real gloo group: some steps of AdamW under one strategy, from the state that another one left.

The result is this worker's slices of the state."""

from __future__ import annotations

from pathlib import Path

import strategy_worker
from strategy_worker import take_step

from raytriever.losses.distributed import current_workers
from raytriever.models.checkpoint_model import Slice
from raytriever.training.optimizer_and_schedule import build_optimizer


def main(encoder: Path, name: str, count: int, saved: list[Slice]) -> list[Slice]:
    objective = strategy_worker.objective_of(str(encoder), strategy_worker.Case("mw", True, dropout=0.0))
    optimizer = build_optimizer(objective, 1.0, 0.01)
    for group in optimizer.param_groups:
        group["eps"] = 1e-3  # or gradients that are nothing but rounding, such as key biases', would be steps
    strategy = strategy_worker.strategy_of(name, objective, optimizer, 1.0)
    if saved:
        strategy.load_state(sorted(saved, key=lambda item: item.name))
    workers = current_workers()
    batch = strategy_worker.fraction(objective.retriever, workers.rank, workers.size, strategy_worker.CHUNK)
    for step in range(count):
        take_step(strategy, batch, 1e-2, step)
    return [Slice(item.name, item.values.clone(), item.start, item.shape) for item in strategy.state()]
