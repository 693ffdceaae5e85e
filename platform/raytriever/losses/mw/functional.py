"""Mann-Whitney loss of a score matrix, for scores that are not dot products of embeddings."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import Tensor

from raytriever.core.errors import LossInputError
from raytriever.losses.batch_and_temperature import PAD
from raytriever.losses.mw.mann_whitney import PairReduction, PairwiseSums, pair_weight


def mann_whitney(
    scores: Float[Tensor, "queries candidates"],
    positives: Int64[Tensor, "queries positives"],
    temperature: float = 0.01,
    reduction: PairReduction = "mean",
    ignored: Int64[Tensor, "queries ignored"] | None = None,
) -> Float[Tensor, ""]:
    """Compute the Mann-Whitney (MW) loss of a score matrix.

    The loss compares every positive p of the matrix with every negative n, also those of other queries:

        mean over all pairs (p, n) of softplus((n - p) / temperature)

    It bounds the pooled AUC: `1 - AUC <= loss / log(2)`. Time and memory are linear in the number of scores. The loss
    and its derivatives have a relative error below 1e-6; `losses/mw/grid.py` has the proof. On a CPU, the number of
    threads does not change the result; that file names the limits of this claim. There are no second derivatives.

    Args:
        scores: floating tensor [queries, candidates], with a row for each query. Differentiable. The values are finite,
            and their magnitude is at most 2^30 times the temperature.
        positives: int64 tensor [queries, positives]: the columns of each query's positives, padded with -1. Each row
            has at least one positive. All other columns are negatives.
        temperature: tau, finite and above 0. Scores are divided by it.
        reduction: `mean` over pairs (AUC paper, Eq. 2), or `sum` over pairs divided by the number of queries (Eq. 3).
        ignored: int64 tensor [queries, ignored]: columns that are neither positives nor negatives, padded with -1.

    Returns:
        A scalar, 0 or above, in the precision of the scores, at least float32.

    Raises:
        LossInputError: an argument has a wrong shape, type or device; a score is too large or not finite; a row has no
            positive; or the matrix has no negative.

    Examples:
        Two queries and three candidates. The positive of query 0 is in column 0, that of query 1 in column 1.

        >>> scores = torch.tensor([[0.9, 0.2, 0.1], [0.3, 0.8, 0.4]], requires_grad=True)
        >>> loss = mann_whitney(scores, torch.tensor([[0], [1]]), temperature=0.1)
        >>> loss.backward()
        >>> f"{loss.item():.4f}", tuple(scores.grad.shape)
        ('0.0048', (2, 3))

        The same value from a list of all pairs, as in the paper:

        >>> is_positive = torch.tensor([[True, False, False], [False, True, False]])
        >>> pairs = scores[~is_positive][None, :] - scores[is_positive][:, None]
        >>> f"{torch.nn.functional.softplus(pairs / 0.1).mean().item():.4f}"
        '0.0048'

    Source:
        The AUC paper, Eq. 2 and 3 and Lemma 2; [the derivation](../explanation/losses.md) is in the documentation.
    """
    if not (isinstance(scores, Tensor) and scores.ndim == 2 and scores.is_floating_point() and scores.numel()):
        raise LossInputError(f"scores are {_kind(scores)}", remedy="give a floating-point tensor [queries, candidates]")
    if not 0 < temperature < float("inf"):
        raise LossInputError(f"the temperature is {temperature!r}", remedy="give a finite number above 0")
    if reduction not in get_args(PairReduction):
        raise LossInputError(f"unknown reduction {reduction!r}", remedy=f"use {' or '.join(get_args(PairReduction))}")
    _check_columns("positives", positives, scores)
    if ignored is not None:
        _check_columns("ignored", ignored, scores)
    columns = positives.cpu().numpy()
    lacking = (columns == PAD).all(1)
    if lacking.any():
        raise LossInputError(f"row {lacking.argmax()} has no positive", "positives", "give each row a positive")
    pairs = _pairs(columns, scores)
    excluded = pairs if ignored is None else _pairs(np.concatenate([columns, ignored.cpu().numpy()], 1), scores)
    loss: Tensor = _FromScores.apply(scores, pairs, excluded, temperature, reduction)
    return loss


def _pairs(columns: ndarray, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct pairs (row, column) of a table of columns, on the device of the scores."""
    rows, slots = np.nonzero(columns != PAD)
    found, at = np.divmod(np.unique(rows * scores.shape[1] + columns[rows, slots]), scores.shape[1])
    return torch.from_numpy(found).to(scores.device), torch.from_numpy(at).to(scores.device)


