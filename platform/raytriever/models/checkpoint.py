"""The encoder of a checkpoint as a model directory; see `resolution`.

`RUN/checkpoints/step-N` holds the trained weights, in slices, and `RUN/checkpoints/model.json` the settings of the
model that the run trains. The model is put together as the run would write it to `RUN/model`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from raytriever.errors import StorageError
from raytriever.models.config import ModelConfig
from raytriever.models.files import quiet_transformers
from raytriever.models.precision import base_type
from raytriever.models.prepare import prepare_for_training
from raytriever.models.resolution import keep_model
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.slices import read_slices, whole_tensors
from raytriever.models.source import CHECKPOINTS
from raytriever.models.writer import write_model
from raytriever.paths import expanded
from raytriever.reading.structured import read_json
from raytriever.store.commit import (
    MANIFEST,
    check_names,
    read_manifest,
    sha256_of,
    write_atomically,
)
from raytriever.store.remote import pull

STATE, WEIGHTS = "state.json", "weights"
_RETRIEVER = "retriever."  # prefix of the encoder's weights in a checkpoint
_REMEDY = "name a checkpoint in the directory of its run"


@dataclass(frozen=True)
class TrainedModel:
    """Content of `model.json`: settings of the model that a run trains, and the arithmetic of the training."""

    model: ModelConfig
    precision: str


def write_settings(folder: Path, config: ModelConfig, precision: str) -> None:
    """Write `model.json` into the folder of the checkpoints of a run."""
    model = expanded(config.model)
    trained = TrainedModel(replace(config, model=str(model.absolute())) if model.is_dir() else config, precision)
    write_atomically(folder / CHECKPOINTS, json.dumps(asdict(trained), indent=1) + "\n")


def whole_model(checkpoint: Path) -> Path:
    """Return the directory of the model of a checkpoint.

    Raises:
        StorageError: the checkpoint is damaged, or of another model than its run names.
    """
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
    prepare_for_training(retriever, trained.model, seed=0)  # the trained weights replace all that the seed decides
    own = {f"{_RETRIEVER}{name}": parameter for name, parameter in retriever.named_parameters()}
    missing = {name for name, parameter in own.items() if parameter.requires_grad}
    for name, values in whole_tensors(read_slices(checkpoint, WEIGHTS)):
        if not name.startswith(_RETRIEVER):  # of the loss
            continue
        if name not in own or own[name].shape != values.shape:
            raise StorageError(f"is of another model than {CHECKPOINTS}: {name} differs", str(checkpoint), _REMEDY)
        own[name].copy_(values)
        missing.discard(name)
    if missing:
        raise StorageError(f"lacks {sorted(missing)[0]}", str(checkpoint), _REMEDY)
    return retriever.eval()
