"""One worker of a real gloo group that trains a tiny encoder until it is stopped, from where others left it.

The checkpoints are in `folder`, which may be the address of a bucket: then `hosts` has the folder of the copies on the
host of each worker. Batch `stop` cannot be made (-1: all can), and `chosen` are settings of the encoder and
the precision. The result is what was logged, and the weights at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raytriever.data.prepare.open import open_dataset
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Order
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import ALONE, current_workers
from raytriever.models.config import ModelConfig
from raytriever.models.precision import base_type
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import load_retriever
from raytriever.store.objects import COPIES, copy_of
from raytriever.store.remote import pull
from raytriever.training.batch import Batch
from raytriever.training.config import TrainingConfig
from raytriever.training.loader import BatchSource
from raytriever.training.loop import TrainingSetup, train

sys.path.append(str(Path(__file__).parents[1] / "support"))
from tiny_models import embed

STEPS = 8


class Stopped(BaseException):
    """As a preemption: all workers end at once."""


@dataclass(frozen=True)
class Stopping(BatchSource):
    """Batches up to one that cannot be made."""

    stop: int = -1

    def batch(self, step: int, *rest: Any, **settings: Any) -> Batch:
        if step == self.stop:
            raise Stopped
        return super().batch(step, *rest, **settings)


def main(
    encoder: Path,
    dataset_folder: Path,
    strategy: str,
    dropout: float,
    stop: int,
    folder: Path | str,
    chosen: dict[str, Any],
    hosts: tuple[Path, ...] = (),
) -> dict[str, torch.Tensor]:
    if hosts:
        os.environ[COPIES] = str(hosts[current_workers().rank])
        pull(copy_of(str(folder)))  # as a worker does when it joins its driver
    folder = Path(copy_of(str(folder)))
    settings = TrainingConfig(
        batch_size=16,
        learning_rate=1e-3,
        warmup_steps=2,
        eval_steps=3,
        dev_batches=2,
        seed=3,
        dropout=dropout,
        strategy=strategy,
        checkpoint_steps=1,
    )
    precision = chosen.pop("precision", "fp32")
    config = ModelConfig(str(encoder), **chosen)
    retriever = load_retriever(config, base_type(config.lora_rank, precision))
    prepare_for_training(retriever, config, settings.seed)
    dataset = open_dataset(str(dataset_folder), ["train", "dev"], tokenisation=tokenisation_of(retriever))

    def source(split: str) -> Stopping:
        examples = Examples.of(dataset, split, settings.seed)
        order = Order(len(examples), settings.batch_size, settings.seed)
        return Stopping(dataset.tokens, examples, order, 1, 2, stop=stop if split == "train" else -1)

    logged: dict[str, torch.Tensor] = {}

    def on_event(step: int, measured: Mapping[str, float]) -> None:
        for name in ("loss", "dev_loss", "gradient_norm", "temperature"):
            if name in measured:
                logged[f"{name}@{step}"] = torch.tensor(measured[name], dtype=torch.float64)

    work = TrainingSetup(
        retriever=retriever,
        train=source("train"),
        dev=source("dev"),
        loss=LossConfig("mw", temperature=0.05, learn_temperature=True),
        training=settings,
        total_steps=STEPS,
        precision=precision,
        device=torch.device("cpu"),
        workers=current_workers(),
        folder=folder,
        on_metrics=on_event,
        log=lambda line: logged.update({line: torch.zeros(())}),
        data_digest="letters",
    )
    try:
        progression = train(work)
    except Stopped:
        assert stop >= 0
    else:
        assert stop < 0
        logged["best step"] = torch.tensor(progression.best_step)
        logged |= {f"parameter/{name}": value.detach().clone() for name, value in retriever.named_parameters()}
        with torch.no_grad():
            batch = work.dev.batch(0, retriever, ALONE)
            logged["embeddings"] = embed(retriever.eval(), batch.queries, batch.passages)[0]
    return logged
