"""A whole assignment for one worker, on a tiny encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from raytriever.data.prepare.open import open_dataset
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Order
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.losses.engine.workers import ALONE, Workers
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training.batches import BatchSource
from raytriever.training.config import TrainingConfig
from raytriever.training.loop import TrainingSetup


@dataclass
class LogRecorder:
    """What a run said."""

    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def step(self, step: int, measured: Mapping[str, float]) -> None:
        self.steps.setdefault(step, {}).update(measured)

    @property
    def losses(self) -> list[float]:
        return [self.steps[step]["loss"] for step in sorted(self.steps) if "loss" in self.steps[step]]


Make = Callable[..., tuple[TrainingSetup, LogRecorder]]


@pytest.fixture
def make_assignment(tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path) -> Make:
    """Build an assignment; keyword arguments set the training, `loss` and `folder` the rest."""

    def make(
        *,
        total_steps: int = 6,
        loss: LossConfig | None = None,
        folder: Path | None = None,
        workers: Workers = ALONE,
        model: ModelConfig | None = None,
        positives_per_query: int = 1,
        negatives_per_query: int = 1,
        **training: object,
    ) -> tuple[TrainingSetup, LogRecorder]:
        settings = TrainingConfig(**{"batch_size": 16, "learning_rate": 1e-3, "eval_steps": 2, **training})
        retriever = load_retriever(model or ModelConfig(str(tiny_encoder)))
        dataset = open_dataset(tiny_dataset, ["train", "dev"], tokenisation=tokenisation_of(retriever))

        def source(split: str) -> BatchSource:
            examples = Examples.of(dataset, split, settings.seed)
            order = Order(len(examples), settings.batch_size, settings.seed)
            return BatchSource(dataset.tokens, examples, order, positives_per_query, negatives_per_query)

        recorder = LogRecorder()
        work = TrainingSetup(
            retriever=retriever,
            train=source("train"),
            dev=source("dev"),
            loss=loss or LossConfig(loss="mw", temperature=0.05),
            training=settings,
            total_steps=total_steps,
            precision="fp32",
            device=torch.device("cpu"),
            workers=workers,
            folder=folder or tmp_path / "checkpoints",
            on_metrics=recorder.step,
            log=recorder.notices.append,
        )
        return work, recorder

    return make
