"""Training steps of XLM-R-Large on a GPU with random weights and tokens; needs only torch and transformers.

Batch 1024, five hard negatives per query, queries of 32 tokens and passages of 128, `mw` with cached gradients in bf16;
the chunk is searched for as in a run. Called by `benchmarks/train.py --device cuda`. The size `tiny` of `SIZES` runs a
small encoder on any device, which a test does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn
from transformers import XLMRobertaConfig, XLMRobertaModel

from ends import End
from raytriever.losses.config import LossConfig
from raytriever.losses.engine.batch import BatchIds
from raytriever.losses.engine.workers import ALONE
from raytriever.losses.registry import build_loss
from raytriever.models.buckets import Buckets
from raytriever.models.encoder import Encoder
from raytriever.models.packing import TokenBatch
from raytriever.models.retriever import Retriever
from raytriever.prompts import Side
from raytriever.training.config import TrainingConfig
from raytriever.training.loop import build_optimizer
from raytriever.training.monitoring import Throughput
from raytriever.training.parallel.choice import build_strategy
from raytriever.training.parallel.chunk_size import chunk_of
from raytriever.training.parallel.objective import Objective

STEPS = 4
GOAL = 0.5  # model FLOPs utilisation


@dataclass(frozen=True)
class Size:
    """Sizes of the encoder, the batch and the texts."""

    encoder: XLMRobertaConfig
    queries: int = 1024
    negatives: int = 5
    query_length: int = 32
    passage_length: int = 128


_LARGE = Size(
    XLMRobertaConfig(
        vocab_size=250_002,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=514,
        type_vocab_size=1,
    )
)
_TINY = XLMRobertaConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
)
SIZES = {"large": _LARGE, "tiny": replace(_LARGE, encoder=_TINY, queries=8)}


class Towers(nn.Module):
    """Shared tower with random weights and the methods that an objective needs."""

    passes = Retriever.passes

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.query = Encoder(XLMRobertaModel(size.encoder, add_pooling_layer=False), "mean", normalise=True)
        self.passage = self.query
        self.description = SimpleNamespace(query_length=size.query_length, passage_length=size.passage_length)

    def encode(self, tokens: TokenBatch, side: Side) -> torch.Tensor:
        """Return the embeddings of one side."""
        embeddings: torch.Tensor = self.query(tokens)
        return embeddings


def measured(device: torch.device, size: Size, precision: str) -> dict[str, End]:
    """Return examples per second, utilisation and memory of our step."""
    torch.manual_seed(0)
    towers = Towers(size).to(device).train()
    retriever = cast(Retriever, towers)
    settings = TrainingConfig(batch_size=size.queries)
    texts = size.queries * (2 + size.negatives)
    chunk = chunk_of(settings, texts, retriever, precision, device, ALONE)
    objective = Objective(retriever, build_loss(LossConfig("mw", temperature=0.01)), precision, chunk)
    strategy = build_strategy("ddp", objective, build_optimizer(objective, 1e-5, 0.01), ALONE, device, 1.0)
    throughput = Throughput(towers.query.backbone, towers.query.backbone, precision, device, ALONE)
    batch = _batch(size, device)
    work = throughput.count(cast(Any, batch))
    times = []
    for step in range(STEPS + 1):
        began = time.perf_counter()
        strategy.step(batch, 1e-5, step)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    rates = throughput.rates(work, size.queries, median(times[1:]))
    results = {
        "raytriever, examples a second": End(rates["queries_per_second"], "reported", True),
        "raytriever, tokens a second": End(rates["tokens_per_second"], "reported", True),
        "raytriever, peak memory (MB)": End(rates["peak_memory_mb"], "reported", True),
        "raytriever, tokens of a chunk (0: all at once)": End(chunk.tokens or 0 if chunk else 0, "reported", True),
    }
    share = rates.get("model_flops_utilisation")
    if share is not None:
        results["raytriever, model FLOPs utilisation"] = End(share, f"at least {GOAL}", share >= GOAL)
    return results


def _batch(size: Size, device: torch.device) -> SimpleNamespace:
    passages = size.queries * (1 + size.negatives)
    rows = torch.arange(size.queries, device=device)
    documents = torch.arange(passages, device=device)
    ids = BatchIds(rows, rows[:, None] * (1 + size.negatives), documents)
    return SimpleNamespace(
        queries=_texts(size.queries, size.query_length, size.encoder.vocab_size).to(device),
        passages=_texts(passages, size.passage_length, size.encoder.vocab_size).to(device),
        ids=ids,
    )


def _texts(count: int, length: int, vocabulary: int) -> Buckets:
    ids = torch.randint(5, vocabulary, (count, length))
    return Buckets([{"input_ids": ids, "attention_mask": torch.ones_like(ids)}], torch.arange(count))
