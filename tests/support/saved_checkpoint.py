"""A checkpoint of an encoder, as a run writes it."""

from __future__ import annotations

from pathlib import Path

import torch

from raytriever.core.store.commit import committed_directory
from raytriever.models.checkpoint_model import Slice, write_settings
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever
from raytriever.training.checkpoint import State, checkpoint_path, write_slices, write_state
from raytriever.training.early_stopping import TrainerState


def save_checkpoint(retriever: Retriever, model: ModelConfig, folder: Path, step: int, precision: str = "fp32") -> Path:
    """Write the checkpoint of a step into a folder, with a parameter of the loss; and the settings of the model."""
    write_settings(folder, model, precision)
    trained = [(name, p.detach()) for name, p in retriever.named_parameters() if p.requires_grad]
    slices = [Slice(f"retriever.{name}", value.flatten(), 0, tuple(value.shape)) for name, value in trained]
    with committed_directory(checkpoint_path(folder, step)) as aside:
        write_slices([*slices, Slice("loss.temperature", torch.ones(1), 0, (1,))], aside, 0, 1)
        write_state(State(TrainerState(step), {}), aside)
    return checkpoint_path(folder, step)


def move_weights(retriever: Retriever, by: float = 0.02) -> Retriever:
    """Change the weights, as some training does."""
    with torch.no_grad():
        for parameter in retriever.parameters():
            parameter += by * torch.cos(torch.arange(parameter.numel()).float()).view_as(parameter).to(parameter)
    return retriever
