"""Every loss by name: this table declares them all. CONTRIBUTING.md shows how to add one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.errors import ConfigError, setting
from raytriever.losses.batch import BatchIds, Candidates
from raytriever.losses.config import LossConfig, check_loss
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.files import LossFile
from raytriever.losses.loss import Loss
from raytriever.losses.mw.pairwise import mw
from raytriever.losses.own import load_own_loss, probe
from raytriever.losses.rows import (
    INFONCE,
    RowLoss,
    by_row,
    draw_positive,
    infonce,
    joint,
    lsepair,
    lsepair_maxp,
    lsepair_minp,
    summarg,
    symmetric,
    triplet,
)
from raytriever.losses.scores import LossShare, ScoreLoss
from raytriever.losses.teacher import OwnGroup, kl, margin_mse
from raytriever.options import check_options


def by_teacher(share: Callable[[OwnGroup, WorkerGroup], Float[Tensor, ""]]) -> ScoreLoss:
    """Return a loss of a teacher's scores. Batches without them, such as dev batches, use InfoNCE."""

    def reduce(config: LossConfig, batch: Candidates, ids: BatchIds, workers: WorkerGroup) -> LossShare:
        if batch.relevance.group is None:
            return by_row(INFONCE)(config, batch, ids, workers)
        group = OwnGroup.of(batch, config.teacher_temperature)
        return LossShare(share(group, workers).to(batch.queries.dtype), group.statistics(workers))

    return reduce


LOSSES: dict[str, ScoreLoss] = {
    "infonce": by_row(INFONCE),
    "infonce-symmetric": symmetric,
    "rand1": by_row(RowLoss("logsumexp", infonce, draw_positive)),
    "joint": by_row(RowLoss("logsumexp", joint)),
    "summarg": by_row(RowLoss("logsumexp", summarg)),
    "lsepair": by_row(RowLoss("logsumexp", lsepair)),
    "lsepair-maxp": by_row(RowLoss("logsumexp", lsepair_maxp)),
    "lsepair-maxn": by_row(RowLoss("maximum", lsepair)),
    "lsepair-minp": by_row(RowLoss("logsumexp", lsepair_minp)),
    "lsepair-minp-maxn": by_row(RowLoss("maximum", lsepair_minp)),
    "triplet": triplet,
    "mw": mw,
    "kl": by_teacher(kl),
    "margin-mse": by_teacher(margin_mse),
}


def weighted_sum(losses: Sequence[ScoreLoss], weights: Sequence[float], titles: Sequence[str]) -> ScoreLoss:
    """Return the weighted sum of losses over the same candidates; it logs each without its weight as `loss_TITLE`."""

    def reduce(config: LossConfig, batch: Candidates, ids: BatchIds, workers: WorkerGroup) -> LossShare:
        terms = [loss(config, batch, ids, workers) for loss in losses]
        statistics = {name: value for term in terms for name, value in term.statistics.items()}
        values = workers.all_reduce(torch.stack([term.share for term in terms]))
        statistics |= {f"loss_{title}": value for title, value in zip(titles, values, strict=True)}
        total = torch.stack([weight * term.share for weight, term in zip(weights, terms, strict=True)]).sum()
        return LossShare(total, statistics)

    return reduce


def build_loss(config: LossConfig, unit_length: bool = False) -> Loss:
    """Return the loss that the settings name.

    Raises:
        ConfigError: a setting is out of range, or does not apply to this loss.
    """
    check_options(config)
    if not torch.isfinite(torch.tensor(config.temperature).log()):
        raise ConfigError(f"{config.temperature!r} is out of range", setting("temperature"), "give a positive number")
    check_loss(config)
    losses = [_open(term, config) for term in config.terms]
    scores = losses[0] if len(losses) == 1 else weighted_sum(losses, config.weights, config.titles)
    return Loss(config, scores, unit_length)


def _open(term: str, config: LossConfig) -> ScoreLoss:
    """Return a loss by its name, or that of a user's file after a trial."""
    own = LossFile.parse(term)
    if own is None:
        return LOSSES[term]
    scores = load_own_loss(own)
    alone = replace(config, loss=term, loss_weights=None, distribution_weight=0.0)
    alone = replace(alone, matryoshka_dims="", guide=None, guide_margin=None)
    probe(Loss(alone, scores), own)
    return scores
