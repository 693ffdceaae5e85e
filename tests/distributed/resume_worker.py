"""One worker of a real gloo group that trains a tiny encoder until it is stopped, from where others left it.

The checkpoints are in `folder`, which may be the address of a bucket: then `hosts` has the folder of the copies on the
host of each worker. Batch `stop` cannot be made (-1: all can), and `chosen` are settings of the encoder and
the precision. The result is what was logged, and the weights at the end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from runs import setup_of
from tiny_models import embed

from raytriever.core.store.object_stores import COPIES
from raytriever.core.store.remote_folders import copy_of, pull
from raytriever.losses.distributed import ALONE, current_workers
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.training.batch_loader import Batch, Batches
from raytriever.training.loop import train

STEPS = 8


class Stopped(BaseException):
    """As a preemption: all workers end at once."""


@dataclass(frozen=True)
class Stopping(Batches):
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
    precision = chosen.pop("precision", "fp32")
    work, _ = setup_of(
        ModelConfig(str(encoder), **chosen),
        dataset_folder,
        folder,
        total_steps=STEPS,
        loss=LossConfig("mw+bce", temperature=0.05, learn_temperature=True),
        workers=current_workers(),
        precision=precision,
        warmup_steps=2,
        eval_steps=3,
        dev_batches=2,
        seed=3,
        dropout=dropout,
        strategy=strategy,
        checkpoint_steps=1,
    )
    retriever = work.retriever
    logged: dict[str, torch.Tensor] = {}

    def on_event(step: int, measured: Mapping[str, float]) -> None:
        for name in ("loss", "dev_loss", "gradient_norm", "temperature"):
            if name in measured:
                logged[f"{name}@{step}"] = torch.tensor(measured[name], dtype=torch.float64)

    work = replace(
        work,
        train=Stopping(**vars(work.train), stop=stop),
        on_metrics=on_event,
        log=lambda line: logged.update({line: torch.zeros(())}),
        data_digest="letters",
    )
    try:
        trainer_state = train(work)
    except Stopped:
        assert stop >= 0
    else:
        assert stop < 0
        logged["best step"] = torch.tensor(trainer_state.best_step)
        logged |= {f"parameter/{name}": value.detach().clone() for name, value in retriever.named_parameters()}
        with torch.no_grad():
            batch = work.dev.batch(0, retriever, ALONE)
            logged["embeddings"] = embed(retriever.eval(), batch.queries, batch.passages)[0]
    return logged
