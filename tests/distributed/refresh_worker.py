"""One worker of a real gloo group that trains a tiny encoder while its hard negatives are refreshed.

The last worker has not read a new table before its loader has drawn batch `LATE`. The result is the table that each
batch was drawn from, and the weights that the pool received.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch

from raytriever.data.negatives import NegativesTable, read_negatives
from raytriever.data.prepare.open import open_dataset
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Order
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import current_workers
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.training.batch import Batch
from raytriever.training.config import TrainingConfig
from raytriever.training.loader import BatchSource
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.parallel.model_state import Snapshot, shape_of
from raytriever.training.refresh import RefreshPlan

sys.path.append(str(Path(__file__).parents[1] / "support"))
from scripted_pool import ScriptedPool

STEPS, EVERY, LATE = 14, 3, 8


@dataclass(frozen=True)
class Watched(BatchSource):
    """Batches that are remembered by the table they were drawn from."""

    drawn: dict[int, int] = field(default_factory=dict)
    late: Event = field(default_factory=Event)
    taken: Event = field(default_factory=Event)

    def batch(self, step: int, *rest: Any, **settings: Any) -> Batch:
        assert self.drawn.setdefault(step, self.version) == self.version
        if step >= LATE:
            self.late.set()
        if step > LATE:
            self.taken.wait(3)  # else the run may be over before a busy machine has read the table
        return super().batch(step, *rest, **settings)


@dataclass
class Keeping(ScriptedPool):
    """Keeps the snapshots, and holds them to the encoder where that is whole."""

    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    retriever: Retriever | None = None

    def submit(self, number: int, snapshot: Snapshot) -> None:
        assert self.retriever is not None
        for name, parameter in self.retriever.named_parameters():
            if parameter.requires_grad and parameter.shape == shape_of(parameter):
                assert np.array_equal(snapshot[name], parameter.detach().numpy()), name
        self.snapshots[number] = snapshot
        super().submit(number, snapshot)


def main(encoder: Path, dataset_folder: Path, strategy: str, folder: Path) -> dict[str, torch.Tensor]:
    workers = current_workers()
    settings = TrainingConfig(batch_size=16, learning_rate=1e-3, eval_steps=STEPS, dev_batches=1, strategy=strategy)
    retriever = load_retriever(ModelConfig(str(encoder)))
    dataset = open_dataset(str(dataset_folder), ["train", "dev"], tokenisation=tokenisation_of(retriever))

    def source(split: str) -> Watched:
        examples = Examples.of(dataset, split, settings.seed)
        return Watched(dataset.tokens, examples, Order(len(examples), settings.batch_size, settings.seed), 1, 2)

    watched = source("train")
    pool = Keeping(dataset, folder / "negatives", retriever=retriever)

    def read(path: Path) -> NegativesTable:
        if workers.rank:
            assert watched.late.wait(100)
        table = read_negatives(path, dataset)
        watched.taken.set()
        return table

    train(
        TrainingSetup(
            retriever=retriever,
            train=watched,
            dev=source("dev"),
            loss=LossConfig("mw", temperature=0.05),
            training=settings,
            total_steps=STEPS,
            precision="fp32",
            device=torch.device("cpu"),
            workers=workers,
            folder=folder / "checkpoints",
            on_metrics=lambda step, measured: None,
            log=lambda line: None,
            refresh=RefreshPlan(
                every=EVERY, waits=False, folder=pool.folder, read=read, miner=None if workers.rank else pool
            ),
        )
    )
    logged = {"versions": torch.tensor([watched.drawn[step] for step in range(STEPS)])}
    return logged | {f"weights/{name}": torch.tensor(values) for name, values in pool.snapshots.get(1, {}).items()}
