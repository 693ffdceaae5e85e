"""Row losses over a score matrix that is never whole: row panels, one pass, three matrix products.

For each panel of rows (a row's scores against all candidates are complete in it, so nothing is visited
twice):
1. scores = (Q / tau) C^T into one reused buffer, -inf where a pair is no negative;
2. the row's statistic of its negatives, then the loss and its derivatives from that and the positives'
   scores;
3. the buffer becomes dL/dscore in place, and dQ = dS C / tau, dC += dS^T Q / tau.
Gradients are ready when forward ends, as in a fused linear cross-entropy. Memory is O((B + N) d) and one
panel; a small batch is a single panel, that is, the whole matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.candidates import Candidates
from raytriever.losses.panels import Panels
from raytriever.losses.rows import RowLoss


def row_loss(
    loss: RowLoss, candidates: Candidates, positives: Tensor, log_temperature: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """This worker's share of the mean over rows, differentiable in queries, candidates, temperature."""
    want = torch.is_grad_enabled()
    value: Tensor = _RowLoss.apply(
        candidates.queries, candidates.embeddings, log_temperature, loss, candidates, positives, want
    )
    return value


class _RowLoss(torch.autograd.Function):
    """The loss and its gradients in one pass; backward only scales."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        embeddings: Tensor,
        log_temperature: Tensor,
        loss: RowLoss,
        candidates: Candidates,
        positives: Tensor,
        want: bool,
    ) -> Tensor:
        inverse = torch.exp(-log_temperature.to(queries.dtype))
        panels = Panels(queries * inverse, embeddings, candidates)
        grad_queries = torch.empty_like(queries) if want else None
        grad_candidates = torch.zeros_like(embeddings) if want else None
        total = torch.zeros((), dtype=torch.float64, device=queries.device)
        for panel in panels:
            columns = positives[panel.rows]
            held = columns >= 0
            local = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)[held]
            scores = torch.zeros(columns.shape, dtype=queries.dtype, device=queries.device)
            scores[held] = panel.scores[local, columns[held]]
            panel.exclude()
            peak = panel.scores.amax(1)
            none = peak == -torch.inf
            panel.scores.sub_(peak.masked_fill(none, 0)[:, None]).exp_()
            mass = panel.scores.sum(1)
            statistic = (peak + mass.log()).masked_fill(none, -torch.inf)
            with torch.enable_grad():
                statistic.requires_grad_()
                scores.requires_grad_()
                values = loss.value(statistic, scores, held).double().sum() / candidates.rows
                by_statistic, by_positive = torch.autograd.grad(values, (statistic, scores))
            total += values.detach()
            if grad_queries is None or grad_candidates is None:
                continue
            panel.scores.mul_((by_statistic / mass.masked_fill(none, 1))[:, None])
            panel.scores[local, columns[held]] = by_positive[held]
            torch.mm(panel.scores, embeddings, out=grad_queries[panel.rows])
            grad_candidates.addmm_(panel.scores.T, panel.queries)
        if grad_queries is not None and grad_candidates is not None:
            grad_queries *= inverse
            ctx.save_for_backward(grad_queries, grad_candidates, -(grad_queries * queries).sum())
        return total.to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_queries, grad_candidates, grad_temperature = ctx.saved_tensors
        return (
            grad_queries * grad[0],
            grad_candidates * grad[0],
            grad_temperature * grad[0],
            None,
            None,
            None,
            None,
        )
