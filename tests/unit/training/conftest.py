"""A whole assignment for one worker, on a tiny encoder, with or without the scores of a teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runs import LogRecorder, setup_of

from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.sampling.teacher_scores import TeacherTable
from raytriever.data.sampling.training_examples import Examples
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.training.loop import TrainingSetup

Make = Callable[..., tuple[TrainingSetup, LogRecorder]]


@pytest.fixture
def make_assignment(tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path) -> Make:
    """Build an assignment, see `setup_of`."""

    def make(*, folder: Path | None = None, model: ModelConfig | None = None, **settings: object) -> object:
        return setup_of(model or tiny_encoder, tiny_dataset, folder or tmp_path / "checkpoints", **settings)

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
        dataset = open_dataset(tiny_dataset, ["train", "dev"], tokenization=tokenization_of(work.retriever))
        queries, shift = np.repeat(np.arange(96), 5), np.tile(np.arange(1, 6), 96)
        negatives = NegativesTable.of(dataset, queries, (queries + shift) % 160, "dense", shift)
        rows = np.concatenate([np.stack([queries, (queries + shift) % 160])[:, shift < 5], [np.arange(96)] * 2], axis=1)
        table = TeacherTable.of(dataset, *rows, score(*rows), "here")
        examples = Examples.of(dataset, "train", 0, negatives)
        return dataclasses.replace(
            work, train=dataclasses.replace(work.train, examples=examples, teacher=table)
        ), recorder

    return make
