"""Confidences that a user can compute from the ranked scores of a query alone; higher is more confident.

- `score`: the highest score, s_1. It is the only one whose threshold means the same for all queries by design.
- `margin`: s_1 - s_2.
- `softmax`: the largest probability of a softmax over the ranked scores, in units of the temperature.
- `entropy`: minus the entropy of this softmax.
- `deviation`: standard deviation of the scores (Pérez-Iglesias & Araujo, 2010; `std` of MTEB).
- `nqc`: normalised query commitment, the standard deviation divided by the score of the corpus (Shtok et al., 2012).
- `wig`: weighted information gain, the mean of the five highest scores minus the score of the corpus (Zhou & Croft,
  2007), without the factor for the length of a query, as for dense retrievers (Faggioli et al., 2023).

`cross-encoder`, the score that a cross-encoder gives the best document, is a further confidence where one is named.

The ranking is all that is stored, so the mean of its scores replaces the score of the corpus in `nqc` and `wig`.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy.special import logsumexp

SCORE, MARGIN, DEVIATION = "score", "margin", "deviation"
CROSS_ENCODER = "cross-encoder"
DEPTH = 100  # ranked scores of a query
_WIG_DEPTH = 5


def confidences(
    scores: Float64[ndarray, "queries depth"], temperature: float
) -> dict[str, Float64[ndarray, " queries"]]:
    """Compute every confidence of each query.

    Args:
        scores: ranked scores, the highest first. Missing ones are NaN at the end: BM25 ranks no document without a
            term of the query, and such a document scores 0.
        temperature: unit of the scores in the softmax.
    """
    filled = np.nan_to_num(scores, nan=0.0)
    logarithms = filled / temperature
    logarithms -= logsumexp(logarithms, axis=1, keepdims=True)
    mean, deviation = filled.mean(axis=1), filled.std(axis=1)
    return {
        SCORE: filled[:, 0],
        MARGIN: filled[:, 0] - filled[:, 1],
        "softmax": np.exp(logarithms[:, 0]),
        "entropy": (np.exp(logarithms) * logarithms).sum(axis=1),
        DEVIATION: deviation,
        "nqc": deviation / np.maximum(np.abs(mean), np.finfo(np.float64).tiny),
        "wig": filled[:, :_WIG_DEPTH].mean(axis=1) - mean,
    }
