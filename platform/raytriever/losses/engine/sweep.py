"""Loss over a score matrix that is never stored whole: row panels, one pass, three matrix products.

For each panel of rows (whole rows, so that every score is computed once):
1. scores = Q C^T into one reused buffer, in units of the temperature where the loss has one;
2. the loss adds the panel to its statistic and overwrites the buffer with dL/dscore;
3. dQ = dS C and dC += dS^T Q.

Gradients are ready when forward ends, as in a fused linear cross-entropy, and backward only scales them. Memory is
O((B + N) d) and one panel; a small batch is a single panel, that is, the whole matrix. The temperature's gradient
needs no pass of its own: a loss of S / tau has dL/dlog tau = -sum dL/dS * S = -<Q, dL/dQ>.

Panels share one buffer, sized by a byte budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.losses.engine.batch import Candidates

PANEL_BYTES = 64 << 20


def add_rows(
    total: Float[Tensor, "rows width"], rows: Int64[Tensor, " some"], values: Float[Tensor, "some width"]
) -> Float[Tensor, "rows width"]:
    """Add each value to its row of `total`, in the same order in every run, and return `total`."""
    if total.device.type == "cpu":
        return total.index_add_(0, rows, values)
    # `index_add_` on a GPU adds in any order. This sorts first. On a CPU it is the other way round.
    return total.index_put_((rows,), values, accumulate=True)


@dataclass(frozen=True)
class Panel:
    """Some whole rows of the score matrix.

    Args:
        rows: the slice of this worker's rows.
        queries: embeddings of the rows, with the scale of the scores.
        scores: scores of the rows; the loss overwrites them with its gradient.
        excluded: row within the panel, and column, of the pairs that are no negatives.
    """

    rows: slice
    queries: Float[Tensor, "rows width"]
    scores: Float[Tensor, "rows candidates"]
    excluded: tuple[Tensor, Tensor]

    def exclude(self, score: float) -> None:
        """Write a neutral score to every pair that is no negative."""
        self.scores[self.excluded] = score


class Panels:
    """Iterator over a worker's rows that computes the scores of each panel when it is reached."""

    def __init__(
        self,
        queries: Float[Tensor, "rows width"],
        embeddings: Float[Tensor, "candidates width"],
        candidates: Candidates,
    ) -> None:
        self._queries, self._embeddings = queries, embeddings
        row_bytes = len(embeddings) * queries.element_size()
        self.height = min(len(queries), max(1, PANEL_BYTES // row_bytes))
        self._rows, self._columns = candidates.excluded_rows, candidates.excluded_columns
        starts = torch.arange(0, len(queries) + self.height, self.height, device=self._rows.device)
        self._bounds = torch.searchsorted(self._rows, starts).tolist()

    def __iter__(self) -> Iterator[Panel]:
        buffer = self._queries.new_empty(self.height, len(self._embeddings))
        for number, start in enumerate(range(0, len(self._queries), self.height)):
            rows = slice(start, min(start + self.height, len(self._queries)))
            queries = self._queries[rows]
            scores = torch.mm(queries, self._embeddings.T, out=buffer[: len(queries)])
            excluded = slice(self._bounds[number], self._bounds[number + 1])
            yield Panel(rows, queries, scores, (self._rows[excluded] - start, self._columns[excluded]))


Sparse = tuple[Tensor, Tensor, Tensor]


@runtime_checkable
class Reduction(Protocol):
    """Loss of one batch, as the engine calls it.

    `tempered`: scores arrive divided by the temperature. `dense`: the reduction leaves a derivative of every score in
    the panel. `sparse`: further derivatives, as (rows, columns, derivatives).
    """

    tempered: bool
    dense: bool
    sparse: list[Sparse]

    def start(self, queries: Tensor, embeddings: Tensor) -> None:
        """Prepare for the first panel. Queries have the scale that the scores will have."""

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add a panel to the statistic, and replace its scores by derivatives of this worker's share."""

    def finish(self) -> Float[Tensor, ""]:
        """Return this worker's share of the loss, in double precision."""


def sweep(reduction: Reduction, candidates: Candidates, log_temperature: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Compute this worker's share of a loss, differentiable in queries, candidates and temperature."""
    share: Tensor = _Sweep.apply(
        candidates.queries,
        candidates.embeddings,
        log_temperature,
        candidates,
        reduction,
        torch.is_grad_enabled(),
    )
    return share


class _Sweep(torch.autograd.Function):
    """Loss and gradients in one pass; backward only scales."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        embeddings: Tensor,
        log_temperature: Tensor,
        candidates: Candidates,
        reduction: Reduction,
        differentiate: bool,
    ) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):
            scale = torch.exp(-log_temperature) if reduction.tempered else torch.ones_like(log_temperature)
            scaled = queries * scale
            reduction.start(scaled, embeddings)
            by_query, by_embedding = (
                torch.zeros_like(x) if differentiate else x.new_empty(0) for x in (queries, embeddings)
            )
            for panel in Panels(scaled, embeddings, candidates):
                reduction.reduce(panel, differentiate)
                if differentiate and reduction.dense:
                    torch.mm(panel.scores, embeddings, out=by_query[panel.rows])
                    by_embedding.addmm_(panel.scores.T, panel.queries)
            share = reduction.finish().to(queries.dtype)
            if not differentiate:
                return share
            for rows, columns, by_score in reduction.sparse:
                add_rows(by_query, rows, embeddings[columns] * by_score[:, None])
                add_rows(by_embedding, columns, scaled[rows] * by_score[:, None])
            by_query *= scale
            by_temperature = -(by_query * queries).sum() * reduction.tempered
            ctx.save_for_backward(by_query, by_embedding, by_temperature)
        return share

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_query, by_embedding, by_temperature = ctx.saved_tensors
        return by_query * grad, by_embedding * grad, by_temperature * grad, None, None, None
