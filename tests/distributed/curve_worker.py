"""One worker of a real gloo group that trains a tiny encoder; writes its losses and its final parameters.

Run as `curve_worker.py RANK SIZE STORE OUTPUT ENCODER DATASET`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from raytriever.data.prepare.open import open_dataset
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Order
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training import loop
from raytriever.training.batches import BatchSource
from raytriever.training.config import TrainingConfig
from raytriever.training.parallel.process_group import current_workers

STEPS = 6
LOSSES = ("mw", "infonce")
SETTINGS = TrainingConfig(batch_size=16, learning_rate=1e-3, warmup_steps=1, eval_steps=3, dev_batches=2, seed=3)


def trained(name: str, encoder: str, dataset_folder: str, folder: Path) -> dict[str, torch.Tensor]:
    retriever = load_retriever(ModelConfig(encoder))
    dataset = open_dataset(dataset_folder, ["train", "dev"], tokenisation=tokenisation_of(retriever))
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
    found = {f"parameter/{key}": value.detach().clone() for key, value in modules[0].named_parameters()}
    return found | {f"curve/{key}": torch.tensor(values, dtype=torch.float64) for key, values in logged.items()}


def main(rank: int, size: int, store: str, output: Path, encoder: str, dataset: str) -> None:
    torch.set_num_threads(1)
    if size > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
        )
    found = {
        f"{name}/{key}": value
        for name in LOSSES
        for key, value in trained(name, encoder, dataset, output / f"checkpoints-{size}").items()
    }
    torch.save(found, output / f"{size}-{rank}.pt")
    if size > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5], sys.argv[6])
