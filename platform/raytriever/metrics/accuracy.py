"""Acc@k: whether the answer stands in one of the k best passages (Karpukhin et al., 2020, DPR: top-k accuracy).

    Acc@k = [one of the k best passages holds an answer string]

No judgement is asked: any passage with the answer counts. Whether it has it is the caller's to find.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from raytriever.metrics.relevance import PerQuery


def accuracy(hits: Bool[ndarray, "queries depth"], cutoff: int) -> PerQuery:
    """1 where one of the `cutoff` best holds the answer, else 0.

    Args:
        hits: whether the passage of each rank holds an answer of its query; False where there is no passage.
        cutoff: how many passages are looked at.
    """
    return np.any(hits[:, :cutoff], axis=1).astype(np.float64)
