"""How far queries lie from the documents, as clouds: the squared maximum mean discrepancy of a linear kernel.

    MMD^2(Q, Y)      = |mean q - mean y|^2        (out-of-distribution paper, Eq. 2)
    MMD^2({q}, Y)    = |q - mean y|^2             (its scores of single queries, Figure 1)

The training's regulariser (`losses/distribution.py`) lowers the mean of the second, up to the documents' own spread;
`losses/distances.py` tells the first during training. Passages held out of the documents show what both are where
there is no gap: the first is then near the spread of the documents divided by the number of passages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray


@dataclass(frozen=True)
class Gap:
    """Both clouds beside the documents.

    Args:
        queries, held_out: MMD^2 of the whole clouds.
        query_scores, held_out_scores: of each query, and of each passage held out.
    """

    queries: float
    held_out: float
    query_scores: Float64[ndarray, " queries"]
    held_out_scores: Float64[ndarray, " passages"]

    @property
    def beyond(self) -> float:
        """The share of pairs of a query and a held-out passage in which the query's score is the higher: 0.5 where the
        scores tell no difference."""
        ordered = np.sort(self.held_out_scores)
        below = np.searchsorted(ordered, self.query_scores, "left") + np.searchsorted(
            ordered, self.query_scores, "right"
        )
        return float(below.mean() / 2 / len(ordered))


def gap(
    documents: Float32[ndarray, "documents width"],
    queries: Float32[ndarray, "queries width"],
    held_out: Float32[ndarray, "passages width"],
) -> Gap:
    """Measure both clouds; each has at least one row."""
    centre = documents.mean(0, dtype=np.float64)

    def cloud(vectors: ndarray) -> tuple[float, ndarray]:
        return float(np.square(vectors.mean(0, dtype=np.float64) - centre).sum()), np.square(vectors - centre).sum(1)

    (of_queries, scores), (of_passages, passage_scores) = cloud(queries), cloud(held_out)
    return Gap(of_queries, of_passages, scores, passage_scores)


def query_positive_distance(
    queries: Float32[ndarray, "queries width"],
    documents: Float32[ndarray, "documents width"],
    of: Int64[ndarray, " pairs"],
    to: Int64[ndarray, " pairs"],
) -> float:
    """The mean Euclidean distance between queries and their positives, what training watches."""
    return float(np.linalg.norm(queries[of].astype(np.float64) - documents[to], axis=1).mean())
