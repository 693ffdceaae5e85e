"""Recipe of the quickstart."""

from __future__ import annotations

from raytriever.config import Config
from raytriever.data.config import DataConfig
from raytriever.losses.config import LossConfig
from raytriever.models.config import ModelConfig
from raytriever.training.config import TrainingConfig


def pydocs() -> Config:
    """Return the default of `train`: MiniLM on the docstrings of this environment, in a few minutes on two CPU cores.

    The loss is MW at temperature 0.01 on in-batch negatives, and the dev split decides which checkpoint is kept. A
    plain `train` may choose a part of the docstrings and fewer steps; see `experiment.quickstart`.

    Command: `raytriever train --loss mw`
    """
    return Config(
        data=DataConfig(dataset="pydocs"),
        model=ModelConfig(model="minilm", passage_length=48),
        loss=LossConfig(loss="mw", temperature=0.01),
        training=TrainingConfig(batch_size=64, max_steps=60, learning_rate=5e-5, warmup_steps=10),
    )
