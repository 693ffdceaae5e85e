"""A loss by its name. A new loss is one file, one line here, its name in `config.py`, and one test row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.errors import ConfigError
from raytriever.losses.config import LossConfig, check_loss
from raytriever.losses.engine.batch import BatchIds, Candidates
from raytriever.losses.engine.own_group import OwnGroup
from raytriever.losses.engine.rows import RowLoss, RowReduction
from raytriever.losses.engine.soft_labels import SoftLabels
from raytriever.losses.engine.sweep import sweep
from raytriever.losses.engine.workers import Workers
from raytriever.losses.infonce import INFONCE
from raytriever.losses.joint import JOINT
from raytriever.losses.kl import kl_share
from raytriever.losses.loss import Loss, LossOutput, Scored
from raytriever.losses.lsepair import LSEPAIR, LSEPAIR_MAXN, LSEPAIR_MAXP, LSEPAIR_MINP, LSEPAIR_MINP_MAXN
from raytriever.losses.margin_mse import margin_mse_share
from raytriever.losses.mw.reduction import MWReduction
from raytriever.losses.rand1 import RAND1
from raytriever.losses.summarg import SUMMARG
from raytriever.losses.symmetric import exchanged
from raytriever.losses.triplet import TripletReduction
from raytriever.options import check_options

__all__ = ["LOSSES", "Loss", "LossOutput", "build_loss"]

Scores = Callable[[LossConfig, Candidates, BatchIds, Float[Tensor, ""], Workers], Scored]


def by_row(loss: RowLoss) -> Scores:
    """A loss of one query's scores at a time."""

    def scored(
        config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: Workers
    ) -> Scored:
        columns = loss.positives(batch.positives, ids)
        if not config.soft_labels or batch.teacher is None:
            return Scored(sweep(RowReduction(loss, columns, batch.rows), batch, log_temperature), {})
        labels = SoftLabels.of(batch, config.teacher_temperature)
        group = OwnGroup.of(batch, ids, log_temperature, config.teacher_temperature)
        share = sweep(RowReduction(loss, columns, batch.rows, labels), batch, log_temperature)
        return Scored(share, group.statistics(ids, workers))

    return scored


def taught(share: Callable[[OwnGroup, Workers], Float[Tensor, ""]]) -> Scores:
    """A loss of a teacher's scores; InfoNCE for batches that nobody was asked about, as those of dev data are."""

    def scored(
        config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: Workers
    ) -> Scored:
        if batch.teacher is None:
            return by_row(INFONCE)(config, batch, ids, log_temperature, workers)
        group = OwnGroup.of(batch, ids, log_temperature, config.teacher_temperature)
        return Scored(share(group, workers).to(batch.queries.dtype), group.statistics(ids, workers))

    return scored


def symmetric(
    config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: Workers
) -> Scored:
    """The mean of InfoNCE from query to passage and from passage to query (handbook, 'Symmetric')."""
    there = by_row(INFONCE)(config, batch, ids, log_temperature, workers)
    back = by_row(INFONCE)(config, exchanged(batch, ids, workers), ids, log_temperature, workers)
    return Scored((there.share + back.share) / 2, {})


def triplet(config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: Workers) -> Scored:
    """The hinge over all pairs of a query."""
    reduction = TripletReduction(batch.positives, config.margin, batch.rows)
    return Scored(sweep(reduction, batch, log_temperature), {})


def mw(config: LossConfig, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: Workers) -> Scored:
    """Every positive against every negative of the batch."""
    reduction = MWReduction(batch, workers, "sum" if config.reduction == "sum" else "mean")
    return Scored(sweep(reduction, batch, log_temperature), reduction.statistics)


LOSSES: dict[str, Scores] = {
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
    "kl": taught(kl_share),
    "margin-mse": taught(margin_mse_share),
}


def build_loss(config: LossConfig, unit_length: bool = False) -> Loss:
    """The loss that a configuration names; raises `ConfigError` when a setting is wrong.

    Args:
        config: its constants.
        unit_length: whether embeddings come with length one, as where the similarity is cosine.
    """
    check_options(config)
    if not torch.isfinite(torch.tensor(config.temperature).log()):
        raise ConfigError(f"{config.temperature!r} is out of range", "--temperature", "give a positive number")
    check_loss(config)
    return Loss(config, LOSSES[config.loss], unit_length)
