"""One worker of a real gloo group: steps of one strategy, with and without gradient caching.

SGD with a large learning rate makes the change of a step the gradient itself. The result of a case is the slices
of the parameters after the step, the loss, its norm, and the collectives that were called."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))
from batch_ids import BatchIds, TeacherScores, build_loss
from steps import take_step

from raytriever.losses.distributed import current_workers
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.encoder import set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.training.batch_loader import Batch
from raytriever.training.guide_encoder import Guide
from raytriever.training.loop import build_strategy
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.out_of_memory import Vote
from raytriever.training.parallel.strategies import Strategy, TrainingError, finite_or_refused
from raytriever.training.training_settings import TrainingConfig

RATE = 1000.0
KINDS = ("infonce", "infonce-symmetric", "lsepair-maxn", "triplet", "mw", "cosent", "bce")  # one loss of each kind
QUERIES, PASSAGES = 8, 24
CHUNK = 60  # tokens
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A step in chunks; `cached` says whether their activations are dropped and computed again."""

    loss: str
    cached: bool
    dropout: float = 0.1
    towers: str = "shared"
    precision: str = "fp32"
    guided: bool = False

    @property
    def name(self) -> str:
        guide = " guided" if self.guided else ""
        kind = "cached" if self.cached else "whole"
        return f"{self.loss} {self.towers} {self.precision} {self.dropout}{guide} {kind}"


def fraction(retriever: Retriever, rank: int, size: int, chunk: int | None) -> Batch:
    """This worker's part of one global batch; the first worker's texts are longer, so that it has more chunks."""
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
    graded = torch.cat([positives, positives + 1], 1)
    labels = TeacherScores(graded[mine], torch.linspace(1, 0, graded.numel()).reshape(graded.shape)[mine])
    ids = BatchIds(torch.arange(QUERIES)[mine], positives[mine], documents[own], seed=1, step=2, labels=labels)
    sides = retriever.tokenize(queries[mine], "query", CHUNK), retriever.tokenize(passages[own], "passage", CHUNK)
    return Batch(*sides, ids, chunk, guide=retriever.passes(*sides))


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
    guide = Guide.load(encoder, "fp32", CPU).encode if case.guided else None
    return Objective(retriever, loss, case.precision, Vote(current_workers()), guide)


def on_the_wire(run: Callable[[], object]) -> dict[str, int]:
    """How often each kind of collective was called."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return dict(Counter(event.name for event in profile.events() if event.name.startswith("c10d::")))


def strategy_of(choice: str, objective: Objective, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> Strategy:
    """Build `ddp`, or `zero2-offload`."""
    name, _, variant = choice.partition("-")
    settings = TrainingConfig(strategy=name, max_grad_norm=max_grad_norm, offload_optimizer=variant == "offload")
    return build_strategy(settings, objective, optimizer, current_workers(), CPU)


def run_case(case: Case, strategy_name: str, encoder: str) -> dict[str, object]:
    workers = current_workers()
    objective = objective_of(encoder, case)
    batch = fraction(objective.retriever, workers.rank, workers.size, CHUNK if case.cached else None)
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0, fused=strategy_name == "ddp")
    before = {name: value.detach().clone() for name, value in objective.named_parameters()}
    strategy = strategy_of(strategy_name, objective, optimizer, 1e9)
    results: dict[str, object] = {}

    def step() -> None:
        torch.manual_seed(11 + workers.rank)
        output, norm = take_step(strategy, batch, RATE, 0)
        results.update(value=output.value.item(), norm=norm.item())

    if case.loss == "mw" and case.dropout and case.towers == "shared":
        results["wire"] = on_the_wire(step)
    else:
        step()
    results["slices"] = [(item.name, item.values.clone(), item.start, item.shape) for item in strategy.state()]
    results["before"] = before
    results["chunks"] = len(batch.queries.buckets) + len(batch.passages.buckets)
    return results


def refusal(strategy_name: str, encoder: str) -> str:
    """What a step says whose gradient is not finite; the parameters must be as before."""
    workers = current_workers()
    objective = objective_of(encoder, Case("infonce", True))
    batch = fraction(objective.retriever, workers.rank, workers.size, CHUNK)
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    strategy = strategy_of(
        strategy_name, objective, torch.optim.SGD(trained, lr=1.0, fused=strategy_name == "ddp"), 1.0
    )
    before = [(item.name, item.values.clone()) for item in strategy.state()]

    def spoil(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * torch.nan)

    hook = objective.retriever.passage.backbone.get_submodule("embeddings.LayerNorm").register_forward_hook(spoil)
    try:
        output, norm = take_step(strategy, batch, RATE, 7)
        finite_or_refused(output.value.item(), norm.item(), 7)
    except TrainingError as error:
        if strategy_name == "ddp":  # the device has skipped this update, and will skip every later one
            hook.remove()
            take_step(strategy, batch, RATE, 8)
        after = [(item.name, item.values) for item in strategy.state()]
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(before, after, strict=True)), "parameters changed"
        return str(error)
    finally:
        hook.remove()
    return "not refused"


def cases_of(strategy_name: str) -> list[Case]:
    losses = KINDS if strategy_name == "ddp" else ("infonce", "mw", "bce")
    cases = [Case(loss, cached) for loss in losses for cached in (False, True)]
    for cached in (False, True):
        cases.append(Case("mw", cached, dropout=0.0))
        cases.append(Case("mw", cached, dropout=0.0, guided=True))
        cases.append(Case("mw", cached, towers="separate"))
        cases.append(Case("infonce", cached, precision="bf16"))
    return cases


def main(encoder: Path, strategy: str) -> dict[str, object]:
    results: dict[str, object] = {case.name: run_case(case, strategy, str(encoder)) for case in cases_of(strategy)}
    return {**results, "refused": refusal(strategy, str(encoder))}
