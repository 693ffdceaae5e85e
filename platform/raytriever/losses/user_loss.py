"""Loss that a user writes as a function of the score matrix of the global batch, differentiated by autograd.

    def squared_hinge(scores, positives, negatives): ...     # [B, C], [B, C], [B, C] -> []

Each worker gathers the embeddings of all workers, computes the whole matrix, and returns an equal part of the value.
So the gradients equal those of a single process for any function of the matrix, also with gradient caching and hard
negatives. The cost is the memory of the matrix and of autograd's saved tensors, and that every worker does the same
work. A loss by row (`RowLoss`) avoids both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raytriever.core.errors import ConfigError, LossInputError, setting
from raytriever.losses.batch_and_temperature import PAD, Candidates
from raytriever.losses.batch_relevance import GlobalIds, find_relevance
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss import Loss
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.row_losses import RowLoss, by_row
from raytriever.losses.score_matrix import PartialLoss, ScoreLoss
from raytriever.losses.user_loss_file import SETTINGS, LossFile, errors_of

# Score, in units of tau, of pairs that are neither positive nor negative, if a function has no argument `negatives`.
# Its exp, sigmoid, softplus and hinge are 0. Unlike -inf, it keeps sums and gradients finite.
NEITHER = -1e4


def load_own_loss(own: LossFile) -> ScoreLoss:
    """Return the loss of a user's file: a function of the score matrix, or a loss by row.

    Raises:
        ConfigError: the file cannot be used. If its code fails, the error names the line.
    """
    value, arguments = own.load(), own.arguments()
    if isinstance(value, RowLoss):
        return by_row(value)
    if arguments == SETTINGS:
        return by_row(_row_loss_of(value, own))
    if not arguments:
        what = f"is {type(value).__name__}"
        raise ConfigError(what, setting("loss", f"{own.file}:{own.name}"), "give a function of the file, or a RowLoss")
    return of_scores(value, own, arguments)


def _row_loss_of(function: Callable[[LossConfig], Any], own: LossFile) -> Callable[[LossConfig], RowLoss]:
    """Wrap a user's function that returns a `RowLoss` for the settings, so that its errors name the file."""

    def make(config: LossConfig) -> RowLoss:
        with errors_of(own.file):
            made = function(config)
        if not isinstance(made, RowLoss):
            raise ConfigError(
                f"returns {type(made).__name__}", setting("loss", f"{own.file}:{own.name}"), "return a RowLoss"
            )
        return made

    return make


def of_scores(function: Callable[..., Tensor], own: LossFile, arguments: tuple[str, ...]) -> ScoreLoss:
    """Return the score loss for a user's function of the score matrix. `arguments` are the names of its arguments."""

    def reduce(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> PartialLoss:
        given = _arguments(batch, workers, arguments)
        with errors_of(own.file):
            value = function(**given)
        if not isinstance(value, Tensor) or value.shape:
            returned = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            what = f"returns {returned}"
            raise ConfigError(what, setting("loss", f"{own.file}:{own.name}"), "return a scalar tensor, such as a mean")
        return PartialLoss(value.to(batch.queries.dtype) / workers.size, {})

    return reduce


def _arguments(batch: Candidates, workers: WorkerGroup, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the arguments that a user's function asks for, computed from the global batch.

    All workers call this function, and get the same values."""
    device, relevance = batch.queries.device, batch.relevance
    rows, columns = len(batch.queries), len(batch.embeddings)
    positives = torch.zeros(rows, columns, dtype=torch.uint8, device=device)  # some backends cannot gather booleans
    of_row, slots = relevance.is_positive.nonzero(as_tuple=True)
    positives[of_row, relevance.positives[of_row, slots]] = 1
    excluded = torch.zeros_like(positives)
    excluded[relevance.excluded_rows, relevance.excluded_columns] = 1
    is_positive, is_excluded = workers.all_gather(torch.stack([positives, excluded], 1)).bool().unbind(1)
    everyone = replace(batch, queries=workers.all_gather(batch.queries))
    scores = everyone.scaled_queries @ batch.embeddings.T
    if "negatives" not in names:
        scores = scores.masked_fill(is_excluded & ~is_positive, NEITHER)
    values = {
        "scores": scores,
        "positives": is_positive,
        "negatives": ~is_excluded,
        "temperature": batch.log_temperature.exp(),
    }
    if "query_ids" in names:
        values["query_ids"] = workers.all_gather(relevance.queries)
    if "passage_ids" in names:
        values["passage_ids"] = relevance.keep(workers.all_gather(relevance.passages))
    if "teacher_scores" in names:
        # Entries without a teacher score are NaN: in dev batches, and for passages of the groups of other queries.
        taught, group = scores.new_full((rows, columns), torch.nan), relevance.group
        if group is not None:
            of_row, slots = group.is_scored.nonzero(as_tuple=True)
            taught[of_row, group.columns[of_row, slots]] = group.scores[of_row, slots].to(taught.dtype)
        values["teacher_scores"] = workers.all_gather(taught)
    return {name: value for name, value in values.items() if name in names}


def probe(loss: Loss, own: LossFile) -> None:
    """Test a user's loss and its gradient on a small random batch, before any data is opened.

    Raises:
        ConfigError: the loss fails or is not finite, or its gradient is missing or not finite.
    """
    generator = torch.Generator().manual_seed(0)
    embeddings = [torch.randn(count, 8, generator=generator).mul(0.3).requires_grad_() for count in (4, 10)]
    positives, asked = np.array([[0, 1], [2, PAD], [4, 0], [6, PAD]]), np.array([[0, 5], [2, 7], [4, 8], [6, 9]])
    ids = GlobalIds(np.arange(4), positives, np.arange(10), known_rows=np.array([0, 3]), known=np.array([3, 1]))
    teacher = asked, torch.randn(asked.shape, generator=generator).numpy()
    where = setting("loss", f"{own.file}:{own.name}")
    try:
        value = loss(*embeddings, find_relevance(ids, 0, 1, teacher)).value
    except LossInputError as error:
        raise ConfigError(error.args[0], where, "correct the file") from error
    if not torch.isfinite(value):
        raise ConfigError(
            f"returns {float(value.detach())} for a batch of 4 queries and 10 passages", where, "return a finite number"
        )
    if not value.requires_grad:
        raise ConfigError("has no gradient", where, "compute the value from 'scores' with differentiable functions")
    with errors_of(own.file):
        gradients = torch.autograd.grad(value, embeddings, allow_unused=True)
    if any(gradient is None or not torch.isfinite(gradient).all() for gradient in gradients):
        raise ConfigError("has a gradient that is not finite", where, "use functions such as logsigmoid and logsumexp")
