"""Checkpoint: the whole state of a run at a step, committed by one rename. A run resumes from it.

A directory `checkpoints/step-N` holds every worker's slices of the trained weights and of AdamW's moments as
safetensors files, and `state.json`. Each worker that has slices writes one file of weights and one of moments. Frozen
weights are not stored; `state.json` has their digest. Data order, learning rate and random numbers are functions of N,
so they are not stored either. A checkpoint without a valid manifest is ignored. All digests are checked before any
tensor is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from raytriever.core.errors import StorageError
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import read_manifest, remove
from raytriever.core.store.object_stores import address_of
from raytriever.core.store.remote_folders import pull, sweep
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.checkpoint_model import (
    CHECKPOINT,
    OTHER_OUTPUT,
    STATE,
    WEIGHTS,
    Slice,
    read_slices,
    whole_tensors,
)
from raytriever.training.early_stopping import TrainerState
from raytriever.training.parallel.model_state import SAME_RUN
from raytriever.training.parallel.strategies import Strategy
from raytriever.training.training_settings import DEV_LOSS, MAY_CHANGE, TrainingConfig

OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class State:
    """Content of `state.json`. A run resumes only if its values of `origin`, such as the digest of the data, are the
    same. The `metric` decides which checkpoint is best."""

    trainer_state: TrainerState
    origin: Mapping[str, Any]
    metric: str = DEV_LOSS


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step}"


def write_slices(slices: Iterable[Slice], folder: Path, rank: int, size: int) -> None:
    """Write one worker's slices: a file of weights and a file of moments.

    A slice that is a whole tensor keeps its shape. Any other slice is stored flat. The metadata of the file then
    contain the start of the slice and the shape of the tensor."""
    kinds: dict[str, list[Slice]] = {WEIGHTS: [], OPTIMIZER: []}
    for piece in slices:
        kinds[OPTIMIZER if ":" in piece.name else WEIGHTS].append(piece)
    for kind, pieces in kinds.items():
        if not pieces:
            continue  # safetensors cannot read back a file that it wrote without tensors
        whole = {piece.name for piece in pieces if piece.values.numel() == prod(piece.shape)}
        tensors = {
            piece.name: piece.values.view(piece.shape) if piece.name in whole else piece.values for piece in pieces
        }
        metadata = {piece.name: json.dumps([piece.start, piece.shape]) for piece in pieces if piece.name not in whole}
        save_file(tensors, folder / f"{kind}-{rank}-of-{size}.safetensors", metadata)


def write_state(state: State, folder: Path) -> None:
    """Write `state.json`."""
    (folder / STATE).write_text(json.dumps(asdict(state)), encoding="utf-8")


def read_state(path: Path) -> State:
    """Read `state.json` of a checkpoint; raises `StorageError` if the file is damaged."""
    return read_json(path / STATE, State, OTHER_OUTPUT, needed=True)


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest complete checkpoint, and a log line for each newer checkpoint that is damaged."""
    lines: list[str] = []
    for _, path in sorted(_steps(folder), reverse=True):
        try:
            read_manifest(path)
        except StorageError as error:
            lines.append(f"{error}. The run resumes from an earlier checkpoint, if there is one.")
        else:
            return path, lines
    return None, lines


def check_checkpoint(path: Path, *, is_checked: bool = False) -> None:
    """Raise `StorageError` unless this host has every byte of a checkpoint. Files in a bucket are first copied to it.

    Args:
        is_checked: True if another worker checks the digests, or if this worker has checked them. A checkpoint in a
            shared folder is then not checked again. In a bucket it is checked again: each host has its own copy.
    """
    pull(path)
    read_manifest(path, verify=not is_checked or address_of(path) is not None)


