"""Registry of the losses by name. CONTRIBUTING.md shows how to add one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.errors import ConfigError, setting
from raytriever.losses.config import LossConfig, check_loss
from raytriever.losses.engine.batch import BatchIds, Candidates
from raytriever.losses.engine.rows import RowLoss, RowReduction
from raytriever.losses.engine.sweep import sweep
from raytriever.losses.engine.teacher import OwnGroup, SoftLabels
from raytriever.losses.engine.workers import WorkerGroup
from raytriever.losses.infonce import INFONCE
from raytriever.losses.joint import JOINT
from raytriever.losses.kl import kl_share
from raytriever.losses.loss import Loss, LossOutput, LossShare, ScoreLoss, sent_type
from raytriever.losses.lsepair import LSEPAIR, LSEPAIR_MAXN, LSEPAIR_MAXP, LSEPAIR_MINP, LSEPAIR_MINP_MAXN
from raytriever.losses.margin_mse import margin_mse_share
from raytriever.losses.mw.pairwise import MWReduction
from raytriever.losses.own.function import load_own_loss, probe
from raytriever.losses.own.source import LossFile
from raytriever.losses.rand1 import RAND1
from raytriever.losses.summarg import SUMMARG
from raytriever.losses.symmetric import exchange_roles
from raytriever.losses.triplet import TripletReduction
from raytriever.options import check_options

__all__ = ["LOSSES", "Loss", "LossOutput", "build_loss"]


def by_row(loss: RowLoss | Callable[[LossConfig], RowLoss]) -> ScoreLoss:
    """Return a loss that is a mean over queries.

    Args:
        loss: the row loss, or the function that makes it from the settings.
    """

    def reduce(
        config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: WorkerGroup
    ) -> LossShare:
        row_loss = loss if isinstance(loss, RowLoss) else loss(config)
        columns = row_loss.positives(batch.relevance.positives, ids)
        if not config.soft_labels or batch.relevance.group is None:
            reduction = RowReduction(row_loss, columns, batch.relevance.rows)
            return LossShare(sweep(reduction, batch, log_temperature, config.loss_precision), {})
        labels = SoftLabels.of(batch, config.teacher_temperature)
        group = OwnGroup.of(batch, log_temperature, config.teacher_temperature)
        reduction = RowReduction(row_loss, columns, batch.relevance.rows, labels)
        share = sweep(reduction, batch, log_temperature, config.loss_precision)
        return LossShare(share, group.statistics(workers))

    return reduce


def by_teacher(share: Callable[[OwnGroup, WorkerGroup], Float[Tensor, ""]]) -> ScoreLoss:
    """Return a loss of a teacher's scores. Batches without them, such as dev batches, use InfoNCE."""

    def reduce(
        config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: WorkerGroup
    ) -> LossShare:
        if batch.relevance.group is None:
            return by_row(INFONCE)(config, batch, ids, log_temperature, workers)
        group = OwnGroup.of(batch, log_temperature, config.teacher_temperature)
        return LossShare(share(group, workers).to(batch.queries.dtype), group.statistics(workers))

    return reduce


def symmetric(
    config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: WorkerGroup
) -> LossShare:
    """Compute the mean of InfoNCE from query to passage and from passage to query (handbook, 'Symmetric')."""
    forward = by_row(INFONCE)(config, batch, ids, log_temperature, workers)
    exchanged = exchange_roles(batch, ids, workers, sent_type(config))
    backward = by_row(INFONCE)(config, exchanged, ids, log_temperature, workers)
    return LossShare((forward.share + backward.share) / 2, {})


def triplet(
    config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: WorkerGroup
) -> LossShare:
    """Compute the hinge over all pairs of a query."""
    reduction = TripletReduction(batch.relevance.positives, config.margin, batch.relevance.rows)
    return LossShare(sweep(reduction, batch, log_temperature, config.loss_precision), {})


def mw(
    config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: WorkerGroup
) -> LossShare:
    """Compare every positive with every negative of the batch."""
    reduction = MWReduction(batch, workers, "sum" if config.reduction == "sum" else "mean")
    return LossShare(sweep(reduction, batch, log_temperature, config.loss_precision), reduction.statistics)


LOSSES: dict[str, ScoreLoss] = {
    "infonce": by_row(INFONCE),
    "infonce-symmetric": symmetric,
    "rand1": by_row(RAND1),
    "joint": by_row(JOINT),
    "summarg": by_row(SUMMARG),
    "lsepair": by_row(LSEPAIR),
    "lsepair-maxp": by_row(LSEPAIR_MAXP),
    "lsepair-maxn": by_row(LSEPAIR_MAXN),
    "lsepair-minp": by_row(LSEPAIR_MINP),
    "lsepair-minp-maxn": by_row(LSEPAIR_MINP_MAXN),
    "triplet": triplet,
    "mw": mw,
    "kl": by_teacher(kl_share),
    "margin-mse": by_teacher(margin_mse_share),
}


def build_loss(config: LossConfig, unit_length: bool = False) -> Loss:
    """Return the loss that the settings name.

    Args:
        config: settings of the loss.
        unit_length: embeddings have length one, as with `--similarity cosine`.

    Raises:
        ConfigError: a setting is out of range, or does not apply to this loss.
    """
    check_options(config)
    if not torch.isfinite(torch.tensor(config.temperature).log()):
        raise ConfigError(f"{config.temperature!r} is out of range", setting("temperature"), "give a positive number")
    check_loss(config)
    own = LossFile.parse(config.loss)
    if own is None:
        return Loss(config, LOSSES[config.loss], unit_length)
    scores = load_own_loss(own, by_row)
    alone = replace(config, distribution_weight=0.0, matryoshka_dims="", guide=None, guide_margin=None)
    probe(Loss(alone, scores), own)
    return Loss(config, scores, unit_length)
