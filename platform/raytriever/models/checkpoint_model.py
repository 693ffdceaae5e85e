"""Conversion of a checkpoint of a run to a model directory; see `resolve_model`.

`RUN/checkpoints/step-N` has the trained weights in slices: each worker wrote a file with its ranges of the flattened
tensors. `RUN/checkpoints/model.json` has the settings of the trained model. The model directory equals the directory
`RUN/model` that the run would write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raytriever.core.errors import StorageError, setting
from raytriever.core.paths import expanded
from raytriever.core.reading.arrays import open_tensors
from raytriever.core.reading.json_and_yaml import parse_json, read_json
from raytriever.core.store.commit import MANIFEST, check_names, read_manifest, sha256_of, write_atomically
from raytriever.core.store.remote_folders import pull
from raytriever.models.device_and_precision import base_type
from raytriever.models.directory.hub_or_local import CHECKPOINTS
from raytriever.models.directory.model_files import quiet_transformers
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prepare_for_training import prepare_for_training
from raytriever.models.resolve_model import keep_model
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.save_model import write_model

STATE, WEIGHTS = "state.json", "weights"
_RETRIEVER = "retriever."  # prefix of the encoder's weights in a checkpoint
_REMEDY = "give a checkpoint that is still in the directory of its run"
CHECKPOINT = "the checkpoint"  # location in errors about slices, until the caller replaces it by the path
OTHER_OUTPUT = f"the checkpoint is damaged: start a new run with another {setting('output')}"


@dataclass(frozen=True)
class TrainedModel:
    """Content of `model.json`: the settings of the model that a run trains, and the precision of training."""

    model: ModelConfig
    precision: str


def write_settings(folder: Path, config: ModelConfig, precision: str) -> None:
    """Write `model.json` into the folder of the checkpoints of a run."""
    model = expanded(config.model)
    trained = TrainedModel(replace(config, model=str(model.absolute())) if model.is_dir() else config, precision)
    write_atomically(folder / CHECKPOINTS, json.dumps(asdict(trained), indent=1) + "\n")


def whole_model(checkpoint: Path) -> Path:
    """Convert a checkpoint to a model directory in the cache, and return it. Raise `StorageError` if the checkpoint is
    damaged, or does not fit the model that its run names."""
    pull(checkpoint)
    check_names(checkpoint)
    trained = read_json(checkpoint.parent / CHECKPOINTS, TrainedModel, _REMEDY, needed=True)

    def write(aside: Path) -> None:
        read_manifest(checkpoint)
        with quiet_transformers():
            write_model(_load(checkpoint, trained), aside)

    meta = {"kind": "model of a checkpoint", "checkpoint": str(checkpoint)}
    return keep_model([sha256_of(checkpoint / MANIFEST), asdict(trained)], meta, write)


@torch.no_grad()
def _load(checkpoint: Path, trained: TrainedModel) -> Retriever:
    retriever = load_retriever(trained.model, base_type(trained.model.lora_rank, trained.precision))
    prepare_for_training(retriever, trained.model, seed=0)  # trained weights replace all random ones
    own = {f"{_RETRIEVER}{name}": parameter for name, parameter in retriever.named_parameters()}
    missing = {name for name, parameter in own.items() if parameter.requires_grad}
    for name, values in whole_tensors(read_slices(checkpoint, WEIGHTS)):
        if not name.startswith(_RETRIEVER):  # a parameter of the loss
            continue
        if name not in own or own[name].shape != values.shape:
            raise StorageError(f"does not fit the model of {CHECKPOINTS}: {name} differs", str(checkpoint), _REMEDY)
        own[name].copy_(values)
        missing.discard(name)
    if missing:
        raise StorageError(f"lacks the tensor {sorted(missing)[0]}", str(checkpoint), _REMEDY)
    return retriever.eval()


@dataclass(frozen=True)
class Slice:
    """Range of values of a flattened tensor."""

    name: str
    values: Tensor  # values of the range, one-dimensional
    start: int  # index of the first value in the flattened tensor
    shape: tuple[int, ...]  # shape of the whole tensor


def read_slices(path: Path, *kinds: str) -> Iterator[Slice]:
    """Yield all workers' slices of these kinds of files (`WEIGHTS`, ...), one kind after the other. All slices of a
    tensor come one after another. Each slice is read when the iterator reaches it."""
    for kind in kinds:
        with ExitStack() as stack:
            paths = sorted(path.glob(f"{kind}-*-of-*"))
            files = [stack.enter_context(open_tensors(file, OTHER_OUTPUT)) for file in paths]
            positions = [_slice_positions(tensors, file) for tensors, file in zip(files, paths, strict=True)]
            names = [set(file.keys()) for file in files]
            for name in sorted(set().union(*names)):
                for file, position, stored in zip(files, positions, names, strict=True):
                    if name in stored:
                        values = file.get_tensor(name)
                        start, shape = position.get(name, (0, tuple(values.shape)))
                        yield Slice(name, values.flatten(), start, shape)


def whole_tensors(slices: Iterable[Slice]) -> Iterator[tuple[str, Tensor]]:
    """Join slices into whole tensors. All slices of a tensor must follow each other, in any order."""
    for name, pieces in groupby(slices, key=lambda piece: piece.name):
        yield name, _whole(name, list(pieces))


def _whole(name: str, pieces: list[Slice]) -> Tensor:
    shape = pieces[0].shape
    # Check this before allocating the whole tensor, because its shape comes from a file.
    if not all(piece.values.is_floating_point() for piece in pieces):
        raise StorageError(f"{name} has values that are not floating-point numbers", CHECKPOINT, OTHER_OUTPUT)
    if (values := sum(len(piece.values) for piece in pieces)) != prod(shape):
        raise StorageError(f"{name} has {values} values, not {prod(shape)}", CHECKPOINT, OTHER_OUTPUT)
    whole = torch.empty(shape, dtype=pieces[0].values.dtype)
    reached = 0
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if piece.shape != shape:
            raise StorageError(f"slices of {name} have shapes {shape} and {piece.shape}", CHECKPOINT, OTHER_OUTPUT)
        if piece.start != reached:
            break
        reached += len(piece.values)
        whole.view(-1)[piece.start : reached] = piece.values
    if reached != whole.numel():
        raise StorageError(f"{name} lacks values after the first {reached}", CHECKPOINT, OTHER_OUTPUT)
    return whole


def _slice_positions(tensors: Any, file: Path) -> dict[str, tuple[int, tuple[int, ...]]]:
    """For each slice in a file that is only part of a tensor, return its start and the shape of the whole tensor."""
    positions = {}
    for name, text in (tensors.metadata() or {}).items():
        fields = parse_json(text, f"{file}: {name}", list[int | list[int]], OTHER_OUTPUT)
        if len(fields) != 2 or not isinstance(fields[0], int) or not isinstance(fields[1], list):
            what = "is damaged or changed: a start and a shape are expected"
            raise StorageError(what, f"{file}: {name}", OTHER_OUTPUT)
        positions[name] = fields[0], tuple(fields[1])
    return positions
