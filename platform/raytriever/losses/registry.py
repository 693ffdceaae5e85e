"""A loss by its name: what the command line offers, and how the pieces are put together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from raytriever.losses.batch import BatchIds, check_batch
from raytriever.losses.candidates import gather_candidates
from raytriever.losses.config import LossConfig
from raytriever.losses.distribution import distribution_distance
from raytriever.losses.engine import row_loss
from raytriever.losses.infonce import INFONCE
from raytriever.losses.mw import mw
from raytriever.losses.rows import RowLoss
from raytriever.losses.share import of_global_mean
from raytriever.losses.workers import ALONE, Workers
from raytriever.options import check_options

ROW_LOSSES: dict[str, RowLoss] = {"infonce": INFONCE}


@dataclass(frozen=True)
class LossOutput:
    """A loss and what is logged beside it.

    Args:
        value: the global batch's mean loss, the same on every worker, differentiable.
        statistics: named numbers, without gradient.
    """

    value: Float[Tensor, ""]
    statistics: dict[str, Float[Tensor, ""]]


class Loss(nn.Module):
    """One of the losses over the global batch's score matrix, plus the distribution regulariser."""

    def __init__(self, config: LossConfig) -> None:
        super().__init__()
        self.config = config
        log_temperature = torch.tensor(config.temperature).log()
        if config.learn_temperature:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature, persistent=False)

    def forward(
        self,
        queries: Float[Tensor, "queries width"],
        passages: Float[Tensor, "passages width"],
        ids: BatchIds,
        workers: Workers = ALONE,
    ) -> LossOutput:
        """The loss of this step.

        Args:
            queries: embeddings of this worker's queries.
            passages: embeddings of this worker's passages, positives and hard negatives alike.
            ids: who they are.
            workers: the data-parallel group; every worker brings equally many queries and passages.
        """
        check_batch(queries, passages, ids)
        candidates = gather_candidates(queries, passages, ids, workers)
        precise = torch.promote_types(queries.dtype, torch.float32)
        candidates = replace(
            candidates, queries=queries.to(precise), embeddings=candidates.embeddings.to(precise)
        )
        log_temperature = self.log_temperature.to(precise)
        if self.config.loss == "mw":
            share, statistics = mw(candidates, log_temperature, workers)
        else:
            loss = ROW_LOSSES[self.config.loss]
            share = row_loss(loss, candidates, loss.positives(candidates, ids), log_temperature)
            statistics = {}
        value = of_global_mean(share, workers)
        if self.config.distribution_weight:
            distance = distribution_distance(
                candidates.queries, candidates.embeddings, candidates.rows, workers
            )
            statistics["distribution_distance"] = distance.detach()
            value = value + self.config.distribution_weight * distance
        return LossOutput(value, {**statistics, "temperature": self.log_temperature.detach().exp()})


def build_loss(config: LossConfig) -> Loss:
    """The loss that a configuration names; raises `ConfigError` when a setting is wrong."""
    check_options(config)
    return Loss(config)