def prune(folder: Path, trainer_state: TrainerState, keep: int, retained: Collection[int] = ()) -> None:
    """Remove all checkpoints except the best, those of the `retained` steps, and the `keep` newest of the others.

    Checkpoints later than `trainer_state` are also removed: they are damaged, so the run did not resume from them."""
    others = sorted(
        (step for step, _ in _steps(folder) if step <= trainer_state.step and step != trainer_state.best_step),
        reverse=True,
    )
    kept_steps = {trainer_state.best_step, *others[:keep], *retained}
    for step, path in _steps(folder):
        if step not in kept_steps:
            remove(path)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished checkpoints of killed writers. Call it only while no checkpoint is being written."""
    for leftover in (*folder.glob(".*step-*"), *folder.glob(".shard-*")):
        remove(leftover)
    sweep(folder)


def _steps(folder: Path) -> list[tuple[int, Path]]:
    paths = folder.glob("step-*") if folder.is_dir() else []
    return [(int(path.name[5:]), path) for path in paths if path.name[5:].isdigit()]


def origin_of(loss: LossConfig, training: TrainingConfig, total_steps: int, data_digest: str) -> dict[str, Any]:
    """Return, by name, everything that the result of a step depends on, except the model and the step number."""
    origin: dict[str, Any] = {"data": data_digest} if data_digest else {}
    # The path of the guide is left out, because the guide may have moved. Instead, the digest of its files is compared.
    origin |= {f"loss.{name}": value for name, value in asdict(loss).items() if name != "guide"}
    origin |= {f"training.{name}": value for name, value in asdict(training).items() if name not in MAY_CHANGE}
    return origin | {"total_steps": total_steps}


def resume(
    folder: Path,
    strategy: Strategy,
    workers: WorkerGroup,
    device: torch.device,
    origin: Mapping[str, Any],
    log: Callable[[str], None],
) -> TrainerState:
    """Load the newest complete checkpoint, if there is one, and remove unfinished checkpoints of killed writers.

    The first worker chooses the checkpoint for all workers, because they may see different states of a folder.

    Returns:
        The trainer state of the checkpoint, or a new one if there is no checkpoint.

    Raises:
        StorageError: the checkpoint belongs to another model, other settings or other data.
    """
    choice = _choose(folder, log) if workers.rank == 0 else (0, 0)
    step, best_is_whole = workers.all_reduce(torch.tensor(choice, device=device)).tolist()
    if step < 0:
        return TrainerState()
    path = checkpoint_path(folder, step)
    check_checkpoint(path, is_checked=workers.rank == 0)
    state = read_state(path)
    try:
        strategy.load_state(read_slices(path, WEIGHTS, OPTIMIZER))
    except StorageError as error:
        if error.where != CHECKPOINT:
            raise
        raise error.at(str(path)) from error
    for name, value in origin.items():
        if (there := state.origin.get(name, value)) != value:
            raise StorageError(f"was made with {name} {there!r}, but this run has {value!r}", str(path), SAME_RUN)
    if workers.rank == 0:
        log(f"Resumed from checkpoint step-{step}.")
    if best_is_whole:
        return state.trainer_state
    return replace(state.trainer_state, best_step=0, best_value=float("-inf"), validations_without=0)


def load_best(
    folder: Path, objective: nn.Module, trainer_state: TrainerState, workers: WorkerGroup, device: torch.device
) -> None:
    """Load the best weights into the module, which is unsharded on every worker and has the last weights.

    Raises `StorageError` if the best checkpoint is damaged. The next start of the run uses another checkpoint."""
    step = trainer_state.best_step or trainer_state.step
    if step in (0, trainer_state.step):
        return
    path = checkpoint_path(folder, step)
    check_checkpoint(path, is_checked=workers.rank > 0)
    workers.all_reduce(torch.zeros(1, device=device))  # wait until the first worker has checked the digests
    own = dict(objective.named_parameters())
    with torch.no_grad():
        for name, values in whole_tensors(read_slices(path, WEIGHTS)):
            own[name].copy_(values)


def _choose(folder: Path, log: Callable[[str], None]) -> tuple[int, int]:
    """Return the step to resume from (-1 for none), and 1 if the best checkpoint is complete, else 0."""
    remove_unfinished(folder)
    newest, lines = newest_checkpoint(folder)
    for line in lines:
        log(line)
    if newest is None:
        return -1, 0
    state = read_state(newest)
    trainer_state = state.trainer_state
    if trainer_state.best_step in (0, trainer_state.step) or state.metric != DEV_LOSS:
        return trainer_state.step, 1  # `ValidationJob` checks its best checkpoint itself
    try:
        read_manifest(checkpoint_path(folder, trainer_state.best_step))
    except StorageError as error:
        log(f"{error}. The best checkpoint will be chosen from later checkpoints.")
        return trainer_state.step, 0
    return trainer_state.step, 1
