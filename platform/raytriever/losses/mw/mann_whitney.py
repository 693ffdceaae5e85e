"""Mann-Whitney loss (AUC paper, Eq. 2 and Lemma 2 as means; Eq. 3 as `sum`).

    scores = queries @ passages.T / tau                                         # [B, C], of the batch of all workers
    pairs = scores[is_negative][None, :] - scores[is_positive][:, None]         # [P, N], across queries
    L = softplus(pairs).mean()                                                  # or .sum() / B

This module computes L, its derivatives and the AUC without a list of the pairs. The scores of the positives are few,
and known before the pass over the score matrix. The pass reads the derivative of every negative in a table of G' (see
`grid`), and adds the negative to the sums of its subcell. The loss needs only these sums, added up over panels and
workers. The loss, the derivatives of the positives and the AUC are computed from them.

The AUC (AUC paper, section 3.1) comes from the same sums. Pairs in different subcells (a sixteenth of tau wide) are
counted exactly. A pair within one subcell adds one half plus the difference of the mean positions. This is exact for
equal scores, and for densities that are linear within the subcell.

`cpu_kernel` has the pass for a CPU; `cuda_kernel` has that for a GPU. `TensorWalk` is the pass in PyTorch, for other
cases. Every sum has a fixed order, or is the same in any order. So the same scores give the same loss, bit by bit.

`MWReduction` is the loss of the global batch. The workers exchange the positives' scores, one bound on all scores, and
one grid of sums whose size does not depend on the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.batch_and_temperature import Candidates
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.mw.grid import (
    NODES,
    SUBCELLS,
    TERMS,
    Grid,
    build_grid,
    chebyshev,
    fill_empty,
    kernel_sums,
    kernel_sums_at_positives,
    lagrange,
    refinement,
)
from raytriever.losses.score_matrix import Panel, PartialLoss, Reduction, add_rows, reduce_scores

if TYPE_CHECKING:
    from raytriever.losses.mw.cuda_kernel import CudaKernels, CudaPositives

BLOCK_SCORES = 1 << 22  # number of scores that `TensorWalk` processes together
# Largest number of cells of an even grid for which a GPU uses dense matrices over all pairs of nodes (268 MB or less).
DENSE_CELLS = 512
# `TensorWalk` splits a term into two integers of this many bits. The other bits of an int64 hold the sum of 2^36 terms.
HALF_BITS = 26


class TensorWalk:
    """Pass over panels of scores, made of PyTorch operations.

    The sums are integers, because a GPU's atomic additions have no fixed order. Each term is rounded to 2^-52."""

    def __init__(self, grid: Grid, cubics: Tensor, scale: float) -> None:
        self._grid, self._scale = grid, scale
        self._cubics = cubics.reshape(-1, TERMS)
        self._sums = torch.zeros(grid.cells * SUBCELLS, 2 * TERMS, dtype=torch.int64, device=cubics.device)

    def add(self, scores: Tensor, derivatives: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Add a panel, without the excluded pairs (rows, columns). `derivatives` may be the tensor `scores`."""
        height = max(1, BLOCK_SCORES // scores.shape[1])
        # Pairs of other blocks are written to an extra row. Dropping them would make the CPU wait for the GPU.
        excluded = torch.zeros(height + 1, scores.shape[1], dtype=torch.bool, device=scores.device)
        for start in range(0, len(scores), height):
            block = slice(start, start + height)
            is_in_block = (rows >= start) & (rows < start + height)
            excluded.zero_()
            excluded.index_put_((torch.where(is_in_block, rows - start, height), columns), is_in_block.new_ones(()))
            subcell, x = self._grid.locate(scores[block].double() * self._scale, SUBCELLS)
            terms = torch.stack([torch.ones_like(x), x, x * x, x * x * x], -1)
            terms.masked_fill_(excluded[: len(x), :, None], 0)
            derivatives[block] = (self._cubics[subcell] * terms).sum(-1)
            fixed = (terms.flatten(0, 1) * 2.0 ** (2 * HALF_BITS)).round_().long()
            halves = torch.cat([fixed >> HALF_BITS, fixed & ((1 << HALF_BITS) - 1)], 1)
            self._sums.index_add_(0, subcell.flatten(), halves)

    def sums(self) -> Tensor:
        """Return the sums of 1, x, x^2, x^3 over the scores in each subcell; see `Walk`."""
        high, low = self._sums.double().split(TERMS, 1)
        return high * 2.0**-HALF_BITS + low * 2.0 ** (-2 * HALF_BITS)


def auc(
    positive_count: Float[Tensor, " subcells"],
    positive_sum: Float[Tensor, " subcells"],
    negative_count: Float[Tensor, " subcells"],
    negative_sum: Float[Tensor, " subcells"],
) -> Float[Tensor, ""]:
    """Compute the AUC from the number of scores and the sum of their positions (0 to 1) in each subcell."""
    below = negative_count.cumsum(0) - negative_count
    pairs = positive_count * negative_count
    lead = negative_count * positive_sum - positive_count * negative_sum
    won = torch.minimum((pairs / 2 + lead).clamp(min=0), pairs)
    return ((positive_count * below).sum() + won.sum()) / (positive_count.sum() * negative_count.sum())


@runtime_checkable
class Walk(Protocol):
    """Pass over panels of scores. It sums the negatives and writes their derivatives."""

    def add(self, scores: Tensor, derivatives: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Add a panel, without the excluded pairs (rows, columns)."""

    def sums(self) -> Tensor:
        """Return the sums of 1, x, x^2, x^3 over the scores in each subcell. x is a score's position in its subcell."""


@dataclass(frozen=True)
class PairwiseResult:
    """Loss, derivatives and AUC, computed from the sums over the negatives."""

    partial: Float[Tensor, ""]  # contribution of this worker's negatives to the loss
    # Derivative with respect to each positive's score in units of tau, from all workers' negatives; 0 in empty slots.
    by_positive: Float[Tensor, " positives"]
    auc: Float[Tensor, ""]  # fraction of all pairs in the right order


class PairwiseSums:
    """Mann-Whitney loss between fixed positives and negatives that arrive in panels.

    Args:
        positives: score of every positive in the batch, in units of tau, in double precision; NaN in empty slots.
        lowest, highest: bounds of all scores.
        weight: weight of one pair.
        dtype: precision of the scores.

    Raises:
        LossInputError: the magnitude of `lowest` or `highest` exceeds `grid.LARGEST_SCORE`.
    """

    def __init__(
        self, positives: Float[Tensor, " positives"], lowest: float, highest: float, weight: float, dtype: torch.dtype
    ) -> None:
        self._weight, self._refinement = weight, refinement(positives.device)
        self._grid = build_grid(positives, lowest, highest, dtype)
        self._kernels = _kernels_of(self._grid, positives.device, dtype)
        self._on_gpu: CudaPositives | None = None
        if self._kernels is not None and self._grid.cells <= DENSE_CELLS:
            from raytriever.losses.mw.cuda_kernel import CudaPositives

            self._on_gpu = CudaPositives(self._grid, positives, weight, self._kernels)
            self._total, self._slope = self._on_gpu.total, self._on_gpu.slope
            return
        # An empty slot is a positive of weight 0.
        self._is_used = (~positives.isnan()).double()
        self._positives = fill_empty(positives)
        self._cells, along = self._grid.locate(self._positives)
        weights = lagrange(2 * along - 1, chebyshev(NODES, positives.device))
        self._weights = weights * self._is_used[:, None]
        by_cell = add_rows(weights.new_zeros(self._grid.cells, NODES), self._cells, self._weights)
        total, slope = kernel_sums(self._grid, by_cell)
        self._total, self._slope = total * weight, slope * weight

    def walk(self, scale: float = 1.0) -> Walk:
        """Return a pass over the negatives. Their scores times `scale` are in units of tau.

        The pass writes derivatives with respect to the unscaled scores."""
        slope = self._slope if scale == 1 else self._slope * scale
        if self._kernels is not None:
            from raytriever.losses.mw.cuda_kernel import CudaWalk

            return CudaWalk(self._grid, slope, scale, self._kernels)
        cubics = slope @ self._refinement.T
        if cubics.device.type != "cpu":
            return TensorWalk(self._grid, cubics, scale)
        from raytriever.losses.mw.cpu_kernel import CompiledWalk

        return CompiledWalk(self._grid, cubics, scale)

    def result(self, own: Float[Tensor, "subcells terms"], all: Float[Tensor, "subcells terms"]) -> PairwiseResult:
        """Compute loss, derivatives and AUC from this worker's sums and the sums over all workers."""
        if self._on_gpu is not None:
            return PairwiseResult(*self._on_gpu.result(own, all))
        # Sum each dimension by itself: PyTorch divides one large sum between threads, whose number changes the result.
        partial = (self._to_nodes(own) * self._total).sum(0).sum()
        at_nodes = kernel_sums_at_positives(self._grid, self._to_nodes(all), self._cells)
        by_positive = -(at_nodes * self._weights).sum(1) * self._weight
        subcell, x = self._grid.locate(self._positives, SUBCELLS)
        positives = add_rows(all.new_zeros(len(all), 2), subcell, torch.stack([self._is_used, self._is_used * x], 1))
        area = auc(positives[:, 0], positives[:, 1], all[:, 0], all[:, 1])
        return PairwiseResult(partial, by_positive, area)

    def _to_nodes(self, sums: Float[Tensor, "subcells terms"]) -> Float[Tensor, "cells nodes"]:
        return sums.reshape(-1, SUBCELLS * TERMS) @ self._refinement


def _kernels_of(grid: Grid, device: torch.device, dtype: torch.dtype) -> CudaKernels | None:
    """Return the CUDA kernels. Return None if the device, the grid or the precision does not support them."""
    if device.type != "cuda" or grid.first_subcell is None or dtype != torch.float32:
        return None
    # Import the module on first use: importing a loss must not start a compiler.
    from raytriever.losses.mw.cuda_kernel import kernels_of

    return kernels_of(device)


# ---------------------------------------------------------------------------------------------- reduction of a batch


PairReduction = Literal["mean", "sum"]


def pair_weight(reduction: PairReduction, positives: int, negatives: int, queries: int) -> float:
    """Return the weight of a pair in the mean over pairs (Eq. 2), or in the sum divided by `queries` (Eq. 3)."""
    return 1 / (positives * negatives) if reduction == "mean" else 1 / queries


def mw(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> PartialLoss:
    """Compute the loss that compares every positive with every negative of the batch."""
    reduction = MWReduction(batch, workers, "sum" if config.reduction == "sum" else "mean")
    return reduce_scores(reduction, batch, config.loss_precision)


class MWReduction(Reduction):
    """Reduction of one batch, panel by panel, to the Mann-Whitney loss."""

    def __init__(self, candidates: Candidates, workers: WorkerGroup, reduction: PairReduction) -> None:
        super().__init__()
        self._candidates, self._workers, self._reduction = candidates, workers, reduction
        self._sums: PairwiseSums
        self._walk: Walk

    def start(self, queries: Tensor, embeddings: Tensor) -> None:
        """Tabulate the kernel sums that depend on the positives."""
        own = positive_scores(queries, embeddings, self._candidates)
        positives = self._workers.all_gather(own.flatten()).double()
        # Rounding to bf16 lengthens each operand by a factor of at most 1 + 2^-9.
        bound = self._candidates.largest_score * (1 + 2**-7)
        relevance = self._candidates.relevance
        # A guide may have masked every negative; then the loss is 0.
        negatives = max(1, relevance.negatives)
        weight = pair_weight(self._reduction, relevance.positive_pairs, negatives, relevance.rows)
        self._sums = PairwiseSums(positives, -bound, bound, weight, own.dtype)
        self._walk = self._sums.walk()

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Sum the panel's negatives, and write the derivatives of its scores."""
        self._walk.add(panel.scores, panel.derivatives, *panel.excluded)

    def finish(self) -> Float[Tensor, ""]:
        """Return this worker's part of the mean over all pairs."""
        own = self._walk.sums()
        result = self._sums.result(own, own if self._workers.size == 1 else self._workers.all_reduce(own))
        columns = self._candidates.relevance.slots
        first = self._workers.rank * columns.numel()
        by_score = result.by_positive[first : first + columns.numel()].to(self._candidates.queries.dtype)
        rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)
        # The derivative of an empty slot is 0, so any column is valid for it.
        self.sparse.append((rows.flatten(), columns.flatten(), by_score))
        self.statistics["batch_auc"] = result.auc.to(torch.float32)
        return result.partial


def positive_scores(
    queries: Float[Tensor, "rows width"], embeddings: Float[Tensor, "candidates width"], candidates: Candidates
) -> Float[Tensor, "rows positives"]:
    """Return the scores of this worker's positives. Empty slots are NaN."""
    relevance, precise = candidates.relevance, queries.to(candidates.queries.dtype)
    scores = [(precise * embeddings[column]).sum(1, keepdim=True) for column in relevance.slots.T]
    table = scores[0] if len(scores) == 1 else torch.cat(scores, 1)
    return table if relevance.is_full else table.masked_fill(~relevance.is_positive, torch.nan)
