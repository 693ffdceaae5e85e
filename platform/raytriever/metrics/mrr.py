"""MRR@k: one over the rank of the first relevant document (Voorhees, 1999), 0 beyond the cutoff."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.metrics.relevance import Ranking, Relevance


def mrr(ranking: Ranking, relevance: Relevance, cutoff: int) -> Float64[ndarray, " queries"]:
    """The reciprocal rank of the first relevant document among the `cutoff` best, per query."""
    relevant = relevance.gains(ranking[:, :cutoff]) > 0
    if not relevant.shape[1]:
        return np.zeros(len(ranking))
    return np.where(relevant.any(1), 1 / (relevant.argmax(1) + 1.0), 0.0)
