"""Losses on embeddings of dimension 1,024 in batches of 8,192 with five hard negatives a query.

The baselines are the cross-entropy of a stored matrix of scores, in bf16, and a streaming InfoNCE that stores no scores
and computes them twice, as Inf-CL does (Cheng et al., 2024, arXiv:2410.17243). Errors are those against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ends import End, reported
from on_gpu.measuring import Cases, Figures, at_most, peak_gb, seconds_of
from raytriever.losses.batch_and_temperature import copy_all
from raytriever.losses.batch_relevance import GlobalIds, find_relevance
from raytriever.losses.build_loss import build_loss
from raytriever.losses.loss_settings import LossConfig

TAU, NEGATIVES = 0.01, 5
NAMES = ("infonce", "lsepair", "triplet", "joint")


@dataclass(frozen=True)
class Size:
    """Sizes of the batches.

    Args:
        batch: queries of the comparison.
        dim: of the embeddings.
        largest: queries of the largest batch.
        exact: queries of the comparison with float64.
    """

    batch: int
    dim: int
    largest: int
    exact: int


SIZES = {
    "full": Size(8_192, 1_024, 65_536, 512),
    "short": Size(8_192, 1_024, 65_536, 512),
    "tiny": Size(64, 32, 96, 16),
}


def cases(device: torch.device, size: str, scratch: Path) -> Cases:
    """Yield the comparison with `cross_entropy`, the errors, the largest batch, and the other losses."""
    sizes = SIZES[size]
    yield "mw", compared(sizes, device)
    yield "errors", errors(sizes, device)
    yield "largest", largest(sizes, device)
    yield "others", others(sizes, device)


def compared(sizes: Size, device: torch.device) -> Figures:
    """Compare the seconds of MW with those of the baselines."""
    queries, passages = embeddings(sizes.batch, sizes.dim, device)
    baseline = seconds_of(stored(queries, passages), device)
    yield "cross_entropy, bf16 (ms)", reported(1e3 * baseline)
    for precision in ("bf16", "tf32", "fp32"):
        step = ours("mw", precision, queries, passages)
        seconds = seconds_of(step, device)
        name = f"mw, {precision}"
        yield f"{name} (ms)", reported(1e3 * seconds)
        ratio = seconds / baseline
        yield f"{name} / cross_entropy, bf16 (x)", at_most(ratio, 1, device) if precision == "bf16" else reported(ratio)
        yield f"{name}: memory (GB)", reported(peak_gb(step, device))
        first, second = step(), step()
        same = all(bool((value == other).all()) for value, other in zip(first, second, strict=True))
        yield f"{name}: two runs have the same bits", End(float(same), "1", same)


def others(sizes: Size, device: torch.device) -> Figures:
    """Measure the other losses and the streaming baseline."""
    queries, passages = embeddings(sizes.batch, sizes.dim, device)
    yield "streaming InfoNCE, bf16 (ms)", reported(1e3 * seconds_of(streaming(queries, passages), device, repeats=3))
    for name in NAMES:
        seconds = seconds_of(ours(name, "bf16", queries, passages), device, repeats=3)
        yield f"{name}, bf16 (ms)", reported(1e3 * seconds)


def embeddings(batch: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return unit float32 queries and passages; passages 0 to B - 1 are near their queries."""
    torch.manual_seed(0)
    queries = functional.normalize(torch.randn(batch, dim, device=device), dim=1)
    passages = torch.randn(batch * (1 + NEGATIVES), dim, device=device)
    passages[:batch] = passages[:batch] / dim**0.5 + 0.4 * queries
    return queries.requires_grad_(), functional.normalize(passages, dim=1).requires_grad_()


