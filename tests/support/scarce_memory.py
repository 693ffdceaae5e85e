"""Memory that runs out on the second of two workers, in a module that Ray calls in new processes."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

# Texts that the second worker can encode at a time, from this step on.
MOST_TEXTS, FIRST_STEP = 12, 2


def current_step() -> int:
    """Return the number of the step that is running; -1 in a validation, and while the strategy is built."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_qualname != "Trainer.step":
        frame = frame.f_back
    return -1 if frame is None else int(frame.f_locals["step"])


def install() -> None:
    """Search a chunk, as on a GPU, and let the second worker run out of memory."""
    from raytriever.losses.distributed import current_workers
    from raytriever.models.packing import TokenBatch, texts_of
    from raytriever.models.retriever import Retriever
    from raytriever.prompts import Side
    from raytriever.training.parallel import chunk_size

    chunk_size.SEARCHED = ("cpu",)
    encode = Retriever.encode

    def encode_or_fail(retriever: Retriever, part: TokenBatch, side: Side) -> Tensor:
        if current_workers().rank == 1 and current_step() >= FIRST_STEP and texts_of(part) > MOST_TEXTS:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return encode(retriever, part, side)

    Retriever.encode = encode_or_fail
