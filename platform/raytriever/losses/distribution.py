"""Distribution regulariser: keeps queries near the documents (out-of-distribution paper, Eq. 3).

L_reg = (1/B) sum_q (1/N) sum_y ||q - y||^2, y over every distinct candidate of the global batch. Its
expectation is the squared linear-kernel MMD between queries and documents plus their variances. Written out
it needs two means and no score matrix: ||q||^2 + mean ||y||^2 - 2 q . mean(y), O((B + N) d).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from raytriever.losses.engine.workers import Workers, sum_shares


def distribution_distance(
    queries: Float[Tensor, "queries width"],
    candidates: Float[Tensor, "candidates width"],
    rows: int,
    workers: Workers,
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