def ours(name: str, precision: str, queries: Tensor, passages: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Return a step of one of our losses: it returns the loss and the gradients of the embeddings."""
    batch = len(queries)
    rows = np.arange(batch)
    # In training the loader works it out, ahead of the step.
    relevance = find_relevance(GlobalIds(rows, rows[:, None], np.arange(len(passages))), 0, 1)
    relevance = copy_all(relevance.map, queries.device)
    loss = build_loss(LossConfig(loss=name, temperature=TAU, loss_precision=precision), unit_length=True)
    loss.to(queries.device)

    def step() -> tuple[Tensor, ...]:
        value = loss(queries, passages, relevance).value
        return value.detach(), *torch.autograd.grad(value, [queries, passages])

    return step


def stored(queries: Tensor, passages: Tensor) -> Callable[[], Any]:
    """Return a step of InfoNCE by `cross_entropy` of all scores, in bf16."""
    labels = torch.arange(len(queries), device=queries.device)
    left, right = (value.detach().to(torch.bfloat16).requires_grad_() for value in (queries, passages))

    def step() -> Any:
        value = functional.cross_entropy((left @ right.T) / TAU, labels)
        return torch.autograd.grad(value, [left, right])

    return step


def streaming(queries: Tensor, passages: Tensor, block: int = 8_192) -> Callable[[], Any]:
    """Return a step of InfoNCE that reads blocks of candidates twice and stores no scores, bf16 products."""
    left, right = (value.detach().to(torch.bfloat16) for value in (queries, passages))
    rows = torch.arange(len(left), device=left.device)

    def step() -> Any:
        sums = torch.full((len(left),), -torch.inf, device=left.device)
        for begin in range(0, len(right), block):
            scores = (left @ right[begin : begin + block].T).float() / TAU
            sums = torch.logaddexp(sums, scores.logsumexp(1))
        by_query, by_passage = torch.zeros_like(left), torch.empty_like(right)
        for begin in range(0, len(right), block):
            part = right[begin : begin + block]
            partial = ((left @ part.T).float() / TAU - sums[:, None]).exp_()
            own = (rows >= begin) & (rows < begin + len(part))
            partial[own, rows[own] - begin] -= 1
            partial = (partial / (TAU * len(left))).to(torch.bfloat16)
            by_query += partial @ part
            by_passage[begin : begin + block] = partial.T @ left
        return by_query, by_passage

    return step


def errors(sizes: Size, device: torch.device) -> Figures:
    """Compare loss and gradients of MW with all pairs in float64."""
    queries, passages = embeddings(sizes.exact, sizes.dim, device)
    left, right = (value.detach().double().requires_grad_() for value in (queries, passages))
    scores = left @ right.T
    is_positive = torch.eye(*scores.shape, dtype=torch.bool, device=device)
    negatives = scores[~is_positive]
    total = scores.new_zeros(())
    expected = [torch.zeros_like(left), torch.zeros_like(right)]
    # Some positives at a time: the pairs of a block take some gigabytes.
    for block in scores[is_positive].split(max(1, (1 << 27) // len(negatives))):
        partial = functional.softplus((negatives - block[:, None]) / TAU).sum() / (len(queries) * len(negatives))
        for whole, part in zip(expected, torch.autograd.grad(partial, [left, right], retain_graph=True), strict=True):
            whole += part
        total += partial.detach()
    most = max(float(item.abs().max()) for item in expected)
    for precision in ("bf16", "tf32", "fp32"):
        value, *gradients = ours("mw", precision, queries, passages)()
        worst = (
            max(float((gradient - other).abs().max()) for gradient, other in zip(gradients, expected, strict=True))
            / most
        )
        relative = abs(float(value) - float(total)) / float(total)
        name = f"mw, {precision}: relative error of the loss"
        yield name, at_most(relative, 1e-5, device) if precision == "fp32" else reported(relative)
        yield f"mw, {precision}: error of the gradient by its largest value", reported(worst)


def largest(sizes: Size, device: torch.device) -> Figures:
    """Run MW on the largest batch."""
    queries, passages = embeddings(sizes.largest, sizes.dim, device)
    step = ours("mw", "bf16", queries, passages)
    name = f"mw, bf16, {sizes.largest:,} x {sizes.largest * (1 + NEGATIVES):,}"
    yield f"{name}: memory (GB)", reported(peak_gb(step, device))
    yield f"{name} (s)", End(seconds_of(step, device, repeats=1), "runs", True)
