"""The encoder of a checkpoint as a model directory, so that every command can use a checkpoint.

`RUN/checkpoints/step-N` holds the trained weights, in slices, and `RUN/checkpoints/model.json` the settings of the
model that the run trains. The model is put together once, as the run would write it to `RUN/model`, and kept in the
cache."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from raytriever.activity import activity
from raytriever.errors import StorageError
from raytriever.models.config import ModelConfig
from raytriever.models.files import quiet_transformers
from raytriever.models.precision import base_type
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.slices import read_slices, whole_tensors
from raytriever.models.writer import write_model
from raytriever.paths import expanded
from raytriever.reading.structured import read_json
from raytriever.store.cache import cache_folder, hold
from raytriever.store.commit import (
    MANIFEST,
    check_names,
    committed_directory,
    read_manifest,
    sha256_of,
    write_atomically,
)
from raytriever.store.parts import make_once
from raytriever.store.remote import pull

SETTINGS, STATE, WEIGHTS = "model.json", "state.json", "weights"
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
    write_atomically(folder / SETTINGS, json.dumps(asdict(trained), indent=1) + "\n")


def model_of_checkpoint(config: ModelConfig) -> ModelConfig:
    """Return the settings with the model directory of a checkpoint instead of the checkpoint; others are unchanged.

    Raises:
        StorageError: the checkpoint is damaged, or of another model than its run names.
    """
    checkpoint = expanded(config.model)
    if not re.fullmatch(r"step-\d+", checkpoint.name) or not (checkpoint.parent / SETTINGS).is_file():
        return config
    pull(checkpoint)
    check_names(checkpoint)
    trained = read_json(checkpoint.parent / SETTINGS, TrainedModel, _REMEDY, needed=True)
    decides = [sha256_of(checkpoint / MANIFEST), asdict(trained)]
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder() / "merged" / key

    def write() -> None:
        read_manifest(checkpoint)
        meta = {"kind": "model of a checkpoint", "checkpoint": str(checkpoint)}
        with (
            activity("reading the checkpoint"),
            quiet_transformers(),
            committed_directory(folder, meta, replace=folder.exists()) as aside,
        ):
            write_model(_load(checkpoint, trained), aside)

    model = replace(config, model=str(make_once(folder, write)))
    hold(folder, model)
    return model


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
            raise StorageError(f"is of another model than {SETTINGS}: {name} differs", str(checkpoint), _REMEDY)
        own[name].copy_(values)
        missing.discard(name)
    if missing:
        raise StorageError(f"lacks {sorted(missing)[0]}", str(checkpoint), _REMEDY)
    return retriever.eval()
