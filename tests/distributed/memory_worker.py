"""One worker of a real gloo group: bytes of tensors at most in a step, and between steps.

The third step is measured: the first one creates the states of the optimizer, and at the second one DDP rebuilds its
buckets."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from batch_ids import BatchIds, build_loss
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig

from raytriever.losses.distributed import current_workers
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.encoder import Encoder
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import Buckets
from raytriever.training.batch_loader import Batch
from raytriever.training.loop import build_strategy
from raytriever.training.optimizer_and_schedule import build_optimizer
from raytriever.training.parallel import deepspeed_zero
from raytriever.training.parallel.objective import Objective
from raytriever.training.training_settings import TrainingConfig

sys.path.append(str(Path(__file__).parents[1] / "support"))
from allocations import allocated, encoder_of, live_bytes
from steps import take_step

CONFIG = BertConfig(
    vocab_size=8_000, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4
)
TEXTS, TOKENS, CHUNK = 8, 16, 2  # texts of each side of one worker
BUCKET = 1_000_000  # values in a message, so that the model needs several


class Towers(torch.nn.Module):
    """The part of a retriever of one tower that an objective needs."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.query = self.passage = encoder

    def encode(self, tokens: dict[str, torch.Tensor], side: str) -> torch.Tensor:
        embeddings: torch.Tensor = self.query(tokens)
        return embeddings


class MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc; `mapped` are the bytes of blocks that it takes from the system one by one."""

    _fields_ = [("others", ctypes.c_size_t * 4), ("mapped", ctypes.c_size_t), ("rest", ctypes.c_size_t * 5)]


class MappedPeak(TorchDispatchMode):
    """Largest number of bytes of large blocks after an operation. A profile misses what gloo's threads free."""

    def __init__(self) -> None:
        super().__init__()
        self._libc = ctypes.CDLL(None)
        self._libc.mallinfo2.restype = MallocInfo
        self.peak = self.mapped()

    def mapped(self) -> int:
        return int(self._libc.mallinfo2().mapped)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.peak = max(self.peak, self.mapped())
        return output


def mapped_peak(run: Callable[[], Any]) -> int:
    """Return the largest number of bytes that a call allocates, in blocks of 64 kB or more."""
    with MappedPeak() as counter:
        before = counter.peak
        run()
    return counter.peak - before


def batch_of(rank: int) -> Batch:
    def side() -> Buckets:
        ids = torch.randint(5, 8_000, (TEXTS, TOKENS))
        chunks = [{"input_ids": rows, "attention_mask": torch.ones_like(rows)} for rows in ids.split(CHUNK)]
        return Buckets(chunks, torch.arange(TEXTS))

    numbers = torch.arange(TEXTS) + rank * TEXTS
    return Batch(side(), side(), BatchIds(numbers, numbers[:, None], numbers), CHUNK * TOKENS)


def main(name: str) -> dict[str, int]:
    ctypes.CDLL(None).mallopt(-3, 65_536)  # M_MMAP_THRESHOLD: such blocks are taken from the system one by one
    workers = current_workers()
    deepspeed_zero.ZERO_BUCKET = BUCKET
    before = live_bytes()
    objective = Objective(Towers(encoder_of(CONFIG, ModelConfig())), build_loss(LossConfig(), True), "fp32")
    optimizer = build_optimizer(objective, 1e-4, 0.01)
    settings = TrainingConfig(strategy=name)
    strategy = build_strategy(settings, objective, optimizer, workers, torch.device("cpu"))
    for number in range(2):
        take_step(strategy, batch_of(workers.rank), 1e-4, number)
    between = live_bytes() - before
    batch = batch_of(workers.rank)

    def step() -> None:
        take_step(strategy, batch, 1e-4, 2)

    return {"between": between, "within": between + (mapped_peak(step) if name == "fsdp2" else allocated(step)[0])}
