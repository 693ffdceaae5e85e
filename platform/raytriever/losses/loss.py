"""Loss module that training calls: validates, gathers, scores, adds the regulariser, and returns statistics."""

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
from raytriever.losses.engine.workers import ALONE, Workers, sum_shares
from raytriever.losses.nested import narrow_candidates, narrower_widths


@dataclass(frozen=True)
class LossShare:
    """Differentiable share of one worker in the loss, and statistics to log."""

    share: Float[Tensor, ""]
    statistics: dict[str, Tensor]


@dataclass(frozen=True)
class LossOutput:
    """Loss of the global batch, and its statistics.

    Args:
        value: the loss, the same on every worker, differentiable.
        statistics: scalars to log by name, without gradient.
    """

    value: Float[Tensor, ""]
    statistics: dict[str, Float[Tensor, ""]]


class Loss(nn.Module):
    """Loss over the score matrix of the global batch, plus the distribution regulariser.

    Args:
        config: settings of the loss.
        scores: function that reduces a batch to a share, from `registry.LOSSES`.
        unit_length: embeddings have length one, and nested embeddings are normalised too.
    """

    def __init__(
        self,
        config: LossConfig,
        scores: Callable[[LossConfig, Candidates, BatchIds, Tensor, Workers], LossShare],
        unit_length: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.unit_length = unit_length
        self._scores = scores
        # In double precision, so that a float64 batch uses the exact temperature.
        log_temperature = torch.tensor(config.temperature, dtype=torch.float64).log()
        if config.learn_temperature:
            # One dimension of size one: DeepSpeed cannot send a parameter without dimensions.
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
        """Compute the loss of one step.

        Args:
            queries: embeddings of this worker's queries.
            passages: embeddings of this worker's passages: positives and hard negatives.
            ids: ids of the queries and passages.
            workers: the data-parallel group. All workers pass equal numbers of queries and passages.

        Raises:
            LossInputError: shapes, types or ids do not agree, or an embedding is not finite.
        """
        check_batch(queries, passages, ids)
        widths = narrower_widths(self.config, queries.shape[1])
        batch = gather_candidates(queries, passages, ids, workers, self.config.both_ways, sent_type(self.config))
        batch, ids = _to_working_precision(batch), replace(ids, queries=batch.relevance.queries)
        log_temperature = self.log_temperature.to(batch.queries).reshape(())
        batch = replace(batch, largest_score=self._largest_score(batch, passages, log_temperature, workers))
        whole = self._reduce(batch, ids, log_temperature, workers)
        value, statistics = whole.value, {**whole.statistics, "temperature": log_temperature.detach().exp()}
        if widths:
            statistics[f"loss_at_{queries.shape[1]}"] = value.detach()
        for width in widths:
            nested = self._reduce(narrow_candidates(batch, width, self.unit_length), ids, log_temperature, workers)
            value = value + nested.value
            statistics[f"loss_at_{width}"] = nested.value.detach()
            statistics |= {f"{name}_at_{width}": number for name, number in nested.statistics.items()}
        if self.config.distribution_weight:
            distance = distribution_distance(batch.queries, batch.embeddings, batch.relevance.rows, workers)
            statistics["distribution_distance"] = distance.detach()
            value = value + self.config.distribution_weight * distance
        return LossOutput(value, statistics)

    def _reduce(self, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: Workers) -> LossOutput:
        """Compute the loss and its statistics at one width, without the regulariser."""
        own = self._scores(self.config, batch, ids, log_temperature, workers)
        value = sum_shares(own.share, workers)
        statistics = {
            **own.statistics,
            "query_positive_distance": query_positive_distance(batch, workers),
            "query_positive_mmd": query_positive_mmd(batch, workers),
        }
        if "batch_auc" not in statistics:
            statistics["batch_auc"] = batch_auc(batch, workers)
        return LossOutput(value, statistics)

    @torch.no_grad()
    def _largest_score(
        self, batch: Candidates, passages: Tensor, log_temperature: Float[Tensor, ""], workers: Workers
    ) -> float:
        """Return an upper bound of every |score| / tau of the batch, also of embeddings that are cut (Cauchy-Schwarz).

        The one moment of a loss at which the processor waits for the GPU.

        Args:
            batch: the gathered batch, in working precision.
            passages: embeddings of this worker's passages.
            log_temperature: log of tau.
            workers: the group.

        Raises:
            LossInputError: an embedding is not finite, or a score or squared distance may overflow in any order of
                summation; on every worker.
        """
        both = (batch.queries, batch.embeddings)
        numbers = [torch.linalg.vector_norm(x, torch.inf).double() for x in both]
        numbers += [torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).max() for x in both]
        numbers.append(log_temperature.exp().double())
        numbers += [(~torch.isfinite(x).all(1)).sum().double() for x in (batch.queries, passages)]
        *largest, longest_query, longest_passage, temperature, spoilt_queries, spoilt_passages = workers.maximum(
            torch.stack(numbers)
        ).tolist()
        if spoilt_queries or spoilt_passages:
            raise _not_finite(batch.queries, passages)
        width, most = batch.queries.shape[1], torch.finfo(batch.queries.dtype).max
        scores = largest[0] * largest[1] * width / min(temperature, 1.0)
        distances = (largest[0] + largest[1]) ** 2 * width
        if not max(scores, distances) < most or (self.config.loss == "margin-mse" and not 2 * scores < most**0.5):
            raise LossInputError(
                f"scores overflow: the largest components of query and passage embeddings are {largest[0]:.3g} and "
                f"{largest[1]:.3g}, and the temperature is {temperature:.3g}",
                remedy="check whether the encoder has diverged, or the temperature was trained to 0",
            )
        longest = longest_query * longest_passage
        # Cut embeddings are normalised again.
        return (max(longest, 1.0) if self.unit_length else longest) / temperature


def sent_type(config: LossConfig) -> torch.dtype | None:
    """Return the type of embeddings on their way between workers; None for their own."""
    return torch.bfloat16 if config.gather_precision == "bf16" else None


def _not_finite(queries: Tensor, passages: Tensor) -> LossInputError:
    """Return the error of embeddings that are not finite, on this worker or another."""
    where = "another worker has embeddings that hold NaN or infinity"
    for name, embeddings in (("passage", passages), ("query", queries)):
        finite = torch.isfinite(embeddings).all(1)
        if not bool(finite.all()):
            where = (
                f"{int((~finite).sum())} of {len(finite)} {name} embeddings hold NaN or infinity, "
                f"the first in row {int((~finite).nonzero()[0])}"
            )
    return LossInputError(where, remedy="check whether the encoder has diverged or half precision overflows")


def _to_working_precision(batch: Candidates) -> Candidates:
    """Convert embeddings to at least float32: scores have this precision with every encoder."""
    precise = torch.promote_types(batch.queries.dtype, torch.float32)
    return replace(batch, queries=batch.queries.to(precise), embeddings=batch.embeddings.to(precise))
