"""A whole assignment for one worker, on a tiny encoder, with or without the scores of a teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from raytriever.data.negatives import NegativesTable
from raytriever.data.prepare.open import open_dataset
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Order
from raytriever.data.sampling.teacher import TeacherTable
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training.config import TrainingConfig
from raytriever.training.guide import Guide, GuideTexts
from raytriever.training.loader import BatchSource
from raytriever.training.loop import TrainingSetup

CPU = torch.device("cpu")


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
        workers: WorkerGroup = ALONE,
        model: ModelConfig | None = None,
        positives_per_query: int = 1,
        negatives_per_query: int = 1,
        device: torch.device = CPU,
        precision: str = "fp32",
        guide: Path | None = None,
        **training: object,
    ) -> tuple[TrainingSetup, LogRecorder]:
        settings = TrainingConfig(**{"batch_size": 16, "learning_rate": 1e-3, "eval_steps": 2, **training})
        retriever = load_retriever(model or ModelConfig(str(tiny_encoder))).to(device)
        dataset = open_dataset(tiny_dataset, ["train", "dev"], tokenisation=tokenisation_of(retriever))
        loaded = guide and Guide.load(str(guide), precision, device)
        texts = loaded and GuideTexts(loaded.retriever, dataset)

        def source(split: str) -> BatchSource:
            examples = Examples.of(dataset, split, settings.seed)
            order = Order(len(examples), settings.batch_size, settings.seed)
            return BatchSource(dataset.tokens, examples, order, positives_per_query, negatives_per_query, guide=texts)

        recorder = LogRecorder()
        work = TrainingSetup(
            retriever=retriever,
            train=source("train"),
            dev=source("dev"),
            loss=loss or LossConfig(loss="mw", temperature=0.05),
            training=settings,
            total_steps=total_steps,
            precision=precision,
            device=device,
            workers=workers,
            folder=folder or tmp_path / "checkpoints",
            on_metrics=recorder.step,
            log=recorder.notices.append,
            guide=loaded,
        )
        return work, recorder

    return make


Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


@pytest.fixture
def score() -> Score:
    """Return what the teacher thinks: any function of the pair."""
    return lambda queries, documents: np.sin(queries * 7.0 + documents * 3.0).astype(np.float32) * 3


@pytest.fixture
def taught(make_assignment: Make, tiny_dataset: Path, score: Score) -> Make:
    """Five hard negatives a training query, all scored but the last; three a group."""

    def make(**settings: object) -> tuple[TrainingSetup, LogRecorder]:
        work, recorder = make_assignment(negatives_per_query=3, **settings)
        dataset = open_dataset(tiny_dataset, ["train", "dev"], tokenisation=tokenisation_of(work.retriever))
        queries, shift = np.repeat(np.arange(96), 5), np.tile(np.arange(1, 6), 96)
        negatives = NegativesTable.of(dataset, queries, (queries + shift) % 160, "dense", shift)
        rows = np.concatenate([np.stack([queries, (queries + shift) % 160])[:, shift < 5], [np.arange(96)] * 2], axis=1)
        table = TeacherTable.of(dataset, *rows, score(*rows), "here")
        examples = Examples.of(dataset, "train", 0, negatives)
        return dataclasses.replace(
            work, train=dataclasses.replace(work.train, examples=examples, teacher=table)
        ), recorder

    return make
