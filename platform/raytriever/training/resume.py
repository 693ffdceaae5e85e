"""Resume from the newest complete checkpoint, and load the best weights at the end; all workers call both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raytriever.errors import StorageError
from raytriever.losses.config import LossConfig
from raytriever.losses.engine.workers import Workers
from raytriever.storage import read_manifest
from raytriever.training.checkpoint import (
    MOMENTS,
    WEIGHTS,
    Progression,
    check_model,
    check_origin,
    checkpoint_path,
    newest_checkpoint,
    read_slices,
    read_state,
    sweep,
)
from raytriever.training.config import DEV_LOSS, MAY_CHANGE, TrainingConfig
from raytriever.training.parallel.model_state import whole_tensors
from raytriever.training.parallel.strategy import Strategy


def origin_of(loss: LossConfig, training: TrainingConfig, total_steps: int, data_digest: str) -> dict[str, Any]:
    """Return by name all values that a step depends on, except the model and the number of the step."""
    origin: dict[str, Any] = {"data": data_digest} if data_digest else {}
    origin |= {f"loss.{name}": value for name, value in asdict(loss).items()}
    origin |= {f"training.{name}": value for name, value in asdict(training).items() if name not in MAY_CHANGE}
    return origin | {"total_steps": total_steps}


def resume(
    folder: Path,
    objective: nn.Module,
    strategy: Strategy,
    workers: Workers,
    device: torch.device,
    origin: Mapping[str, Any],
    log: Callable[[str], None],
) -> Progression:
    """Load the newest complete checkpoint, if there is one, and remove the unfinished ones of killed writers.

    The first worker chooses for all, because workers may see different states of a folder.

    Args:
        folder: of the checkpoints.
        objective, strategy: that the state is loaded into.
        workers, device: the group, and where its collectives take their tensors.
        origin: see `origin_of`; must equal the checkpoint's.
        log: receives lines for the user; called on the first worker.

    Returns:
        The progression of the checkpoint; a new one without a checkpoint.

    Raises:
        StorageError: it is of another model, other settings or other data.
    """
    choice = _choose(folder, log) if workers.rank == 0 else (0, 0)
    step, best_is_whole = workers.sum(torch.tensor(choice, device=device)).tolist()
    if step < 0:
        return Progression()
    path = checkpoint_path(folder, step)
    state = read_state(path)
    check_model(path, objective)
    check_origin(path, state.origin, origin)
    strategy.load_state(read_slices(path, WEIGHTS, MOMENTS))
    if workers.rank == 0:
        log(f"Resumed from checkpoint step-{step}.")
    if best_is_whole:
        return state.progression
    return replace(state.progression, best_step=0, best_loss=float("inf"), looks_without=0)


def load_best(
    folder: Path, objective: nn.Module, progression: Progression, workers: Workers, device: torch.device
) -> None:
    """Load the best weights into the module, which is whole on every worker and has the last weights.

    Raises:
        StorageError: they are damaged. The same run, started again, ends with its last weights.
    """
    step = progression.best_step or progression.step
    if step in (0, progression.step):
        return
    path = checkpoint_path(folder, step)
    if workers.rank == 0:
        read_manifest(path)
    workers.sum(torch.zeros(1, device=device))  # no worker reads before the digests are checked
    own = dict(objective.named_parameters())
    for name, values in whole_tensors(read_slices(path, WEIGHTS)):
        own[name].data = values.to(device, own[name].dtype)


def _choose(folder: Path, log: Callable[[str], None]) -> tuple[int, int]:
    """Return the step to resume from, -1 for none, and whether the best checkpoint is complete."""
    sweep(folder)
    newest, lines = newest_checkpoint(folder)
    for line in lines:
        log(line)
    if newest is None:
        return -1, 0
    state = read_state(newest)
    progression = state.progression
    if progression.best_step in (0, progression.step) or state.metric != DEV_LOSS:
        return progression.step, 1  # validations check their own best checkpoint
    try:
        read_manifest(checkpoint_path(folder, progression.best_step))
    except StorageError as error:
        log(f"{error}. The best checkpoint is chosen from later ones.")
        return progression.step, 0
    return progression.step, 1
