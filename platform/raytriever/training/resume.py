"""Going on from the newest whole checkpoint, and leaving the best weights in the end; every worker does alike."""

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
from raytriever.training.parallel.model_state import shape_of, whole_tensors
from raytriever.training.parallel.strategy import Strategy


def origin_of(loss: LossConfig, training: TrainingConfig, total_steps: int, data_digest: str) -> dict[str, Any]:
    """What a step is a function of, by name, beside the model and the number of the step."""
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
    notice: Callable[[str], None],
) -> Progression:
    """Load the newest whole checkpoint, if there is one, and remove what killed writers left unfinished.

    The first worker chooses for all, so that no two see different folders.

    Args:
        folder: where checkpoints lie.
        objective, strategy: what is loaded into.
        workers, device: the group, and where its collectives take their tensors.
        origin: of `origin_of`, held to the checkpoint's.
        notice: hears on the first worker what was passed over.

    Raises:
        StorageError: it is of another model, other settings or other data.
    """
    found = _chosen(folder, notice) if workers.rank == 0 else (0, 0)
    step, best_is_whole = workers.sum(torch.tensor(found, device=device)).tolist()
    if step < 0:
        return Progression()
    path = checkpoint_path(folder, step)
    state = read_state(path)
    check_origin(path, state.origin, origin)
    check_model(path, objective)
    strategy.load_state(read_slices(path, WEIGHTS, MOMENTS))
    if workers.rank == 0:
        notice(f"continuing after step {step}")
    if best_is_whole:
        return state.progression
    return replace(state.progression, best_step=0, best_loss=float("inf"), looks_without=0)


def leave_best(
    folder: Path, objective: nn.Module, progression: Progression, workers: Workers, device: torch.device
) -> None:
    """Put the best weights into the module, whole on every worker, whatever the strategy had sharded.

    Raises:
        StorageError: they were changed on the disk; called again, the run ends with its last weights.
    """
    step = progression.best_step or progression.step
    here = all(parameter.shape == shape_of(parameter) for parameter in objective.parameters())
    if not step or (here and step == progression.step):
        return
    path = checkpoint_path(folder, step)
    if workers.rank == 0:
        read_manifest(path)
    workers.sum(torch.zeros(1, device=device))  # nobody reads what was not found right
    own = dict(objective.named_parameters())
    for name, values in whole_tensors(read_slices(path, WEIGHTS)):
        own[name].data = values.to(device)


def _chosen(folder: Path, notice: Callable[[str], None]) -> tuple[int, int]:
    """The step to go on from, -1 where there is none, and whether the weights that were best can still be had."""
    sweep(folder)
    newest, passed = newest_checkpoint(folder)
    for line in passed:
        notice(line)
    if newest is None:
        return -1, 0
    state = read_state(newest)
    progression = state.progression
    if progression.best_step in (0, progression.step) or state.metric != DEV_LOSS:
        return progression.step, 1  # what is best by a later verdict is `validation`'s
    try:
        read_manifest(checkpoint_path(folder, progression.best_step))
    except StorageError as error:
        notice(f"{error}; the best from here on counts")
        return progression.step, 0
    return progression.step, 1
