"""One worker of a real gloo group that trains a tiny encoder; the result is its losses and its final parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from raytriever.data.prepare.open import open_dataset
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Order
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import current_workers
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training import loop
from raytriever.training.config import TrainingConfig
from raytriever.training.loader import BatchSource

STEPS = 6
LOSSES = ("mw", "infonce")
SETTINGS = TrainingConfig(batch_size=16, learning_rate=1e-3, warmup_steps=1, eval_steps=3, dev_batches=2, seed=3)


def trained(name: str, encoder: Path, dataset_folder: Path, folder: Path) -> dict[str, torch.Tensor]:
    retriever = load_retriever(ModelConfig(str(encoder)))
    dataset = open_dataset(str(dataset_folder), ["train", "dev"], tokenisation=tokenisation_of(retriever))
    logged: dict[str, list[float]] = {}
    modules: list[torch.nn.Module] = []

    def source(split: str) -> BatchSource:
        examples = Examples.of(dataset, split, SETTINGS.seed)
        return BatchSource(dataset.tokens, examples, Order(len(examples), SETTINGS.batch_size, SETTINGS.seed), 1, 2)

    def on_event(step: int, measured: Mapping[str, float]) -> None:
        for key in ("loss", "dev_loss", "temperature", "gradient_norm"):
            if key in measured:
                logged.setdefault(key, []).append(measured[key])

    # The loop keeps its objective, which holds the temperature, to itself: it is taken as it is built.
    build = loop.build_optimizer
    loop.build_optimizer = lambda module, *rest: modules.append(module) or build(module, *rest)
    loop.train(
        loop.TrainingSetup(
            retriever=retriever,
            train=source("train"),
            dev=source("dev"),
            loss=LossConfig(name, temperature=0.05, learn_temperature=True, distribution_weight=0.01),
            training=SETTINGS,
            total_steps=STEPS,
            precision="fp32",
            device=torch.device("cpu"),
            workers=current_workers(),
            folder=folder / name,
            on_metrics=on_event,
            log=print,
        )
    )
    loop.build_optimizer = build
    parameters = {f"parameter/{key}": value.detach().clone() for key, value in modules[0].named_parameters()}
    return parameters | {f"curve/{key}": torch.tensor(values, dtype=torch.float64) for key, values in logged.items()}


def main(output: Path, encoder: Path, dataset: Path) -> dict[str, torch.Tensor]:
    folder = output / f"checkpoints-{current_workers().size}"
    return {f"{name}/{key}": value for name in LOSSES for key, value in trained(name, encoder, dataset, folder).items()}
