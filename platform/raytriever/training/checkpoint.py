"""The whole state of a run at a step, in safetensors and JSON, committed by one rename.

A directory `checkpoints/step-N` holds the weights, AdamW's moments and the counters of early stopping; data order,
learning rate and draws are functions of N and need no storing. What has no valid manifest is passed over.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raytriever.errors import StorageError
from raytriever.storage import committed_directory, read_manifest

WEIGHTS, MOMENTS, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


@dataclass(frozen=True)
class Progression:
    """How far a run is and what its dev loss was.

    Args:
        step: optimiser steps done.
        best_step: the step with the lowest dev loss so far, 0 before the first look.
        best_loss: that dev loss.
        looks_without: looks since then.
        stopped: whether early stopping ended the run.
    """

    step: int = 0
    best_step: int = 0
    best_loss: float = float("inf")
    looks_without: int = 0
    stopped: bool = False

    def looked(self, step: int, loss: float, patience: int) -> Progression:
        """The progression after a look at the dev loss at `step`."""
        if loss < self.best_loss:
            return Progression(step, step, loss)
        without = self.looks_without + 1
        return Progression(step, self.best_step, self.best_loss, without, without >= patience)


def save_checkpoint(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progression: Progression
) -> None:
    """Write `folder/step-N`, then remove what is neither the newest nor the best."""
    with committed_directory(folder / f"step-{progression.step}", replace=True) as aside:
        save_file(_weights(module), aside / WEIGHTS)
        save_file(_moments(module, optimizer), aside / MOMENTS)
        (aside / STATE).write_text(json.dumps(asdict(progression)), encoding="utf-8")
    for step, path in _steps(folder):
        if step not in (progression.step, progression.best_step):
            shutil.rmtree(path, ignore_errors=True)


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and a line for each broken one passed over."""
    passed: list[str] = []
    for _, path in sorted(_steps(folder), reverse=True):
        try:
            read_manifest(path)
        except StorageError as error:
            passed.append(f"{error}; where there is one, an older checkpoint is used")
        else:
            return path, passed
    return None, passed


def load_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> Progression:
    """Put weights and moments back where they were; answers how far the run was."""
    load_weights(path, module)
    moments = load_file(path / MOMENTS)
    for name, parameter in _trained(module).items():
        if f"{name}:step" in moments:
            optimizer.state[parameter] = {
                key: moments[f"{name}:{key}"].to("cpu" if key == "step" else parameter.device)
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
    return Progression(**json.loads((path / STATE).read_text(encoding="utf-8")))


def load_weights(path: Path, module: nn.Module) -> None:
    """Put a checkpoint's weights into the module they came from."""
    saved = load_file(path / WEIGHTS)
    own = _weights(module)
    shapes, own_shapes = ({name: tuple(t.shape) for name, t in tensors.items()} for tensors in (saved, own))
    for name in sorted(shapes.keys() | own_shapes.keys()):
        there, here = shapes.get(name), own_shapes.get(name)
        if there != here:
            told = " and ".join(
                f"{'absent' if shape is None else shape} {where}" for shape, where in ((there, "there"), (here, "here"))
            )
            reason = f"is of another model ({name} is {told})"
            raise StorageError(reason, str(path), "train anew with --fresh")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor once, under its first name: two towers that share weights share names too."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def _moments(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}:{key}": value.detach().contiguous()
        for name, parameter in _trained(module).items()
        for key, value in optimizer.state[parameter].items()
    }


def _steps(folder: Path) -> list[tuple[int, Path]]:
    found = folder.glob("step-*") if folder.is_dir() else []
    return [(int(path.name[5:]), path) for path in found if path.name[5:].isdigit()]
