"""One worker of a real gloo group: steps of one strategy, with and without gradient caching.

SGD with a large learning rate makes the change of a step the gradient itself. The result of a case is the slices
of the parameters after the step, the loss, its norm, and the collectives that were called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from raytriever.losses.batch import BatchIds
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import current_workers
from raytriever.losses.registry import build_loss
from raytriever.models.config import ModelConfig
from raytriever.models.encoder import set_dropout
from raytriever.models.packing import Buckets
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.training.batch import ChunkSizes, Passes, cut
from raytriever.training.guide import Guide
from raytriever.training.parallel.choice import build_strategy
from raytriever.training.parallel.grad_cache import Agreement
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.strategy import Strategy, TrainingError, finite_or_refused

RATE = 1000.0
KINDS = ("infonce", "infonce-symmetric", "lsepair-maxn", "triplet", "mw")  # one loss of each kind
QUERIES, PASSAGES = 8, 24
BY_SEQUENCES, BY_TOKENS = ChunkSizes(sequences=4), ChunkSizes(tokens=60)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A step; `chunk` cuts the batch, `cached` says whether its activations are kept part by part."""

    loss: str
    cached: bool
    dropout: float = 0.1
    towers: str = "shared"
    chunk: ChunkSizes = BY_SEQUENCES
    precision: str = "fp32"
    guided: bool = False

    @property
    def name(self) -> str:
        unit = "sequences" if self.chunk.sequences else "tokens"
        guide = " guided" if self.guided else ""
        kind = "cached" if self.cached else "whole"
        return f"{self.loss} {self.towers} {unit} {self.precision} {self.dropout}{guide} {kind}"


@dataclass(frozen=True)
class Share:
    queries: Buckets
    passages: Buckets
    ids: BatchIds
    guide: Passes


def share(retriever: Retriever, rank: int, size: int) -> Share:
    """This worker's part of one global batch; the first worker's texts are longer, so that it has more parts."""
    generator = torch.Generator().manual_seed(3)

    def texts(count: int) -> list[str]:
        letters = torch.randint(97, 123, (count, 24), generator=generator).tolist()
        lengths = torch.randint(3, 24, (count,), generator=generator).sort(descending=True).values.tolist()
        return ["".join(map(chr, row[:length])) for row, length in zip(letters, lengths, strict=True)]

    queries, passages = texts(QUERIES), texts(PASSAGES)
    documents = torch.arange(PASSAGES)
    documents[-1] = 0
    b, n = QUERIES // size, PASSAGES // size
    mine, own = slice(rank * b, (rank + 1) * b), slice(rank * n, (rank + 1) * n)
    positives = torch.arange(QUERIES)[:, None] * 2
    ids = BatchIds(torch.arange(QUERIES)[mine], positives[mine], documents[own], seed=1, step=2)
    sides = retriever.tokenize(queries[mine], "query"), retriever.tokenize(passages[own], "passage")
    return Share(*sides, ids, retriever.passes(*sides))


def objective_of(encoder: str, case: Case) -> Objective:
    retriever = load_retriever(ModelConfig(encoder, towers=case.towers))
    set_dropout(retriever, case.dropout)
    retriever.train()
    loss = build_loss(
        LossConfig(
            case.loss,
            temperature=0.1,
            learn_temperature=case.loss != "triplet",
            distribution_weight=0.2,
            margin=0.5,
            guide=encoder if case.guided else None,
        )
    )
    chunk = case.chunk if case.cached else None
    guide = Guide.load(encoder, "fp32", CPU).encode if case.guided else None
    return Objective(retriever, loss, case.precision, chunk, Agreement(current_workers()), guide)


def on_the_wire(run: Callable[[], object]) -> dict[str, int]:
    """How often each kind of collective was called."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return dict(Counter(event.name for event in profile.events() if event.name.startswith("c10d::")))


def strategy_of(choice: str, objective: Objective, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> Strategy:
    """Build `ddp`, or `zero2-offload`."""
    name, _, variant = choice.partition("-")
    return build_strategy(name, objective, optimizer, current_workers(), CPU, max_grad_norm, variant == "offload")


def run_case(case: Case, strategy_name: str, encoder: str) -> dict[str, object]:
    workers = current_workers()
    objective = objective_of(encoder, case)
    batch = share(objective.retriever, workers.rank, workers.size)
    if not case.cached:
        batch = replace(batch, queries=cut(batch.queries, case.chunk), passages=cut(batch.passages, case.chunk))
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0, fused=strategy_name == "ddp")
    before = {name: value.detach().clone() for name, value in objective.named_parameters()}
    strategy = strategy_of(strategy_name, objective, optimizer, 1e9)
    results: dict[str, object] = {}

    def step() -> None:
        torch.manual_seed(11 + workers.rank)
        update = strategy.step(batch, RATE, 0)
        results.update(value=update.output.value.item(), norm=update.norm.item())

    if case.loss == "mw" and case.dropout and case.towers == "shared":
        results["wire"] = on_the_wire(step)
    else:
        step()
    results["slices"] = [(one.name, one.values.clone(), one.start, one.shape) for one in strategy.state()]
    results["before"] = before
    results["parts"] = sum(len(cut(side, case.chunk).buckets) for side in (batch.queries, batch.passages))
    return results


def refusal(strategy_name: str, encoder: str) -> str:
    """What a step says whose gradient is not finite; the parameters must be as before."""
    workers = current_workers()
    objective = objective_of(encoder, Case("infonce", True))
    batch = share(objective.retriever, workers.rank, workers.size)
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    strategy = strategy_of(
        strategy_name, objective, torch.optim.SGD(trained, lr=1.0, fused=strategy_name == "ddp"), 1.0
    )
    before = [(one.name, one.values.clone()) for one in strategy.state()]

    def spoil(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * torch.nan)

    hook = objective.retriever.passage.backbone.get_submodule("embeddings.LayerNorm").register_forward_hook(spoil)
    try:
        update = strategy.step(batch, RATE, 7)
        finite_or_refused(update.output.value.item(), update.norm.item(), 7)
    except TrainingError as error:
        if strategy_name == "ddp":  # the device has skipped this update, and will skip every later one
            hook.remove()
            strategy.step(batch, RATE, 8)
        after = [(one.name, one.values) for one in strategy.state()]
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(before, after, strict=True)), "parameters changed"
        return str(error)
    finally:
        hook.remove()
    return "not refused"


def cases_of(strategy_name: str) -> list[Case]:
    losses = KINDS if strategy_name == "ddp" else ("infonce", "mw")
    cases = [Case(loss, cached) for loss in losses for cached in (False, True)]
    for cached in (False, True):
        cases.append(Case("mw", cached, dropout=0.0))
        cases.append(Case("mw", cached, dropout=0.0, guided=True))
        cases.append(Case("mw", cached, towers="separate"))
        cases.append(Case("infonce", cached, chunk=BY_TOKENS))
        cases.append(Case("infonce", cached, precision="bf16"))
    return cases


def main(encoder: Path, strategy: str) -> dict[str, object]:
    results: dict[str, object] = {case.name: run_case(case, strategy, str(encoder)) for case in cases_of(strategy)}
    return {**results, "refused": refusal(strategy, str(encoder))}
