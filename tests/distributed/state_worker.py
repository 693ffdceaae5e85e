"""One worker of a real gloo group: some steps of AdamW under one strategy, from the state that another one left.

Run as `state_worker.py RANK SIZE STORE OUTPUT ENCODER STRATEGY STAGE STEPS`; reads `state-{STAGE - 1}-*.pt` where
there are any, writes `state-STAGE-RANK.pt`.
"""

from __future__ import annotations

import importlib.util
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from raytriever.training.loop import build_optimizer
from raytriever.training.parallel.model_state import Slice


def main(rank: int, size: int, store: str, output: Path, encoder: str, name: str, stage: int, count: int) -> None:
    spec = importlib.util.spec_from_file_location("strategy_worker", Path(__file__).with_name("strategy_worker.py"))
    assert spec is not None
    assert spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    sys.modules["strategy_worker"] = steps
    spec.loader.exec_module(steps)
    torch.set_num_threads(1)
    if size > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
        )
    objective = steps.objective_of(encoder, steps.Case("mw", True, dropout=0.0))
    optimizer = build_optimizer(objective, 1.0, 0.01)
    for group in optimizer.param_groups:
        group["eps"] = 1e-3  # or gradients that are nothing but rounding, such as key biases', would be steps
    strategy = steps.strategy_of(name, objective, optimizer, 1.0)
    written = sorted(output.glob(f"state-{stage - 1}-*.pt"))
    saved = [Slice(*one) for path in written for one in torch.load(path, weights_only=True)]
    if saved:
        strategy.load_state(sorted(saved, key=lambda one: one.name))
    batch = steps.share(objective.retriever, rank, size)
    for step in range(count):
        strategy.step(batch, 1e-2, step)
    slices = [(one.name, one.values.clone(), one.start, one.shape) for one in strategy.state()]
    torch.save(slices, output / f"state-{stage}-{rank}.pt")
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    numbers = [int(one) for one in arguments[6:]]
    main(int(arguments[0]), int(arguments[1]), arguments[2], Path(arguments[3]), arguments[4], arguments[5], *numbers)
