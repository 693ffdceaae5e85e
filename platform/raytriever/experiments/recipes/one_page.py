"""Training on one page: data, model, loss, gradient caching, loop. Read this first: `train` does the same steps.

Run: `python -m raytriever.experiments.recipes.one_page DATASET [MODEL]`. `training/loop.py` adds what a long run needs:
several workers, dropout, validation, checkpoints and metrics. `losses/mw` computes the loss without a list of pairs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from raytriever.core.terminal import show
from raytriever.data.data_settings import DataConfig
from raytriever.losses.batch_and_temperature import RowRelevance
from raytriever.losses.distributed import ALONE
from raytriever.models.encoder import set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import TokenBatch
from raytriever.models.prompts import Side
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.training.batch_loader import Batch, Batches
from raytriever.training.optimizer_and_schedule import build_optimizer, learning_rate_scale, set_learning_rate
from raytriever.training.training_data import TrainingData
from raytriever.training.training_settings import TrainingConfig


def train_on_one_page(dataset: str, model: str = "minilm", *, settings: TrainingConfig | None = None) -> Retriever:
    """Return a model that has learned from the training split of a data set, with the Mann-Whitney loss.

    Args:
        dataset: name or path.
        model: name or path.
        settings: only batch size, steps, learning rate, warm-up, weight decay, gradient norm, chunk and seed are used.
    """
    settings = settings or TrainingConfig(max_steps=60)
    # Model: one transformer that encodes queries and passages, or one transformer for each.
    retriever = load_retriever(ModelConfig(model=model))
    # Data: a batch has queries, a positive of each query, and all ids. The positives of other queries are negatives.
    config, tokens = DataConfig(dataset=dataset), tokenization_of(retriever)
    data = TrainingData.open([dataset], config, tokens, settings.batch_size, settings.seed)
    for step, value in fit(retriever, data.train(negatives=None), 0.01, settings):
        show(f"step {step}: loss {value:.4f}")
    return retriever.eval()


def fit(
    retriever: Retriever, batches: Batches, temperature: float, settings: TrainingConfig
) -> Iterator[tuple[int, float]]:
    """Train in place, on the device of the retriever, and yield each step with its loss before the update."""
    set_dropout(retriever.train(), 0.0)
    optimizer = build_optimizer(retriever, settings.learning_rate, settings.weight_decay)
    steps = settings.max_steps or 60
    for step in range(steps):
        rate = settings.learning_rate * learning_rate_scale(step, settings.warmup_steps, steps)
        set_learning_rate(optimizer, rate)
        # A batch depends only on the data, the seed and the step.
        batch = batches.batch(step, retriever, ALONE, chunk=settings.grad_cache_tokens)
        value = forward_backward(retriever, batch, temperature)
        torch.nn.utils.clip_grad_norm_(retriever.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        yield step + 1, value.item()


def forward_backward(retriever: Retriever, batch: Batch, temperature: float) -> Tensor:
    """Return the loss of a batch and add its gradient to the parameters, in the memory of one chunk of texts.

    Gradient caching (Gao et al., 2021, arXiv:2101.06983): encode without storing activations, differentiate the loss
    with respect to the embeddings, then encode each chunk again and backpropagate its gradient."""
    sides: list[tuple[Side, list[TokenBatch]]]
    sides = [("query", batch.queries.buckets), ("passage", batch.passages.buckets)]
    with torch.no_grad():
        embeddings = [[retriever.encode(chunk, side).requires_grad_() for chunk in chunks] for side, chunks in sides]
    queries, passages = (torch.cat(of_side) for of_side in embeddings)
    value = mann_whitney(queries[batch.queries.indices], passages[batch.passages.indices], batch.relevance, temperature)
    value.backward()
    for (side, chunks), of_side in zip(sides, embeddings, strict=True):
        for chunk, embedding in zip(chunks, of_side, strict=True):
            retriever.encode(chunk, side).backward(embedding.grad)
    return value


def mann_whitney(queries: Tensor, passages: Tensor, relevance: RowRelevance, temperature: float) -> Tensor:
    """Return the Mann-Whitney loss: the mean of softplus(negative score - positive score) over all pairs of the batch.

    `queries` and `passages` are embeddings `[texts, dim]`. `relevance` has the columns of each query's positives, and
    the pairs of a query and a passage that must not be used as negatives."""
    # Gather the passages of all workers (here one). Each document is a candidate only once.
    candidates = relevance.keep(ALONE.all_gather(passages))
    # Product: the score of each pair of a query and a candidate.
    scores = queries @ candidates.T / temperature
    # Mask: a document that is relevant to a query is never a negative of this query.
    is_negative = torch.ones_like(scores, dtype=torch.bool)
    is_negative[relevance.excluded_rows, relevance.excluded_columns] = False
    positives = scores.gather(1, relevance.slots)[relevance.is_positive]
    # MW: each negative of the whole table should be below each positive.
    return functional.softplus(scores[is_negative][:, None] - positives).mean()


if __name__ == "__main__":
    train_on_one_page(*sys.argv[1:3])
