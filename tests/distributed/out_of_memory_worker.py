"""One worker of a real gloo group of two, of which the second runs out of memory.

It trains once for each of `passes`: from step 2 on, the second worker has no memory for more than `MOST` tokens in no
pass of gradient caching (`none`), in the first (`encoding`), or in the second (`differentiating`). The result is what
was logged and the weights at the end, of each time.

With the strategy `fsdp2` a chunk is searched and remembered as on a GPU. The second worker then has no memory for more
than `MOST_ALONE` tokens in either pass, which ends the group. The next call resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raytriever.data.prepare.open import open_dataset
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Order
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import current_workers
from raytriever.models.config import ModelConfig
from raytriever.models.packing import TokenBatch, tokens_of
from raytriever.models.retriever import load_retriever
from raytriever.prompts import Side
from raytriever.training import checkpoint_writer
from raytriever.training.config import TrainingConfig
from raytriever.training.loader import BatchSource
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.parallel import chunk_size
from raytriever.training.parallel.grad_cache import OutOfMemory


def current_step() -> int:
    """Return the number of the step that is running; -1 in a validation, and while the strategy is built."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_qualname != "Trainer.step":
        frame = frame.f_back
    return -1 if frame is None else int(frame.f_locals["step"])


# Tokens; a text has about 16.
CHUNK, MOST, MOST_ALONE = 160, 90, 192


def run(output: Path, encoder: Path, folder: Path, strategy: str, failing: str) -> dict[str, Any]:
    workers = current_workers()
    by_block = strategy == "fsdp2"
    settings = TrainingConfig(
        batch_size=16,
        learning_rate=1e-3,
        eval_steps=8,
        dev_batches=1,
        strategy=strategy,
        grad_cache_tokens=None if by_block else CHUNK,
        checkpoint_steps=1,
    )
    checkpoint_writer.GRACE_SECONDS = 60.0  # a loaded machine may write the shard of the other worker slowly
    if by_block:
        chunk_size.SEARCHED = ("cpu",)
    checkpoints = output / f"checkpoints-{failing}"
    retriever = load_retriever(ModelConfig(str(encoder)))
    dataset = open_dataset(str(folder), ["train", "dev"], tokenisation=tokenisation_of(retriever))

    def source(split: str) -> BatchSource:
        examples = Examples.of(dataset, split, settings.seed)
        return BatchSource(dataset.tokens, examples, Order(len(examples), settings.batch_size, settings.seed), 1, 1)

    losses, lines, error = list[float](), list[str](), ""
    encode = retriever.encode

    def encode_or_fail(part: TokenBatch, side: Side) -> Tensor:
        here = "differentiating" if torch.is_grad_enabled() else "encoding"
        fails = failing != "none" if by_block else here == failing
        if workers.rank == 1 and current_step() >= 2 and fails and tokens_of(part) > (MOST_ALONE if by_block else MOST):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return encode(part, side)

    retriever.encode = encode_or_fail  # type: ignore[method-assign]

    def on_metrics(step: int, metrics: Mapping[str, float]) -> None:
        if "loss" in metrics:
            losses.append(metrics["loss"])

    setup = TrainingSetup(
        retriever=retriever,
        train=source("train"),
        dev=source("dev"),
        loss=LossConfig("infonce", temperature=0.05),
        training=settings,
        total_steps=4,
        precision="fp32",
        device=torch.device("cpu"),
        workers=workers,
        folder=checkpoints,
        on_metrics=on_metrics,
        log=lines.append,
    )
    try:
        train(setup)
    except (OutOfMemory, RuntimeError) as failure:  # the other worker raises when its connection is closed
        error = f"{type(failure).__name__}: {failure}"
    parameters = [] if error else [value.detach() for value in retriever.parameters()]
    return {"losses": losses, "lines": lines, "parameters": parameters, "error": error}


def main(output: Path, encoder: Path, folder: Path, strategy: str, *passes: str) -> list[dict[str, Any]]:
    return [run(output, encoder, folder, strategy, failing) for failing in passes]
