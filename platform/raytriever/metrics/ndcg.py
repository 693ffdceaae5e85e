"""nDCG@k with linear gains, as trec_eval and BEIR compute it (Järvelin & Kekäläinen, 2002)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.metrics.relevance import Gains, Ranking, Relevance


def ndcg(ranking: Ranking, relevance: Relevance, cutoff: int) -> Float64[ndarray, " queries"]:
    """DCG over the ideal DCG, per query: sum_r gain_r / log2(r + 1), r = 1..cutoff; 0 without relevant documents."""
    reached = _dcg(relevance.gains(ranking[:, :cutoff]))
    ideal = _dcg(relevance.ideal_gains(cutoff))
    return np.divide(reached, ideal, out=np.zeros_like(reached), where=ideal > 0)


def _dcg(gains: Gains) -> Float64[ndarray, " queries"]:
    return gains.astype(np.float64) @ (1 / np.log2(np.arange(gains.shape[1]) + 2))
