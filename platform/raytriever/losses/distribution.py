"""The distribution regulariser: keep queries where the documents are (out-of-distribution paper, Eq. 3).

L_reg = (1/B) sum_q (1/N) sum_y ||q - y||^2, y over every distinct candidate of the global batch. Its
expectation is the squared linear-kernel MMD between queries and documents plus their variances. Written out
it needs two means and no score matrix: ||q||^2 + mean ||y||^2 - 2 q . mean(y), O((B + N) d).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from raytriever.losses.engine.workers import Workers, of_global_mean


def distribution_distance(
    queries: Float[Tensor, "queries width"],
    candidates: Float[Tensor, "candidates width"],
    rows: int,
    workers: Workers,
) -> Float[Tensor, ""]:
    """Mean squared distance between the global batch's queries and its candidates.

    Args:
        queries: this worker's queries.
        candidates: every distinct candidate of the global batch.
        rows: the number of queries over all workers.
        workers: the group.
    """
    centre = candidates.mean(0)
    spread = candidates.square().sum(1).mean()
    per_query = queries.square().sum(1) + spread - 2 * queries @ centre
    return of_global_mean(per_query.sum() / rows, workers)
