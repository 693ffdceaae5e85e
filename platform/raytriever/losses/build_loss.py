"""Build the loss that the settings name: a loss of the package, a loss in a user's file, or a weighted sum of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

import torch

from raytriever.core.errors import ConfigError, setting
from raytriever.core.setting_declarations import check_options
from raytriever.losses.batch_and_temperature import Candidates
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss import Loss
from raytriever.losses.loss_settings import LossConfig, check_loss
from raytriever.losses.named_losses import LOSSES
from raytriever.losses.row_losses import RowLoss, by_row
from raytriever.losses.score_matrix import PartialLoss, ScoreLoss
from raytriever.losses.user_loss import load_own_loss, probe
from raytriever.losses.user_loss_file import LossFile


def weighted_sum(losses: Sequence[ScoreLoss], weights: Sequence[float], titles: Sequence[str]) -> ScoreLoss:
    """Return the weighted sum of losses over the same candidates. Each unweighted value is logged as `loss_TITLE`."""

    def reduce(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> PartialLoss:
        terms = [loss(config, batch, workers) for loss in losses]
        statistics = {name: value for term in terms for name, value in term.statistics.items()}
        values = workers.all_reduce(torch.stack([term.partial for term in terms]))
        statistics |= {f"loss_{title}": value for title, value in zip(titles, values, strict=True)}
        total = torch.stack([weight * term.partial for weight, term in zip(weights, terms, strict=True)]).sum()
        return PartialLoss(total, statistics)

    return reduce


def build_loss(config: LossConfig, unit_length: bool = False) -> Loss:
    """Return the loss that the settings name.

    Raises:
        ConfigError: a setting is out of range, or does not apply to this loss.
    """
    check_options(config)
    if not torch.isfinite(torch.tensor(config.temperature).log()):
        raise ConfigError(f"{config.temperature!r} is out of range", setting("temperature"), "give a number above 0")
    check_loss(config)
    losses = [_open(term, config) for term in config.terms]
    scores = losses[0] if len(losses) == 1 else weighted_sum(losses, config.weights, config.titles)
    return Loss(config, scores, unit_length)


def _open(term: str, config: LossConfig) -> ScoreLoss:
    """Return the loss of one term. A loss of a user's file is first tested on a small random batch."""
    own = LossFile.parse(term)
    if own is None:
        module, _, name = LOSSES[term].function.rpartition(".")
        loss: RowLoss | ScoreLoss = getattr(import_module(f"raytriever.losses.{module}"), name)
        return by_row(loss) if isinstance(loss, RowLoss) else loss
    scores = load_own_loss(own)
    alone = replace(config, loss=term, loss_weights=None, distribution_weight=0.0)
    alone = replace(alone, matryoshka_dims="", guide=None, guide_margin=None)
    probe(Loss(alone, scores), own)
    return scores
