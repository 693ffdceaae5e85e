"""Training on one page: data, model, loss, loop. Read this first; its steps are those of one worker of `train`.

Run: `python -m raytriever.recipes.one_page DATASET [MODEL]`. `training/loop.py` adds what a long run needs: several
workers, gradient caching, validation, checkpoints and metrics.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from raytriever.data.config import DataConfig
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import ALONE
from raytriever.losses.registry import build_loss
from raytriever.models.config import ModelConfig
from raytriever.models.encoder import set_dropout
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.terminal import show
from raytriever.training.config import TrainingConfig
from raytriever.training.loader import BatchSource
from raytriever.training.loop import build_optimizer, learning_rate_scale
from raytriever.training.parallel.objective import Objective
from raytriever.training.training_data import TrainingData


def train_on_one_page(dataset: str, model: str = "minilm", *, settings: TrainingConfig | None = None) -> Retriever:
    """Return a model that has learned from the training split of a data set, with the Mann-Whitney loss.

    Args:
        dataset: name or path.
        model: name or path.
        settings: Settings of training; batch, steps, learning rate, warm-up, weight decay and seed are used.
    """
    settings = settings or TrainingConfig(max_steps=60)
    # Model: one transformer that encodes queries and passages, or two.
    retriever = load_retriever(ModelConfig(model=model))
    # Data: a batch has queries, a positive of each, and their ids. All other passages of the batch are negatives.
    config, tokens = DataConfig(dataset=dataset), tokenisation_of(retriever)
    data = TrainingData.open([dataset], config, tokens, settings.batch_size, settings.seed)
    for step, value in fit(retriever, data.train(negatives=None), LossConfig(), settings):
        show(f"step {step}: loss {value:.4f}")
    return retriever.eval()


def fit(
    retriever: Retriever, batches: BatchSource, loss: LossConfig, settings: TrainingConfig
) -> Iterator[tuple[int, float]]:
    """Train in place, on the device of the retriever, and yield each step with its loss before the update."""
    torch.manual_seed(settings.seed)
    set_dropout(retriever, settings.dropout)
    # Loss: of the score matrix of the batch. Objective: encoder and loss as one module.
    reduce = build_loss(loss, unit_length=retriever.description.similarity == "cosine")
    objective = Objective(retriever.train(), reduce, precision="fp32")
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    optimizer = build_optimizer(objective, settings.learning_rate, settings.weight_decay)
    # Loop: a batch is a function of the data, the seed and the step.
    steps = settings.max_steps or 60
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * learning_rate_scale(step, settings.warmup_steps, steps)
        value = objective(batches.batch(step, retriever, ALONE, loss.both_ways), ALONE).value
        value.backward()
        torch.nn.utils.clip_grad_norm_(trained, settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        yield step + 1, value.item()


if __name__ == "__main__":
    train_on_one_page(*sys.argv[1:3])
