"""Adapters and activation checkpointing with the objective and the strategy of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from raytriever.losses.batch import BatchIds
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import ALONE
from raytriever.losses.registry import build_loss
from raytriever.models.config import ModelConfig
from raytriever.models.encoder import set_dropout
from raytriever.models.packing import Buckets
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.writer import write_model
from raytriever.training.batch import ChunkSizes
from raytriever.training.loop import build_optimizer
from raytriever.training.parallel.choice import build_strategy
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.strategy import Strategy

CPU = torch.device("cpu")
QUERIES = 16


@dataclass(frozen=True)
class Share:
    queries: Buckets
    passages: Buckets
    ids: BatchIds


Setup = tuple[Retriever, Strategy, Callable[[], Share]]


def build(
    encoder: Path,
    chunk: ChunkSizes | None = None,
    dropout: float = 0.0,
    adam: bool = True,
    packs: bool = False,
    **settings: object,
) -> Setup:
    """A retriever as a run trains it, and the one batch it is given: a passage spells its query backwards."""
    config = ModelConfig(str(encoder), **settings)
    retriever = load_retriever(config)
    retriever.packs = packs
    set_dropout(retriever, dropout)
    prepare_for_training(retriever, config, 0)
    objective = Objective(retriever.train(), build_loss(LossConfig("infonce", temperature=0.1)), "fp32", chunk)
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    optimizer = build_optimizer(objective, 1e-2, 0.01) if adam else torch.optim.SGD(trained, fused=True)
    strategy = build_strategy("ddp", objective, optimizer, ALONE, CPU, 1.0)
    words = ["".join(map(chr, row)) for row in torch.randint(97, 107, (QUERIES, 6), generator=torch.manual_seed(2))]
    rows = torch.arange(QUERIES)

    def batch() -> Share:
        queries = retriever.tokenize(words, "query")
        return Share(
            queries, retriever.tokenize([word[::-1] for word in words], "passage"), BatchIds(rows, rows[:, None], rows)
        )

    return retriever, strategy, batch


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("chunk", [None, ChunkSizes(sequences=5)])
@pytest.mark.parametrize(("towers", "packs"), [("shared", False), ("shared", True), ("separate", False)])
def test_adapters_learn_and_the_written_model_contains_them(
    tiny_encoder: Path, tmp_path: Path, towers: str, packs: bool, chunk: ChunkSizes | None
) -> None:
    retriever, strategy, batch = build(
        tiny_encoder, chunk, packs=packs, towers=towers, lora_rank=8, lora_dropout=0.05, activation_checkpointing=True
    )
    frozen = {name: p.detach().clone() for name, p in retriever.named_parameters() if not p.requires_grad}
    losses = [strategy.step(batch(), 1e-2, number).output.value.item() for number in range(25)]
    retriever.eval()
    trained = strategy.measure(batch()).value.item()
    assert trained < 0.5 * losses[0]
    assert all(torch.equal(p, frozen[name]) for name, p in retriever.named_parameters() if not p.requires_grad)

    write_model(retriever, tmp_path)
    _, again, same = build(tmp_path)
    assert again.measure(same()).value.item() == pytest.approx(trained, rel=1e-4)


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("settings", [{"lora_rank": 4, "lora_dropout": 0.2}, {}, {"packs": True}])
def test_gradient_caching_and_checkpointing_draw_the_same_dropout(
    tiny_encoder: Path, settings: dict[str, object]
) -> None:
    results = []
    for checkpointing in (False, True):
        retriever, strategy, batch = build(
            tiny_encoder, ChunkSizes(sequences=3), 0.1, adam=False, activation_checkpointing=checkpointing, **settings
        )
        torch.manual_seed(11)
        update = strategy.step(batch(), 1.0, 0)
        results.append(
            (update.output.value.item(), update.norm.item(), torch.rand(1).item(), list(retriever.parameters()))
        )
    (value, norm, drawn, plain), (value_again, norm_again, drawn_again, recomputed) = results
    assert (value_again, drawn_again) == (value, drawn)
    assert norm_again == pytest.approx(norm, rel=1e-6)
    for one, other in zip(plain, recomputed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
