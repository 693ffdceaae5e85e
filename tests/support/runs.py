"""What a worker needs to train a tiny encoder on a tiny data set, and runs that are killed and continued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.sampling.batch_order import Order
from raytriever.data.sampling.training_examples import Examples
from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.device_and_precision import base_type
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prepare_for_training import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.training.batch_loader import Batches
from raytriever.training.early_stopping import TrainerState
from raytriever.training.guide_encoder import Guide, GuideTexts
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.training_settings import TrainingConfig

CPU = torch.device("cpu")


@dataclass
class LogRecorder:
    """What a run said."""

    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.setdefault(step, {}).update(metrics)

    @property
    def losses(self) -> list[float]:
        return [self.steps[step]["loss"] for step in sorted(self.steps) if "loss" in self.steps[step]]


def setup_of(
    model: Path | ModelConfig,
    dataset_folder: Path,
    folder: Path,
    *,
    total_steps: int = 6,
    loss: LossConfig | None = None,
    workers: WorkerGroup = ALONE,
    positives_per_query: int = 1,
    negatives_per_query: int = 1,
    device: torch.device = CPU,
    precision: str = "fp32",
    guide: Path | None = None,
    **training: object,
) -> tuple[TrainingSetup, LogRecorder]:
    """Build an assignment whose checkpoints are in `folder`; other keyword arguments set the training."""
    settings = TrainingConfig(**{"batch_size": 16, "learning_rate": 1e-3, "eval_steps": 2, **training})
    config = model if isinstance(model, ModelConfig) else ModelConfig(str(model))
    retriever = load_retriever(config, base_type(config.lora_rank, precision)).to(device)
    prepare_for_training(retriever, config, settings.seed)
    dataset = open_dataset(dataset_folder, ["train", "dev"], tokenization=tokenization_of(retriever))
    loaded = guide and Guide.load(str(guide), precision, device)
    texts = loaded and GuideTexts(loaded.retriever, dataset)

    def source(split: str) -> Batches:
        examples = Examples.of(dataset, split, settings.seed)
        order = Order(len(examples), settings.batch_size, settings.seed)
        return Batches(dataset.tokens, examples, order, positives_per_query, negatives_per_query, guide=texts)

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
        folder=folder,
        on_metrics=recorder.step,
        log=recorder.notices.append,
        guide=loaded,
    )
    return work, recorder


def parameters(retriever: Retriever) -> dict[str, torch.Tensor]:
    """Return copies of all parameters by name."""
    return {name: value.detach().clone() for name, value in retriever.named_parameters()}


def assert_same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    """Compare tensors by name, to the bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


class Killed(BaseException):
    """As sudden as a signal."""


def train_until(work: TrainingSetup, dies: Callable[[int, Mapping[str, float]], bool]) -> None:
    """Train, and die when a message is logged for which `dies` holds."""

    def listen(step: int, metrics: Mapping[str, float]) -> None:
        if dies(step, metrics):
            raise Killed
        work.on_metrics(step, metrics)

    with pytest.raises(Killed):
        train(replace(work, on_metrics=listen))


class Lives:
    """Lives of one run: each goes on in the same folder where the one before it was killed."""

    def __init__(self, make: Callable[..., tuple[TrainingSetup, LogRecorder]], folder: Path) -> None:
        self.make, self.folder = make, folder
        self.logged: dict[int, dict[str, float]] = {}
        self.notices: list[str] = []

    def remember(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep what was logged first."""
        for name, value in metrics.items():
            self.logged.setdefault(step, {}).setdefault(name, value)

    def train(self, work: TrainingSetup, recorder: LogRecorder, dies: bool) -> TrainerState | None:
        """Run to the end, or to a kill."""
        trainer_state = None
        with pytest.raises(Killed) if dies else nullcontext():
            trainer_state = train(work)
        self.notices += recorder.notices
        return trainer_state

    def curve(self, name: str) -> dict[int, float]:
        """Return what was logged under a name, by step."""
        return {step: metrics[name] for step, metrics in sorted(self.logged.items()) if name in metrics}
