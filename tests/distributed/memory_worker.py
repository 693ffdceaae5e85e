"""One worker of a real gloo group: bytes of tensors at most in a step, and between steps.

The third step is measured: the first one creates the states of the optimizer, and at the second one DDP rebuilds its
buckets.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from batch_ids import BatchIds, build_loss
from transformers import BertConfig

from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import current_workers
from raytriever.models.config import ModelConfig
from raytriever.models.encoder import Encoder
from raytriever.models.packing import Buckets
from raytriever.training.batch import Batch
from raytriever.training.config import TrainingConfig
from raytriever.training.loop import build_strategy
from raytriever.training.optimizer import build_optimizer
from raytriever.training.parallel import zero
from raytriever.training.parallel.objective import Objective

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


def batch_of(rank: int) -> Batch:
    def side() -> Buckets:
        ids = torch.randint(5, 8_000, (TEXTS, TOKENS))
        chunks = [{"input_ids": rows, "attention_mask": torch.ones_like(rows)} for rows in ids.split(CHUNK)]
        return Buckets(chunks, torch.arange(TEXTS))

    numbers = torch.arange(TEXTS) + rank * TEXTS
    return Batch(side(), side(), BatchIds(numbers, numbers[:, None], numbers), CHUNK * TOKENS)


def main(name: str) -> dict[str, int]:
    workers = current_workers()
    zero.ZERO_BUCKET = BUCKET
    before = live_bytes()
    objective = Objective(Towers(encoder_of(CONFIG, ModelConfig())), build_loss(LossConfig(), True), "fp32")
    optimizer = build_optimizer(objective, 1e-4, 0.01)
    settings = TrainingConfig(strategy=name)
    strategy = build_strategy(settings, objective, optimizer, workers, torch.device("cpu"))
    for number in range(2):
        take_step(strategy, batch_of(workers.rank), 1e-4, number)
    between = live_bytes() - before
    batch = batch_of(workers.rank)
    within = allocated(lambda: take_step(strategy, batch, 1e-4, 2))[0]
    return {"between": between, "within": between + within}
