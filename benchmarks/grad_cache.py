"""Gradient caching: the cost of a cached step compared with a step that keeps all activations, for every strategy.

Run: `python benchmarks/grad_cache.py [--json PATH] [--workers 2] [--strategies ddp,zero3]`. Needs torch and
transformers, and DeepSpeed for its strategies; processes are started directly, without Ray. The encoder has the size of
MiniLM and random weights. Cached and whole steps alternate in one group of processes, and the fastest of each are
compared, because other load on the machine only adds time. The figures are ratios; the seconds are only indicative."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ends import End, add_device, parser, report, reported

STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
QUERIES, HARD, QUERY_LENGTH, PASSAGE_LENGTH = 8, 1, 32, 64
VOCABULARY, CHUNK = 30522, 3


def objective(precision: str, device: torch.device) -> object:
    """Return an objective of MiniLM's shape: random weights, shared towers, `mw`."""
    from transformers import BertConfig, BertModel

    from raytriever.losses.build_loss import build_loss
    from raytriever.losses.loss_settings import LossConfig
    from raytriever.models.encoder import Encoder
    from raytriever.models.retriever import Retriever
    from raytriever.training.parallel.objective import Objective

    class Shared(torch.nn.Module):
        """Retriever with the methods that an objective needs."""

        def __init__(self, encoder: torch.nn.Module) -> None:
            super().__init__()
            self.query = self.passage = encoder

        passes = Retriever.passes

        def encode(self, tokens: dict, side: str) -> torch.Tensor:
            """Return the embeddings of one side."""
            return self.query(tokens)

    torch.manual_seed(0)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    backbone = BertModel(BertConfig(vocab_size=VOCABULARY, **shape), add_pooling_layer=False)
    if device.type == "cpu":
        backbone.set_attn_implementation("eager")
    retriever = Shared(Encoder(backbone, "mean", True)).to(device).train()
    loss = build_loss(LossConfig(temperature=0.05)).to(device)
    return Objective(retriever, loss, precision)


def take_step(strategy: Any, partial: Any, number: int) -> None:
    """Do a step."""
    value = strategy.forward_backward(partial).value
    strategy.clip_gradients()
    strategy.step(value, number)


def batch(rank: int, workers: int, device: torch.device, chunk: int | None) -> object:
    """Return the batch of a worker; every text has full length, so that only the caching differs."""
    from raytriever.losses.batch_and_temperature import copy_all
    from raytriever.losses.batch_relevance import GlobalIds, find_relevance
    from raytriever.models.packing import Buckets
    from raytriever.training.batch_loader import Batch

    generator = torch.Generator().manual_seed(rank)

    def side(texts: int, length: int) -> Buckets:
        ids = torch.randint(4, VOCABULARY, (texts, length), generator=generator)
        rows = ids.split(chunk or texts)
        chunks = [{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in rows]
        return Buckets(chunks, torch.arange(texts)).to(device)

    passages = QUERIES * (1 + HARD)
    documents = np.arange(workers * passages).reshape(workers, passages)
    positives = documents[:, :QUERIES].reshape(-1, 1)
    ids = GlobalIds(np.arange(len(positives)), positives, documents.reshape(-1))
    relevance = copy_all(find_relevance(ids, rank, workers).map, device)
    tokens = chunk and chunk * PASSAGE_LENGTH
    return Batch(side(QUERIES, QUERY_LENGTH), side(passages, PASSAGE_LENGTH), relevance, tokens)


def worker(rank: int, size: int, folder: Path, strategy: str, steps: int, precision: str, device_type: str) -> None:
    """Run cached and whole steps alternately in one process of a group; rank 0 writes the fastest."""
    from torch import distributed

    from raytriever.losses.distributed import current_workers
    from raytriever.training.loop import build_strategy
    from raytriever.training.training_settings import TrainingConfig

    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    torch.set_num_threads(1 if size > 1 else 2)
    if size > 1:
        backend = "nccl" if device_type == "cuda" else "gloo"
        distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size)
    built, partials = {}, {}
    for name, chunk in (("whole", None), ("cached", CHUNK)):
        model, partials[name] = objective(precision, device), batch(rank, size, device, chunk)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        built[name] = build_strategy(TrainingConfig(strategy=strategy), model, optimizer, current_workers(), device)
    durations: dict[str, list[float]] = {name: [] for name in built}
    for step in range(steps + 1):
        for name, value in built.items():
            start = perf_counter()
            take_step(value, partials[name], step)
            if device_type == "cuda":
                torch.cuda.synchronize()
            if step:
                durations[name].append(perf_counter() - start)
    if rank == 0:
        (folder / "fastest.json").write_text(json.dumps({name: min(seconds) for name, seconds in durations.items()}))


def measured(strategy: str, size: int, steps: int, precision: str, device: str) -> dict[str, float]:
    """Return the fastest steps of a group of processes."""
    with tempfile.TemporaryDirectory() as folder:
        own = [sys.executable, __file__, "--folder", folder, "--strategies", strategy, "--workers", str(size)]
        own += ["--steps", str(steps), "--precision", precision, "--device", device]
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        group = [
            subprocess.Popen([*own, "--rank", str(rank)], env=environment, stdout=subprocess.DEVNULL)
            for rank in range(size)
        ]
        for process in group:
            if process.wait():
                raise SystemExit(f"{strategy}: a worker ended with {process.returncode}")
        return json.loads((Path(folder) / "fastest.json").read_text())


def main() -> None:
    """Measure and report."""
    line = parser(__doc__.splitlines()[0])
    add_device(line)
    line.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    line.add_argument("--workers", type=int, default=2, help="processes of a group")
    line.add_argument("--steps", type=int, default=5, help="timed steps of either kind")
    line.add_argument("--strategies", default=",".join(STRATEGIES), help="some of them, separated by commas")
    line.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    line.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = line.parse_args()
    if options.folder:
        own = options.folder, options.strategies, options.steps, options.precision, options.device
        worker(options.rank, options.workers, *own)
        return
    results: dict[str, End] = {}
    for strategy in options.strategies.split(","):
        fastest = measured(strategy, options.workers, options.steps, options.precision, options.device)
        ratio = fastest["cached"] / fastest["whole"]
        target, holds = ("at most 2.5", ratio <= 2.5) if strategy == "zero3" else ("reported", True)
        results[f"{strategy}: cached / whole step (x)"] = End(ratio, target, holds)
        for name, seconds in fastest.items():
            results[f"{strategy}: {name} step (s)"] = reported(seconds)
    texts = f"{QUERIES} + {QUERIES * (1 + HARD)} texts a worker, chunk {CHUNK}"
    report(f"gradient caching, {options.workers} workers, {options.precision}, {texts}", results, options.json)


if __name__ == "__main__":
    main()
