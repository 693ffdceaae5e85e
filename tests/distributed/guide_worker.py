"""One worker of a real gloo group: a step with a guide, of a whole batch and with gradient caching.

The result is the value, the shares of masked negatives and the averaged gradients of each.
"""

from __future__ import annotations

from pathlib import Path

import torch

from raytriever.data.prepare.open import open_dataset
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Order
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import current_workers
from raytriever.losses.guide import MASKED, MOST_MASKED
from raytriever.losses.registry import build_loss
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training.batch import ChunkSizes
from raytriever.training.guide import Guide, GuideTexts
from raytriever.training.loader import BatchSource
from raytriever.training.parallel.grad_cache import Agreement
from raytriever.training.parallel.objective import Objective


def main(encoder: Path, other: Path, data: Path) -> dict[str, list[torch.Tensor]]:
    workers, results = current_workers(), dict[str, list[torch.Tensor]]()
    retriever = load_retriever(ModelConfig(str(encoder)))
    guide = Guide.load(str(other), "fp32", torch.device("cpu"))
    dataset = open_dataset(data, ["train"], tokenisation=tokenisation_of(retriever))
    examples = Examples.of(dataset, "train", 0)
    texts = GuideTexts(guide.retriever, dataset)
    source = BatchSource(dataset.tokens, examples, Order(len(examples), 16, 0), 1, 1, guide=texts)
    batch = source.batch(0, retriever, workers)
    for name, chunk in (("whole", None), ("cached", ChunkSizes(sequences=5))):
        loss = build_loss(LossConfig("mw", temperature=0.1, guide=str(other), guide_margin=0.01), True)
        objective = Objective(retriever, loss, "fp32", chunk, Agreement(workers), guide.encode)
        objective.zero_grad()
        output = objective(batch, workers)
        output.value.backward()
        gradients = [workers.all_reduce(p.grad) / workers.size for p in objective.parameters() if p.grad is not None]
        shares = [output.statistics[name] for name in (MASKED, MOST_MASKED)]
        results[name] = [output.value.detach(), *shares, *gradients]
    return results
