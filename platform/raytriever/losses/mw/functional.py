"""MW on a score matrix that is given: for scores that are no dot products, and for whoever has the matrix anyway."""

from __future__ import annotations

from typing import Any, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.errors import LossInputError
from raytriever.losses.engine.batch import PAD, pairs, without_repeats
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

    Loss and derivatives are accurate to a relative 1e-6 (`grid` has the proof); scores beyond 2^30 times the
    temperature are refused.

    Args:
        scores: one row a query; differentiable.
        positives: the columns of each query's positives, -1 where it has no more; the others are negatives.
        temperature: tau.
        reduction: `mean` over pairs, or `sum` over pairs divided by the number of queries (Eq. 3).
        ignored: columns that are neither, -1 where there are no more.

    Raises:
        LossInputError: an argument is of another shape, type or device, a score is not finite or too large, a row has
            no positive, or there is no negative.
    """
    if not (isinstance(scores, Tensor) and scores.ndim == 2 and scores.is_floating_point() and scores.numel()):
        raise LossInputError(
            f"scores are {_kind(scores)}", remedy="give a floating tensor of a row a query and a column a candidate"
        )
    if not 0 < temperature < float("inf"):
        raise LossInputError(f"temperature {temperature!r}", remedy="give a finite one above 0")
    if reduction not in get_args(PairReduction):
        raise LossInputError(f"reduction {reduction!r}", remedy=f"choose from {', '.join(get_args(PairReduction))}")
    _check_columns("positives", positives, scores)
    if ignored is not None:
        _check_columns("ignored", ignored, scores)
    positives = without_repeats(positives)
    lacking = (positives == PAD).all(1)
    if bool(lacking.any()):
        raise LossInputError(f"row {int(lacking.nonzero()[0])} has no positive", "positives")
    excluded = positives if ignored is None else without_repeats(torch.cat([positives, ignored], 1))
    loss: Tensor = _FromScores.apply(scores, positives, excluded, temperature, reduction)
    return loss


def _check_columns(name: str, columns: Tensor, scores: Tensor) -> None:
    """Refuse whatever is not a table of column numbers of `scores`; each sentence shows the right call."""
    if not isinstance(columns, Tensor):
        raise LossInputError(f"is {_kind(columns)}", name, f"call mw_from_scores with {name}=torch.tensor(...)")
    if columns.device != scores.device:
        raise LossInputError(
            f"is on {columns.device}, the scores are on {scores.device}",
            name,
            f"call mw_from_scores with {name}={name}.to(scores.device)",
        )
    if columns.dtype == torch.bool or _is_mask_of_integers(columns, scores):
        columns_of_mask = "torch.where(mask > 0, torch.arange(mask.shape[1], device=mask.device), -1)"
        raise LossInputError(
            f"is a mask ({_kind(columns)}), and column numbers are needed",
            name,
            f"for a mask call mw_from_scores with {name}={columns_of_mask}.topk(int((mask > 0).sum(1).max())).values",
        )
    if columns.dtype != torch.int64:
        raise LossInputError(
            f"is {_kind(columns)}, and column numbers are torch.int64",
            name,
            f"call mw_from_scores with {name}={name}.long()",
        )
    if columns.ndim == 1:
        raise LossInputError(
            f"is {_kind(columns)}, and two dimensions are needed: a row of column numbers for each query",
            name,
            f"with one column a query call mw_from_scores with {name}={name}[:, None]",
        )
    if columns.ndim != 2 or len(columns) != len(scores):
        rows = len(columns) if columns.ndim else 0
        raise LossInputError(
            f"is {_kind(columns)}: {rows} rows of columns for {len(scores)} rows of scores",
            name,
            "give a row of column numbers for each row of scores",
        )
    if columns.numel() and not PAD <= int(columns.min()) <= int(columns.max()) < scores.shape[1]:
        wrong = int(columns.max()) if int(columns.max()) >= scores.shape[1] else int(columns.min())
        raise LossInputError(
            f"column {wrong} of {scores.shape[1]}",
            name,
            f"columns are 0 to {scores.shape[1] - 1}, and -1 where none is",
        )


def _is_mask_of_integers(columns: Tensor, scores: Tensor) -> bool:
    """Whether integers of the shape of the scores are all 0 or 1, which no table of columns is beyond width 2."""
    if columns.shape != scores.shape or scores.shape[1] <= 2 or columns.is_floating_point() or columns.is_complex():
        return False
    return bool(((columns == 0) | (columns == 1)).all())


def _kind(value: object) -> str:
    """The dtype and shape of a tensor, else the name of the type."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


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
