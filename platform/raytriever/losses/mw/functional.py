"""MW on a score matrix that is given: for scores that are no dot products, and for whoever has the matrix anyway."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.errors import LossInputError
from raytriever.losses.batch import PAD
from raytriever.losses.candidates import pairs, without_repeats
from raytriever.losses.mw.pairwise import PairwiseSums
from raytriever.losses.mw.reduction import PairReduction, pair_weight


def mw_from_scores(
    scores: Float[Tensor, "queries candidates"],
    positives: Int64[Tensor, "queries positives"],
    temperature: float = 0.01,
    reduction: PairReduction = "mean",
    ignored: Int64[Tensor, "queries ignored"] | None = None,
) -> Float[Tensor, ""]:
    """The mean over all positives p and negatives n of the matrix of softplus((n - p) / temperature).

    Args:
        scores: one row a query; differentiable.
        positives: the columns of each query's positives, -1 where it has no more; the others are negatives.
        temperature: tau.
        reduction: `mean` over pairs, or `sum` over pairs divided by the number of queries (Eq. 3).
        ignored: columns that are neither, -1 where there are no more.
    """
    if not temperature > 0:
        raise LossInputError(f"temperature {temperature!r}", remedy="give one above 0")
    for name, columns in (("positives", positives), ("ignored", ignored)):
        if columns is None:
            continue
        if len(columns) != len(scores):
            raise LossInputError(f"{len(columns)} rows of columns for {len(scores)} rows of scores", name)
        if bool((columns >= scores.shape[1]).any()):
            raise LossInputError(f"column {int(columns.max())} of {scores.shape[1]}", name)
    positives = without_repeats(positives)
    lacking = (positives == PAD).all(1)
    if bool(lacking.any()):
        raise LossInputError(f"row {int(lacking.nonzero()[0])} has no positive", "positives")
    excluded = positives if ignored is None else without_repeats(torch.cat([positives, ignored], 1))
    loss: Tensor = _FromScores.apply(scores, positives, excluded, temperature, reduction)
    return loss


class _FromScores(torch.autograd.Function):
    """The loss and its derivative in one walk; backward only scales."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        positive: Tensor,
        excluded: Tensor,
        temperature: float,
        reduction: PairReduction,
    ) -> Tensor:
        precise = scores.to(torch.promote_types(scores.dtype, torch.float32)).contiguous()
        lowest, highest = (float(end) for end in torch.aminmax(precise))
        if not abs(lowest) + abs(highest) < torch.inf:
            raise LossInputError(f"scores from {lowest} to {highest}", remedy="scores must be finite")
        rows, columns = pairs(excluded)
        negatives = precise.numel() - len(rows)
        if negatives == 0:
            raise LossInputError(f"no negatives among {precise.numel()} scores")
        held = pairs(positive)
        positives = precise[held].double() / temperature
        weight = pair_weight(reduction, len(positives), negatives, len(precise))
        sums = PairwiseSums(positives, lowest / temperature, highest / temperature, weight, precise.dtype)
        walk = sums.walk(1 / temperature)
        derivatives = torch.empty_like(precise)
        walk.add(precise, derivatives, rows, columns)
        outcome = sums.outcome(walk.sums(), walk.sums())
        derivatives[held] = (outcome.by_positive / temperature).to(derivatives.dtype)
        ctx.save_for_backward(derivatives.to(scores.dtype))
        return outcome.share.to(precise.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (derivatives,) = ctx.saved_tensors
        # Handed on as it is where nothing scales it: a copy of the matrix would cost a fifth of the loss.
        scaled = derivatives if float(grad) == 1 else derivatives * grad
        return scaled, None, None, None, None
