"""Trainings that repeat: twice the same, and interrupted and resumed, compared by the bits of their losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ends import End
from on_gpu.measuring import Cases, Figures
from on_gpu.models import contents, write_model
from raytriever.losses.batch_relevance import GlobalIds, find_relevance
from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.training.batch_loader import Batch
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.training_settings import TrainingConfig

STEPS, STOP = 6, 4
SHAPES = {"full": ("minilm", 64), "short": ("minilm", 64), "tiny": ("tiny", 4)}
LOSSES = {"full": ("mw", "infonce", "lsepair"), "short": ("mw",), "tiny": ("mw",)}


class _Interrupted(Exception):
    """The training was ended from outside."""


@dataclass(frozen=True)
class _Source:
    """Random batches, a function of the step."""

    queries: int
    positives_per_query: int = 1
    negatives_per_query: int = 2

    def batch(
        self, step: int, retriever: Retriever, workers: WorkerGroup, symmetric: bool = False, chunk: int | None = None
    ) -> Batch:
        """Return the batch of a step."""
        group = self.positives_per_query + self.negatives_per_query
        rows = np.arange(self.queries)
        passages = contents(self.queries * group, 64, step + 1_000)
        ids = GlobalIds(rows, rows[:, None] * group, np.arange(len(passages)), step=step)
        queries = retriever.batch_of(contents(self.queries, 32, step), "query", tokens=chunk)
        return Batch(queries, retriever.batch_of(passages, "passage", tokens=chunk), find_relevance(ids, 0, 1), chunk)


def cases(device: torch.device, size: str, scratch: Path) -> Cases:
    """Yield each loss."""
    shape, queries = SHAPES[size]
    directory = write_model(scratch, shape, device)
    for loss in LOSSES[size]:
        yield loss, repeated(loss, directory, queries, device, scratch)


def repeated(loss: str, directory: Path, queries: int, device: torch.device, scratch: Path) -> Figures:
    """Say whether the trainings of a loss repeat."""
    first, second, resumed = (
        _losses(scratch / f"{loss}-{name}", directory, loss, queries, device, stop)
        for name, stop in (("first", None), ("second", None), ("resumed", STOP))
    )
    yield f"{loss}: two trainings have the same losses", End(float(first == second), "1", first == second)
    yield f"{loss}: a resumed training has the same losses", End(float(first == resumed), "1", first == resumed)


def _losses(
    folder: Path, directory: Path, loss: str, queries: int, device: torch.device, stop: int | None
) -> dict[int, float]:
    """Return the loss of each step of a training, which is interrupted after `stop` steps and called again."""
    folder.mkdir()
    losses: dict[int, float] = {}

    def keep(step: int, metrics: Mapping[str, float]) -> None:
        if "loss" in metrics:
            losses[step] = metrics["loss"]
            if step == stop and step + 1 not in losses and not interrupted:
                interrupted.append(step)
                raise _Interrupted

    interrupted: list[int] = []
    for _ in range(2):
        retriever = load_retriever(ModelConfig(str(directory), query_length=32, passage_length=64)).to(device)
        source = cast(Any, _Source(queries))
        setup = TrainingSetup(
            retriever=retriever,
            train=source,
            dev=source,
            loss=LossConfig(loss, temperature=0.05),
            training=TrainingConfig(
                batch_size=queries, max_steps=STEPS, eval_steps=3, dev_batches=1, warmup_steps=1, dropout=0.1
            ),
            total_steps=STEPS,
            precision="bf16" if device.type == "cuda" else "fp32",
            device=device,
            workers=ALONE,
            folder=folder,
            on_metrics=keep,
            log=lambda line: None,
        )
        try:
            train(setup)
        except _Interrupted:
            continue
        break
    return losses
