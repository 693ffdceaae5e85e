"""Loss module of training.

It checks the embeddings, gathers the passages of all workers, and computes the loss and the metrics to log. On request
it adds the losses of nested embeddings (`nested_embeddings`) and the distribution regularizer.

The distribution regularizer keeps queries near the documents (out-of-distribution paper, Eq. 3).

    L_reg = (1/B) sum_q (1/N) sum_y ||q - y||^2,   where y runs over every distinct candidate of the global batch.

Its expectation is the squared linear-kernel MMD between queries and documents plus their variances. The expanded form
||q||^2 + mean ||y||^2 - 2 q . mean(y) needs two means and O((B + N) d) operations, but not the score matrix. It is
computed only for the full embedding, whose squared distance includes the components of truncated embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from raytriever.core.errors import LossInputError
from raytriever.losses.batch_and_temperature import Candidates, RowRelevance, check_batch
from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.losses.false_negative_mask import GuideEmbeddings, mask_false_negatives
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.nested_embeddings import check_dims, narrow_candidates
from raytriever.losses.score_matrix import ScoreLoss

# Upper bound of the length of a normalized embedding. Rounding to bf16 can lengthen it at two points: when it is
# normalized, and when it is sent to other workers.
UNIT = 1 + 2.0**-7
# Below this temperature, mw places its grid around the positives. Then the CPU must wait for the GPU anyway, so a bound
# that is known in advance has no advantage.
SMALLEST_KNOWN_TEMPERATURE = 2.0**-9
# Adam changes a parameter by about the learning rate in a step. For 2e-5, a step changes the bias of `bce` by 0.02 tau.
BIAS_UNIT = 1000.0


@dataclass(frozen=True)
class LossOutput:
    """Loss of the global batch, and metrics to log."""

    value: Float[Tensor, ""]  # the loss; equal on every worker, differentiable
    statistics: dict[str, Float[Tensor, ""]]  # scalars to log, by name; without gradient


class Loss(nn.Module):
    """Loss over the score matrix of the global batch, plus the distribution regularizer.

    Args:
        scores: function that computes this worker's partial loss of a batch; see `build_loss`.
        unit_length: True if embeddings have length one. Then truncated embeddings are normalized again.
    """

    def __init__(self, config: LossConfig, scores: ScoreLoss, unit_length: bool = False) -> None:
        super().__init__()
        self.config = config
        self.unit_length = unit_length
        self._scores = scores
        self._dims = config.dims
        self._squares_scores = "margin-mse" in config.terms
        is_known = unit_length and not config.learn_temperature and config.temperature >= SMALLEST_KNOWN_TEMPERATURE
        self._known_bound = UNIT**2 / config.temperature if is_known else None
        # Use double precision, so that a float64 batch gets the exact temperature.
        log_temperature = torch.tensor(config.temperature, dtype=torch.float64).log()
        if config.learn_temperature:
            # It has one dimension of size one, because DeepSpeed cannot send a parameter without dimensions.
            self.log_temperature = nn.Parameter(log_temperature.float()[None])
        else:
            self.register_buffer("log_temperature", log_temperature, persistent=False)
        if "bce" in config.terms:
            self.bias = nn.Parameter(torch.zeros(1))

    def bias_of(self, log_temperature: Float[Tensor, ""]) -> Float[Tensor, ""] | None:
        """Return the bias of `bce` in units of tau; None without `bce`.

        The bias is minus the threshold: the score at which a pair has the probability 1/2. The trained parameter is
        the offset from the configured threshold, in units of `BIAS_UNIT` times the configured temperature. Its gradient
        is divided by `BIAS_UNIT`; otherwise it would dominate the norm by which gradients are clipped."""
        if "bce" not in self.config.terms:
            return None
        bias = self.bias.to(log_temperature).reshape(())
        moved = bias + (bias * (BIAS_UNIT - 1)).detach()
        return (moved * self.config.temperature - self.config.threshold) * torch.exp(-log_temperature)

    def forward(
        self,
        queries: Float[Tensor, "queries dim"],
        passages: Float[Tensor, "passages dim"],
        relevance: RowRelevance,
        workers: WorkerGroup = ALONE,
        guide: GuideEmbeddings | None = None,
    ) -> LossOutput:
        """Compute the loss of one step.

        Args:
            queries: embeddings of this worker's queries.
            passages: embeddings of this worker's passages: positives and hard negatives.
            relevance: positives of the queries, and pairs that are not negatives, on the device of the embeddings.
            workers: the data-parallel group. All workers pass equal numbers of queries and passages.
            guide: the guide's embeddings of the same texts; None if the settings name no guide.

        Raises:
            LossInputError: shapes or types do not agree, an embedding is not finite, or `guide` is missing. Embeddings
                of length one are not checked on a GPU, because the check would wait for the GPU. The loss is NaN if an
                embedding is not finite.
        """
        check_batch(queries, passages, relevance)
        if (guide is None) != (self.config.guide is None):
            missing = "the embeddings of the guide are missing" if guide is None else "the settings name no guide"
            raise LossInputError(missing, "guide", "give both the setting and the embeddings, or neither")
        whole = queries.shape[1]
        check_dims(self._dims, whole)
        masking = dict[str, Tensor]()
        # The gradient of a passage returns to the worker that encoded it.
        embeddings = relevance.keep(workers.all_gather(passages))
        if guide is not None:
            margin = self.config.guide_margin or 0.0
            relevance, masking = mask_false_negatives(relevance, guide, margin, workers)
        # Scores are computed in float32 or higher precision, even if the encoder's precision is lower.
        precise = torch.promote_types(queries.dtype, torch.float32)
        log_temperature = self.log_temperature.to(queries.device, precise).reshape(())
        bias = self.bias_of(log_temperature)
        batch = Candidates(queries.to(precise), embeddings.to(precise), relevance, log_temperature, bias=bias)
        bound = self._bound_without_wait(batch)
        if bound is None:
            bound = self._largest_score(batch, passages, workers)
        batch = replace(batch, largest_score=bound)
        values, statistics = list[Tensor](), {**masking, "temperature": log_temperature.detach().exp()}
        dims = [dim for dim in self._dims if dim < whole]
        for dim in (whole, *dims):
            truncated = batch if dim == whole else narrow_candidates(batch, dim, self.unit_length)
            own = self._scores(self.config, truncated, workers)
            partial = own.partial
            if self._bound_without_wait(truncated) is not None:
                # These embeddings were not checked. If one has NaN or infinity, its product with 0 makes the loss NaN.
                partial = torch.add(
                    partial, truncated.queries.detach().sum() + truncated.embeddings.detach().sum(), alpha=0
                )
            values.append(sum_over_workers(partial, workers))
            metrics = {
                **own.statistics,
                "query_positive_distance": query_positive_distance(truncated, workers),
                "query_positive_mmd": query_positive_mmd(truncated, workers),
            }
            if "batch_auc" not in metrics:
                metrics["batch_auc"] = batch_auc(truncated, workers)
            statistics |= {name if dim == whole else f"{name}_at_{dim}": at for name, at in metrics.items()}
            if dims:
                statistics[f"loss_at_{dim}"] = values[-1].detach()
        value = sum(values[1:], values[0])
        if self.config.distribution_weight:
            distance = distribution_distance(batch.queries, batch.embeddings, batch.relevance.rows, workers)
            statistics["distribution_distance"] = distance.detach()
            value = value + self.config.distribution_weight * distance
        return LossOutput(value, statistics)

    def _bound_without_wait(self, batch: Candidates) -> float | None:
        """Return the bound of |score| / tau that is known without waiting for the GPU; None on a CPU, or if unknown."""
        return self._known_bound if batch.queries.device.type == "cuda" else None

    @torch.no_grad()
    def _largest_score(self, batch: Candidates, passages: Tensor, workers: WorkerGroup) -> float:
        """Return an upper bound of |score| / tau over the batch, by Cauchy-Schwarz. It covers truncated embeddings.

        Nowhere else does a loss make the CPU wait for the GPU. For unit-length embeddings on a GPU, this is not called.

        Raises:
            LossInputError: an embedding is not finite, or a score or squared distance may overflow in some order of
                summation. All workers raise the error.
        """
        both = (batch.queries, batch.embeddings)
        numbers = [torch.linalg.vector_norm(x, torch.inf).double() for x in both]
        numbers += [torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).max() for x in both]
        numbers.append(batch.log_temperature.exp().double())
        numbers += [(~torch.isfinite(x).all(1)).sum().double() for x in (batch.queries, passages)]
        *largest, longest_query, longest_passage, temperature, spoilt_queries, spoilt_passages = workers.all_reduce(
            torch.stack(numbers), "max"
        ).tolist()
        if spoilt_queries or spoilt_passages:
            raise _not_finite(batch.queries, passages)
        dim, most = batch.queries.shape[1], torch.finfo(batch.queries.dtype).max
        scores = largest[0] * largest[1] * dim / min(temperature, 1.0) if temperature else torch.inf
        distances = (largest[0] + largest[1]) ** 2 * dim
        if not max(scores, distances) < most or (self._squares_scores and not 2 * scores < most**0.5):
            raise LossInputError(
                f"scores overflow: the largest components of query and passage embeddings are {largest[0]:.3g} and "
                f"{largest[1]:.3g}, and the temperature is {temperature:.3g}",
                remedy="check whether the encoder has diverged, or whether training brought the temperature near 0",
            )
        longest = longest_query * longest_passage
        # Truncated embeddings are normalized again, so their scores can reach 1 even if `longest` is less.
        return (max(longest, 1.0) if self.unit_length else longest) / temperature


def _not_finite(queries: Tensor, passages: Tensor) -> LossInputError:
    where = "another worker has embeddings that hold NaN or infinity"
    for name, embeddings in (("passage", passages), ("query", queries)):
        finite = torch.isfinite(embeddings).all(1)
        if not bool(finite.all()):
            where = (
                f"{int((~finite).sum())} of {len(finite)} {name} embeddings hold NaN or infinity, "
                f"the first in row {int((~finite).nonzero()[0])}"
            )
    return LossInputError(where, remedy="check whether the encoder has diverged, or whether half precision overflows")


# ---------------------------------------------------------------------------------------------------------- regularizer


def distribution_distance(
    queries: Float[Tensor, "queries dim"], candidates: Float[Tensor, "candidates dim"], rows: int, workers: WorkerGroup
) -> Float[Tensor, ""]:
    """Compute the mean squared distance between the queries and the candidates of the global batch."""
    center = candidates.mean(0)
    spread = candidates.square().sum(1).mean()
    per_query = queries.square().sum(1) + spread - 2 * queries @ center
    return sum_over_workers(per_query.sum() / rows, workers)


def sum_over_workers(partial: Float[Tensor, ""], workers: WorkerGroup) -> Float[Tensor, ""]:
    """Return the sum of all workers' partial losses. Its gradient is `workers.size` times that of the partial loss.

    Data parallelism averages the gradients over the workers, which divides by `workers.size` again. So parameters get
    the gradient of the sum."""
    if workers.size == 1:
        return partial
    scaled = partial * workers.size
    return workers.all_reduce(partial) + (scaled - scaled.detach())


# ---------------------------------------------------------------------------------------------------------- statistics
#
# The AUC is computed here for losses that do not compute it themselves. Only the positives, which are few, are sorted.
# Then each negative is located among them. To limit the cost, a large batch is sampled at evenly spaced queries. The
# sample is the same for any number of workers. The drift of queries is measured as a distance, and as the squared
# maximum mean discrepancy of a linear kernel (out-of-distribution paper, section 2 and Eq. 2).

QUERIES = 32


@torch.no_grad()
def batch_auc(candidates: Candidates, workers: WorkerGroup, most: int = QUERIES) -> Float[Tensor, ""]:
    """Compute the AUC over all pairs of the global batch. A pair of equal scores adds one half.

    Args:
        most: largest number of queries. A larger batch is sampled at about this many evenly spaced queries.

    Returns:
        The fraction of pairs in the right order, 0 to 1, equal on every worker. It is NaN if no sampled query has a
        negative.
    """
    relevance, count = candidates.relevance, len(candidates.queries)
    step = -(-count * workers.size // most)
    first = -workers.rank * count % step
    queries, columns = candidates.queries[first::step], relevance.positives[first::step]
    scores = queries @ candidates.embeddings.T
    own = scores.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, torch.nan)
    # Pairs of rows that are not sampled are written to one extra row, which is dropped below.
    offsets = relevance.excluded_rows - first
    rows = torch.where((offsets >= 0) & (offsets % step == 0), offsets // step, len(queries))
    is_negative = torch.ones(len(queries) + 1, scores.shape[1], dtype=torch.bool, device=scores.device)
    is_negative.index_put_((rows, relevance.excluded_columns), torch.zeros_like(rows[:1], dtype=torch.bool))

    # Workers may sample different numbers of rows. All send tensors of the same length, padded with NaN.
    sent = own.new_full((-(-count // step) * columns.shape[1],), torch.nan)
    sent[: own.numel()] = own.flatten()
    gathered = workers.all_gather(sent)
    positives = gathered.nan_to_num(nan=torch.inf).sort().values
    # A pair counts as wrong if the negative scores above the positive, and as half wrong if their scores are equal.
    lost = torch.searchsorted(positives, scores) + torch.searchsorted(positives, scores, right=True)
    is_negative = is_negative[: len(queries)]
    sums = torch.stack([(lost * is_negative).sum(dtype=torch.float64) / 2, is_negative.sum(dtype=torch.float64)])
    wrong, total = workers.all_reduce(sums)
    return (1 - wrong / (total * (~gathered.isnan()).sum())).to(queries.dtype)


@torch.no_grad()
def query_positive_distance(candidates: Candidates, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Compute the mean Euclidean distance between a query and its positives, over all pairs of the global batch."""
    total = sum(
        _used(torch.linalg.vector_norm(candidates.queries - positives, dim=1), is_used).sum(dtype=torch.float64)
        for positives, is_used in _positives(candidates)
    )
    assert isinstance(total, Tensor)
    return (workers.all_reduce(total) / candidates.relevance.positive_pairs).to(candidates.queries.dtype)


@torch.no_grad()
def query_positive_mmd(candidates: Candidates, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Compute ||mean query - mean positive||^2 over the global batch. The second mean is over all positives."""
    relevance = candidates.relevance
    apart = candidates.queries.sum(0, dtype=torch.float64) / relevance.rows
    for positives, is_used in _positives(candidates):
        apart.sub_(_used(positives, is_used).sum(0, dtype=torch.float64), alpha=1 / relevance.positive_pairs)
    apart = workers.all_reduce(apart)
    return (apart @ apart).to(candidates.queries.dtype)


def _positives(candidates: Candidates) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield, for each slot, the positives' embeddings of all rows, and a mask of filled slots (None: all filled)."""
    relevance = candidates.relevance
    masks = [None] * relevance.slots.shape[1] if relevance.is_full else relevance.is_positive.T
    for columns, is_used in zip(relevance.slots.T, masks, strict=True):
        yield candidates.embeddings[columns], is_used


def _used(values: Tensor, is_used: Tensor | None) -> Tensor:
    return values if is_used is None else values * is_used.reshape(-1, *[1] * (values.ndim - 1))
