"""The whole state of a run at a step, in safetensors and JSON, committed by one rename.

A directory `checkpoints/step-N` holds every worker's slices of the weights and of AdamW's moments, a file of each a
worker that had any, and `state.json`. Data order, learning rate and draws are functions of N and need no storing. What
has no valid manifest is passed over; no tensor is read before every digest was found right.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from raytriever.errors import StorageError
from raytriever.reading.arrays import open_tensors
from raytriever.reading.structured import parse_json, read_json
from raytriever.storage import disk_errors, read_manifest
from raytriever.training.config import DEV_LOSS
from raytriever.training.parallel.model_state import Slice, shape_of

WEIGHTS, MOMENTS, STATE = "weights", "optimizer", "state.json"
_TRAIN_AGAIN = "train again with --fresh"


@dataclass(frozen=True)
class Progression:
    """How far a run is and what its dev loss was.

    Args:
        step: optimiser steps done.
        best_step: the step that is best so far, 0 before the first look.
        best_loss: its dev loss, where that decides.
        looks_without: looks since one was better by enough.
        stopped: whether early stopping ended the run.
        reference: the dev loss that is to be bettered by enough; None where that is the best one.
    """

    step: int = 0
    best_step: int = 0
    best_loss: float = float("inf")
    looks_without: int = 0
    stopped: bool = False
    reference: float | None = None

    def looked(self, step: int, loss: float, patience: int, min_delta: float = 0.0) -> Progression:
        """The progression after a look at the dev loss at `step`; the best is the lowest, by however little."""
        reference = self.best_loss if self.reference is None else self.reference
        if loss < reference - min_delta:
            return Progression(step, step, loss)
        without = self.looks_without + 1
        best = (step, loss) if loss < self.best_loss else (self.best_step, self.best_loss)
        return Progression(step, *best, without, without >= patience, None if reference == best[1] else reference)


@dataclass(frozen=True)
class State:
    """What stands in `state.json`.

    Args:
        progression: of the run.
        origin: by name, what must be the same where the run goes on, such as the digest of its data.
        metric: what the best is the best by.
    """

    progression: Progression
    origin: Mapping[str, Any]
    metric: str = DEV_LOSS


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step stands."""
    return folder / f"step-{step}"


def write_slices(slices: Iterable[Slice], folder: Path, rank: int, size: int) -> None:
    """Write one worker's slices: a file of weights and one of moments.

    A slice that is a whole tensor is stored in its shape, any other flat, with its start and shape in the file's
    metadata.
    """
    kinds: dict[str, list[Slice]] = {WEIGHTS: [], MOMENTS: []}
    for one in slices:
        kinds[MOMENTS if ":" in one.name else WEIGHTS].append(one)
    for kind, held in kinds.items():
        if not held:
            continue  # safetensors cannot read its own file of nothing
        whole = {one.name for one in held if one.values.numel() == prod(one.shape)}
        tensors = {one.name: one.values.view(one.shape) if one.name in whole else one.values for one in held}
        places = {one.name: json.dumps([one.start, one.shape]) for one in held if one.name not in whole}
        save_file(tensors, folder / f"{kind}-{rank}-of-{size}.safetensors", places)


def write_state(state: State, folder: Path) -> None:
    """Write `state.json`."""
    (folder / STATE).write_text(json.dumps(asdict(state)), encoding="utf-8")


def read_state(path: Path) -> State:
    """Read `state.json` of a checkpoint; raises `StorageError` where it is not as it was written."""
    with disk_errors(path / STATE, reading=True):
        return read_json(path / STATE, State, _TRAIN_AGAIN, needed=True)


def read_slices(path: Path, *kinds: str) -> Iterator[Slice]:
    """All workers' slices, those of one name together, weights before moments; read as they are asked for.

    Args:
        path: the checkpoint, whose digests were found right.
        kinds: `WEIGHTS`, `MOMENTS` or both.

    Raises:
        StorageError: a file is not as it was written.
    """
    for kind in kinds:
        with ExitStack() as stack:
            paths = sorted(path.glob(f"{kind}-*-of-*"))
            files = [stack.enter_context(open_tensors(file, _TRAIN_AGAIN)) for file in paths]
            places = [_slice_places(tensors, file) for tensors, file in zip(files, paths, strict=True)]
            names = [set(file.keys()) for file in files]
            for name in sorted(set().union(*names)):
                for file, place, held in zip(files, places, names, strict=True):
                    if name in held:
                        values = file.get_tensor(name)
                        start, shape = place.get(name, (0, tuple(values.shape)))
                        yield Slice(name, values.flatten(), start, shape)


def check_model(path: Path, module: nn.Module) -> None:
    """Raise `StorageError` naming the first weight in which a checkpoint is not of this module."""
    saved = _saved_shapes(path)
    own = {name: shape_of(parameter) for name, parameter in module.named_parameters()}
    for name in sorted(saved.keys() | own.keys()):
        there, here = saved.get(name), own.get(name)
        if there != here:
            told = " and ".join(
                f"{'absent' if shape is None else shape} {where}" for shape, where in ((there, "there"), (here, "here"))
            )
            reason = f"is of another model ({name} is {told})"
            raise StorageError(reason, str(path), "train anew with --fresh")


def check_origin(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise `StorageError` naming the first thing in which a checkpoint came about otherwise than this run would."""
    for name, value in here.items():
        if name in there and there[name] != value:
            reason = f"its {name} is {there[name]!r} and here {value!r}"
            raise StorageError(reason, str(path), "train anew with --fresh, or give what it was made with")


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


def prune(folder: Path, progression: Progression, keep: int, retained: Collection[int] = ()) -> None:
    """Remove all checkpoints but the best, those of the `retained` steps and, beside the best, the `keep` newest.

    What is of a later step is removed too: it was broken, or the run would have gone on from there.
    """
    others = sorted(
        (step for step, _ in _steps(folder) if step <= progression.step and step != progression.best_step),
        reverse=True,
    )
    kept = {progression.best_step, *others[:keep], *retained}
    for step, path in _steps(folder):
        if step not in kept:
            shutil.rmtree(path, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left unfinished; only while nobody writes."""
    for leftover in folder.glob(".*step-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _saved_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for file in path.glob(f"{WEIGHTS}-*-of-*"):
        with open_tensors(file, _TRAIN_AGAIN) as tensors:
            places = _slice_places(tensors, file)
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                shapes[name] = places[name][1] if name in places else tuple(tensors.get_slice(name).get_shape())
    return shapes


def _slice_places(tensors: Any, file: Path) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Of each slice in a file that is no whole tensor, its start and the shape of the whole."""
    places = {}
    for name, text in (tensors.metadata() or {}).items():
        held = parse_json(text, f"{file}: {name}", list[int | list[int]], _TRAIN_AGAIN)
        if len(held) != 2 or not isinstance(held[0], int) or not isinstance(held[1], list):
            raise StorageError("is torn or changed: a start and a shape are expected", f"{file}: {name}", _TRAIN_AGAIN)
        places[name] = held[0], tuple(held[1])
    return places


def _steps(folder: Path) -> list[tuple[int, Path]]:
    found = folder.glob("step-*") if folder.is_dir() else []
    return [(int(path.name[5:]), path) for path in found if path.name[5:].isdigit()]
