"""A loss as training calls it: check, gather, score, add the regulariser, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from raytriever.errors import LossInputError
from raytriever.losses.config import LossConfig
from raytriever.losses.diagnostics import batch_auc, query_positive_distance, query_positive_mmd
from raytriever.losses.distribution import distribution_distance
from raytriever.losses.engine.batch import BatchIds, Candidates, check_batch, gather_candidates
from raytriever.losses.engine.workers import ALONE, Workers, of_global_mean
from raytriever.losses.nested import narrowed, narrower_widths


@dataclass(frozen=True)
class Scored:
    """What a loss makes of the scores: this worker's share, differentiable, and numbers to log."""

    share: Float[Tensor, ""]
    statistics: dict[str, Tensor]


@dataclass(frozen=True)
class LossOutput:
    """A loss and what is logged beside it.

    Args:
        value: the global batch's loss, the same on every worker, differentiable.
        statistics: named numbers, without gradient.
    """

    value: Float[Tensor, ""]
    statistics: dict[str, Float[Tensor, ""]]


class Loss(nn.Module):
    """One of the losses over the global batch's score matrix, plus the distribution regulariser.

    Args:
        config: its constants.
        scores: the loss proper, from `registry.LOSSES`.
        unit_length: whether embeddings come with length one, and nested ones are brought to it too.
    """

    def __init__(
        self,
        config: LossConfig,
        scores: Callable[[LossConfig, Candidates, BatchIds, Tensor, Workers], Scored],
        unit_length: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.unit_length = unit_length
        self._scores = scores
        # Double, so that a float64 batch sees the temperature that was asked for.
        log_temperature = torch.tensor(config.temperature, dtype=torch.float64).log()
        if config.learn_temperature:
            # A list of one: DeepSpeed cannot send a parameter without dimensions.
            self.log_temperature = nn.Parameter(log_temperature.float()[None])
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
        widths = narrower_widths(self.config, queries.shape[1])
        batch = _in_working_precision(gather_candidates(queries, passages, ids, workers))
        log_temperature = self.log_temperature.to(batch.queries).reshape(())
        whole = self._reduced(batch, ids, log_temperature, workers)
        value, statistics = whole.value, {**whole.statistics, "temperature": log_temperature.detach().exp()}
        if widths:
            statistics[f"loss_at_{queries.shape[1]}"] = value.detach()
        for width in widths:
            part = self._reduced(narrowed(batch, width, self.unit_length), ids, log_temperature, workers)
            value = value + part.value
            statistics[f"loss_at_{width}"] = part.value.detach()
            statistics |= {f"{name}_at_{width}": number for name, number in part.statistics.items()}
        if self.config.distribution_weight:
            distance = distribution_distance(batch.queries, batch.embeddings, batch.rows, workers)
            statistics["distribution_distance"] = distance.detach()
            value = value + self.config.distribution_weight * distance
        return LossOutput(value, statistics)

    def _reduced(self, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: Workers) -> LossOutput:
        """The loss proper at one width, and what is told of it."""
        _check_scores(batch, log_temperature, squared=self.config.loss == "margin-mse")
        scored = self._scores(self.config, batch, ids, log_temperature, workers)
        value = of_global_mean(scored.share, workers)
        statistics = {
            **scored.statistics,
            "query_positive_distance": query_positive_distance(batch, workers),
            "query_positive_mmd": query_positive_mmd(batch, workers),
        }
        if "batch_auc" not in statistics:
            statistics["batch_auc"] = batch_auc(batch, workers)
        return LossOutput(value, statistics)


def _in_working_precision(batch: Candidates) -> Candidates:
    """Scores are taken in at least float32, whatever the encoder's precision."""
    precise = torch.promote_types(batch.queries.dtype, torch.float32)
    return replace(batch, queries=batch.queries.to(precise), embeddings=batch.embeddings.to(precise))


def _check_scores(batch: Candidates, log_temperature: Float[Tensor, ""], squared: bool) -> None:
    """No score or squared distance may overflow, whatever the order of summation.

    Args:
        batch: in working precision.
        log_temperature: of the scores.
        squared: whether the loss squares differences of scores in units of the temperature.
    """
    with torch.no_grad():
        largest = [float(torch.linalg.vector_norm(x, torch.inf)) for x in (batch.queries, batch.embeddings)]
        temperature = float(log_temperature.exp())
    width, most = batch.queries.shape[1], torch.finfo(batch.queries.dtype).max
    scores = largest[0] * largest[1] * width / min(temperature, 1.0)
    distances = (largest[0] + largest[1]) ** 2 * width
    if not max(scores, distances) < most or (squared and not 2 * scores < most**0.5):
        raise LossInputError(
            f"scores overflow: embeddings hold {largest[0]:.3g} and {largest[1]:.3g}, temperature {temperature:.3g}",
            remedy="look for a diverged encoder, or a temperature that was trained to 0",
        )
