"""One worker of a real gloo group of two, of which the second runs out of memory.

It trains once for each of `passes`: from step 2 on, the second worker has no memory for more than `MOST` tokens in no
pass of gradient caching (`none`), in the first (`encoding`), or in the second (`differentiating`). The result is what
was logged and the weights at the end, of each time.

With the strategy `fsdp2` a chunk is searched and remembered as on a GPU. The second worker then has no memory for more
than `MOST_ALONE` tokens in either pass, which ends the group. The next call resumes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from runs import setup_of
from torch import Tensor

from raytriever.losses.distributed import current_workers
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.packing import TokenBatch, tokens_of
from raytriever.models.prompts import Side
from raytriever.training import checkpoint_writer
from raytriever.training.loop import train
from raytriever.training.parallel import chunk_size
from raytriever.training.parallel.out_of_memory import OutOfMemory


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
    checkpoint_writer.GRACE_SECONDS = 60.0  # a loaded machine may write the shard of the other worker slowly
    if by_block:
        chunk_size.SEARCHED = ("cpu",)
    work, recorder = setup_of(
        encoder,
        folder,
        output / f"checkpoints-{failing}",
        total_steps=4,
        loss=LossConfig("infonce", temperature=0.05),
        workers=workers,
        eval_steps=8,
        dev_batches=1,
        strategy=strategy,
        grad_cache_tokens=None if by_block else CHUNK,
        checkpoint_steps=1,
    )
    retriever, error = work.retriever, ""
    encode = retriever.encode

    def encode_or_fail(part: TokenBatch, side: Side) -> Tensor:
        here = "differentiating" if torch.is_grad_enabled() else "encoding"
        fails = failing != "none" if by_block else here == failing
        if workers.rank == 1 and current_step() >= 2 and fails and tokens_of(part) > (MOST_ALONE if by_block else MOST):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return encode(part, side)

    retriever.encode = encode_or_fail  # type: ignore[method-assign]

    try:
        train(work)
    except (OutOfMemory, RuntimeError) as failure:  # the other worker raises when its connection is closed
        error = f"{type(failure).__name__}: {failure}"
    parameters = [] if error else [value.detach() for value in retriever.parameters()]
    return {"losses": recorder.losses, "lines": recorder.notices, "parameters": parameters, "error": error}


def main(output: Path, encoder: Path, folder: Path, strategy: str, *passes: str) -> list[dict[str, Any]]:
    return [run(output, encoder, folder, strategy, failing) for failing in passes]
