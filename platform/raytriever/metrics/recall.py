"""Recall@k: the share of a query's relevant documents among its k best."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.metrics.relevance import Ranking, Relevance


def recall(ranking: Ranking, relevance: Relevance, cutoff: int) -> Float64[ndarray, " queries"]:
    """Relevant documents found among the `cutoff` best over all relevant ones, per query; 0 without any."""
    found = (relevance.gains(ranking[:, :cutoff]) > 0).sum(1).astype(np.float64)
    counts = relevance.relevant_counts()
    return np.divide(found, counts, out=np.zeros_like(found), where=counts > 0)
