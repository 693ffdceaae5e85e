"""The training loop of one worker.

1. Step t draws its batch from (data, seed, t), encodes it, reduces the global score matrix, and updates.
2. Every `eval_steps` the dev loss is looked at, the whole state is saved, and after `patience` looks without a
   better one training stops.
3. In the end the best state is put back. Interrupted anywhere, the same call goes on from the newest checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from raytriever.losses.config import LossConfig
from raytriever.losses.registry import build_loss
from raytriever.losses.workers import Workers
from raytriever.models.encoder import set_dropout
from raytriever.models.retriever import Retriever
from raytriever.parallel.objective import Objective
from raytriever.parallel.strategy import build_strategy
from raytriever.training.batches import BatchSource
from raytriever.training.checkpoint import (
    Progression,
    load_checkpoint,
    load_weights,
    newest_checkpoint,
    save_checkpoint,
)
from raytriever.training.config import TrainingConfig
from raytriever.training.optimizer import build_optimizer
from raytriever.training.schedule import learning_rate_scale

# Called on the first worker with the number of steps done and what was measured there.
Listener = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Assignment:
    """What one worker trains, and on what.

    Args:
        retriever: the encoder, on `device`, the same on every worker.
        train: batches to learn from.
        dev: batches whose loss decides when to stop.
        loss: settings of the loss.
        training: settings of the loop.
        total_steps: after which training ends at the latest.
        precision: `fp32` or `bf16`.
        device: of this worker.
        workers: the data-parallel group.
        folder: where checkpoints lie, seen by every worker.
        listener: hears every step and every look.
        notice: hears what a person should know.
    """

    retriever: Retriever
    train: BatchSource
    dev: BatchSource
    loss: LossConfig
    training: TrainingConfig
    total_steps: int
    precision: str
    device: torch.device
    workers: Workers
    folder: Path
    listener: Listener
    notice: Callable[[str], None]


def train(work: Assignment) -> Progression:
    """Train until the last step or until the dev loss stops improving; leaves the best weights in the retriever."""
    settings, workers = work.training, work.workers
    torch.manual_seed(settings.seed)
    objective = Objective(work.retriever, build_loss(work.loss).to(work.device), work.precision)
    set_dropout(work.retriever, settings.dropout)
    if work.device.type == "cpu":
        # The backward of torch's fused attention on a CPU costs a third of a step, the plain one a tenth of that.
        work.retriever.attend_by("eager")
    optimizer = build_optimizer(objective, settings.learning_rate, settings.weight_decay)
    progression = _continue(work, objective, optimizer)
    strategy = build_strategy("ddp", objective, optimizer, workers, work.device, settings.max_grad_norm)

    for step in range(progression.step, work.total_steps):
        if progression.stopped:
            break
        began = time.perf_counter()
        # Dropout of a step follows from (seed, step, worker), so a continued run repeats it.
        torch.manual_seed(int(np.random.SeedSequence((settings.seed, step, workers.rank)).generate_state(1)[0]))
        rate = settings.learning_rate * learning_rate_scale(step, settings.warmup_steps, work.total_steps)
        work.retriever.train(settings.dropout > 0)
        batch = work.train.batch(step, work.retriever, workers).to(work.device)
        update = strategy.step(batch, rate, step)
        seconds = time.perf_counter() - began
        measured = {
            "loss": update.output.value.item(),
            "learning_rate": rate,
            "gradient_norm": update.norm,
            "step_seconds": seconds,
            "queries_per_second": settings.batch_size / seconds,
            **{name: float(value) for name, value in update.output.statistics.items()},
        }
        _tell(work, step + 1, measured)
        if (step + 1) % settings.eval_steps == 0 or step + 1 == work.total_steps:
            progression = _look(work, objective, optimizer, progression, step + 1)

    best = work.folder / f"step-{progression.best_step}"
    if progression.best_step and progression.best_step != progression.step:
        load_weights(best, objective)
    return progression


def _look(
    work: Assignment,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    progression: Progression,
    step: int,
) -> Progression:
    """Measure the dev loss, save the state, and decide whether to go on; every worker decides alike."""
    work.retriever.eval()
    values = []
    with torch.no_grad():
        for number in range(work.training.dev_batches):
            batch = work.dev.batch(number, work.retriever, work.workers).to(work.device)
            values.append(objective(batch, work.workers).value.item())
    dev_loss = sum(values) / len(values)
    progression = progression.looked(step, dev_loss, work.training.patience)
    if work.workers.rank == 0:
        save_checkpoint(work.folder, objective, optimizer, progression)
    # Nobody reads or replaces a checkpoint before it stands.
    work.workers.sum(torch.zeros(1, device=work.device))
    _tell(work, step, {"dev_loss": dev_loss})
    return progression


def _continue(work: Assignment, objective: Objective, optimizer: torch.optim.Optimizer) -> Progression:
    newest, passed = newest_checkpoint(work.folder)
    if work.workers.rank == 0:
        for line in passed:
            work.notice(line)
    if newest is None:
        return Progression()
    progression = load_checkpoint(newest, objective, optimizer)
    if work.workers.rank == 0:
        work.notice(f"continuing after step {progression.step}")
    return progression


def _tell(work: Assignment, step: int, measured: Mapping[str, float]) -> None:
    if work.workers.rank == 0:
        work.listener(step, measured)
