"""Loss module that training calls: validates, gathers, scores, adds nested widths and the regulariser, and returns
statistics.

Nested embeddings: the first components of an embedding retrieve too (Matryoshka; Kusupati et al., 2022, Eq. 1).

    L = sum over m in M of L_m,   L_m the loss of the first m components,

All widths have the same weight, and the whole width is always included (arXiv:2205.13147, with c_m = 1). Candidates are
gathered once at full width, and cut afterwards. If the model compares by cosine, cut embeddings are normalised again,
differentiably, because search normalises them too.

The distribution regulariser keeps queries near the documents (out-of-distribution paper, Eq. 3).

    L_reg = (1/B) sum_q (1/N) sum_y ||q - y||^2, y over every distinct candidate of the global batch.

Its expectation is the squared linear-kernel MMD between queries and documents plus their variances. Written out it
needs two means and no score matrix: ||q||^2 + mean ||y||^2 - 2 q . mean(y), O((B + N) d). It uses the whole embedding:
a squared distance is the sum over the components, so it contains the first ones already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from raytriever.errors import ConfigError, LossInputError, setting
from raytriever.losses.config import LossConfig
from raytriever.losses.diagnostics import batch_auc, query_positive_distance, query_positive_mmd
from raytriever.losses.engine.batch import BatchIds, Candidates, check_batch, gather_candidates
from raytriever.losses.engine.guide import GuideEmbeddings, mask_false_negatives
from raytriever.losses.engine.workers import ALONE, WorkerGroup, sum_shares


@dataclass(frozen=True)
class LossShare:
    """Differentiable share of one worker in the loss, and statistics to log."""

    share: Float[Tensor, ""]
    statistics: dict[str, Tensor]


# Longest embedding of length one, rounded to bf16 where it is normalised and where it is sent.
UNIT = 1 + 2.0**-7
# Below this temperature mw places its grid by the positives, for which the host waits anyway.
SMALLEST_KNOWN_TEMPERATURE = 2.0**-9


ScoreLoss = Callable[[LossConfig, Candidates, BatchIds, Float[Tensor, ""], WorkerGroup], LossShare]


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
        scores: function that reduces a batch to a share, from `registry.LOSSES` or a file.
        unit_length: embeddings have length one, and nested embeddings are normalised too.
    """

    def __init__(
        self,
        config: LossConfig,
        scores: ScoreLoss,
        unit_length: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.unit_length = unit_length
        self._scores = scores
        self._widths, self._both_ways, self._sent = config.widths, config.both_ways, sent_type(config)
        is_known = unit_length and not config.learn_temperature and config.temperature >= SMALLEST_KNOWN_TEMPERATURE
        self._known_bound = UNIT**2 / config.temperature if is_known else None
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
        workers: WorkerGroup = ALONE,
        guide: GuideEmbeddings | None = None,
    ) -> LossOutput:
        """Compute the loss of one step.

        Args:
            queries: embeddings of this worker's queries.
            passages: embeddings of this worker's passages: positives and hard negatives.
            ids: ids of the queries and passages.
            workers: the data-parallel group. All workers pass equal numbers of queries and passages.
            guide: embeddings of the same texts by the guide, if the settings name one.

        Raises:
            LossInputError: shapes, types or ids do not agree, an embedding is not finite, or the guide's are missing.
                Embeddings of length one on a GPU that are not finite make the loss NaN instead, which costs no wait.
        """
        check_batch(queries, passages, ids)
        if (guide is None) != (self.config.guide is None):
            missing = "the embeddings of the guide are missing" if guide is None else "the settings name no guide"
            raise LossInputError(missing, "guide", "give both or neither")
        check_widths(self._widths, queries.shape[1])
        widths = [width for width in self._widths if width < queries.shape[1]]
        batch = gather_candidates(queries, passages, ids, workers, self._both_ways, self._sent)
        masking = dict[str, Tensor]()
        if guide is not None:
            margin = self.config.guide_margin or 0.0
            relevance, masking = mask_false_negatives(batch.relevance, guide, margin, ids, workers, self._sent)
            batch = replace(batch, relevance=relevance)
        batch, ids = _to_working_precision(batch), replace(ids, queries=batch.relevance.queries)
        log_temperature = self.log_temperature.to(batch.queries).reshape(())
        bound = self._bound_without_wait(batch)
        if bound is None:
            bound = self._largest_score(batch, passages, log_temperature, workers)
        batch = replace(batch, largest_score=bound)
        whole = self._reduce(batch, ids, log_temperature, workers)
        value, statistics = whole.value, {**whole.statistics, **masking, "temperature": log_temperature.detach().exp()}
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

    def _reduce(self, batch: Candidates, ids: BatchIds, log_temperature: Tensor, workers: WorkerGroup) -> LossOutput:
        """Compute the loss and its statistics at one width, without the regulariser."""
        own = self._scores(self.config, batch, ids, log_temperature, workers)
        share = own.share
        if self._bound_without_wait(batch) is not None:
            # Nobody has looked at the embeddings. NaN and infinity times 0 are NaN, which the loss then is.
            share = torch.add(share, batch.queries.detach().sum() + batch.embeddings.detach().sum(), alpha=0)
        value = sum_shares(share, workers)
        statistics = {
            **own.statistics,
            "query_positive_distance": query_positive_distance(batch, workers),
            "query_positive_mmd": query_positive_mmd(batch, workers),
        }
        if "batch_auc" not in statistics:
            statistics["batch_auc"] = batch_auc(batch, workers)
        return LossOutput(value, statistics)

    def _bound_without_wait(self, batch: Candidates) -> float | None:
        """Return the upper bound of every |score| / tau that the host knows, if asking a GPU would make it wait."""
        return self._known_bound if batch.queries.device.type == "cuda" else None

    @torch.no_grad()
    def _largest_score(
        self, batch: Candidates, passages: Tensor, log_temperature: Float[Tensor, ""], workers: WorkerGroup
    ) -> float:
        """Return an upper bound of every |score| / tau of the batch, also of embeddings that are cut (Cauchy-Schwarz).

        The one moment of a loss at which the processor waits for the GPU; embeddings of length one need none there.

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


# ---------------------------------------------------------------------------------------------------- nested embeddings


def check_widths(widths: tuple[int, ...], whole: int) -> None:
    """Raise `ConfigError` if a width of nested embeddings, the largest first, exceeds the whole width."""
    if widths and widths[0] > whole:
        raise ConfigError(
            f"asks for {widths[0]} components, but embeddings have {whole}",
            setting("matryoshka_dims"),
            f"give at most {whole}",
        )


def narrow_candidates(batch: Candidates, width: int, unit_length: bool) -> Candidates:
    """Return the same rows and candidates with their first components only; differentiable.

    Args:
        batch: the gathered batch, in working precision.
        width: number of components to keep.
        unit_length: normalise the cut embeddings to length one.
    """
    queries, embeddings = (
        functional.normalize(x[:, :width], dim=-1) if unit_length else x[:, :width].contiguous()
        for x in (batch.queries, batch.embeddings)
    )
    return replace(batch, queries=queries, embeddings=embeddings)


# ---------------------------------------------------------------------------------------------------------- regulariser


def distribution_distance(
    queries: Float[Tensor, "queries width"],
    candidates: Float[Tensor, "candidates width"],
    rows: int,
    workers: WorkerGroup,
) -> Float[Tensor, ""]:
    """Compute the mean squared distance between the queries and the candidates of the global batch.

    Args:
        queries: embeddings of this worker's queries.
        candidates: embeddings of every distinct candidate of the global batch.
        rows: number of queries over all workers.
        workers: the group.
    """
    centre = candidates.mean(0)
    spread = candidates.square().sum(1).mean()
    per_query = queries.square().sum(1) + spread - 2 * queries @ centre
    return sum_shares(per_query.sum() / rows, workers)
