"""One worker of a real gloo group that trains a tiny encoder while its hard negatives are refreshed.

The last worker has not read a new table before its loader has drawn batch `LATE`. The result is the table that each
batch was drawn from, and the weights of the checkpoint that the pool received."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import torch
from runs import setup_of
from scripted import ScriptedPool

from raytriever.data.hard_negatives import NegativesTable, read_negatives
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.losses.distributed import current_workers
from raytriever.models.checkpoint_model import WEIGHTS, read_slices, whole_tensors
from raytriever.training.batch_loader import Batch, Batches
from raytriever.training.loop import train
from raytriever.training.negative_refresh import RefreshPlan

STEPS, EVERY, LATE = 14, 3, 8


@dataclass(frozen=True)
class Watched(Batches):
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
    """Keeps the weights of the checkpoints."""

    weights: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    def submit(self, number: int, checkpoint: Path) -> None:
        self.weights[number] = dict(whole_tensors(read_slices(checkpoint, WEIGHTS)))
        super().submit(number, checkpoint)


def main(encoder: Path, dataset_folder: Path, strategy: str, folder: Path) -> dict[str, torch.Tensor]:
    workers = current_workers()
    settings = {"total_steps": STEPS, "eval_steps": STEPS, "dev_batches": 1, "strategy": strategy}
    work, _ = setup_of(encoder, dataset_folder, folder / "checkpoints", workers=workers, **settings)
    dataset = open_dataset(str(dataset_folder), ["train", "dev"])
    watched = Watched(**vars(work.train))
    pool = Keeping(folder / "negatives", dataset=dataset)

    def read(path: Path) -> NegativesTable:
        if workers.rank:
            assert watched.late.wait(100)
        table = read_negatives(path, dataset)
        watched.taken.set()
        return table

    miner = None if workers.rank else pool
    refresh = RefreshPlan(every=EVERY, waits=False, folder=pool.folder, read=read, miner=miner)
    train(replace(work, train=watched, refresh=refresh))
    logged = {"versions": torch.tensor([watched.drawn[step] for step in range(STEPS)])}
    return logged | {f"weights/{name}": values for name, values in pool.weights.get(1, {}).items()}