def _check_columns(name: str, columns: Tensor, scores: Tensor) -> None:
    """Raise `LossInputError` unless `columns` is a table of column numbers. For a mask, show the correct call."""
    if isinstance(columns, Tensor) and (columns.dtype == torch.bool or _is_mask_of_integers(columns, scores)):
        columns_of_mask = "torch.where(mask > 0, torch.arange(mask.shape[1], device=mask.device), -1)"
        raise LossInputError(
            f"is a mask ({_kind(columns)}), but column numbers are needed",
            name,
            f"for a mask call mann_whitney with {name}={columns_of_mask}.topk(int((mask > 0).sum(1).max())).values",
        )
    is_table = isinstance(columns, Tensor) and columns.dtype == torch.int64 and columns.ndim == 2
    if not is_table or len(columns) != len(scores) or columns.device != scores.device:
        where = f" on {columns.device}" if isinstance(columns, Tensor) else ""
        raise LossInputError(
            f"is {_kind(columns)}{where}, but a row of column numbers is needed for each of {len(scores)} rows of "
            "scores",
            name,
            f"give a torch.int64 tensor [{len(scores)}, n] on {scores.device}; [:, None] makes a table of one column",
        )
    if columns.numel() and not PAD <= int(columns.min()) <= int(columns.max()) < scores.shape[1]:
        wrong = int(columns.max()) if int(columns.max()) >= scores.shape[1] else int(columns.min())
        what = f"column {wrong} does not exist"
        raise LossInputError(what, name, f"give columns from 0 to {scores.shape[1] - 1}, and -1 in empty slots")


def _is_mask_of_integers(columns: Tensor, scores: Tensor) -> bool:
    """Return True if `columns` has the shape of the scores and consists of the integers 0 and 1.

    With three columns or more, no valid table of distinct columns looks like this."""
    if columns.shape != scores.shape or scores.shape[1] <= 2 or columns.is_floating_point() or columns.is_complex():
        return False
    return bool(((columns == 0) | (columns == 1)).all())


def _kind(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


class _FromScores(torch.autograd.Function):
    """Loss and derivative in one pass over the scores. Backward only scales the derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        pairs: tuple[Tensor, Tensor],
        excluded: tuple[Tensor, Tensor],
        temperature: float,
        reduction: PairReduction,
    ) -> Tensor:
        precise = scores.to(torch.promote_types(scores.dtype, torch.float32)).contiguous()
        lowest, highest = (float(end) for end in torch.aminmax(precise))
        if not abs(lowest) + abs(highest) < torch.inf:
            raise LossInputError(f"the scores range from {lowest} to {highest}", remedy="give finite scores")
        negatives = precise.numel() - len(excluded[0])
        if negatives == 0:
            raise LossInputError(f"there are no negatives among {precise.numel()} scores", remedy="add candidates")
        positives = precise[pairs].double() / temperature
        weight = pair_weight(reduction, len(positives), negatives, len(precise))
        sums = PairwiseSums(positives, lowest / temperature, highest / temperature, weight, precise.dtype)
        walk = sums.walk(1 / temperature)
        derivatives = torch.empty_like(precise)
        walk.add(precise, derivatives, *excluded)
        own = walk.sums()
        result = sums.result(own, own)
        derivatives[pairs] = (result.by_positive / temperature).to(derivatives.dtype)
        ctx.save_for_backward(derivatives.to(scores.dtype))
        return result.partial.to(precise.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (derivatives,) = ctx.saved_tensors
        # A product with 1 would copy the matrix, which takes a fifth of the time of the loss.
        scaled = derivatives if float(grad) == 1 else derivatives * grad
        return scaled, None, None, None, None
