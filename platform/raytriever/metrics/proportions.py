"""How sure a share is: of independent cases, and of cases that come by query."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray
from scipy.special import ndtri

from raytriever.metrics.inputs import MetricInputError, check_confidence

# Queries drawn at once.
BLOCK = 1 << 20


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Bounds of a share of independent cases (Wilson, 1927); 0 and 1 without trials.

        (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n)

    Unlike p ± z sqrt(p (1 - p) / n) they stay within 0 and 1 and hold near them too.
    """
    check_confidence(confidence)
    if not 0 <= successes <= trials:
        raise MetricInputError(f"{successes} of {trials}", "share", "successes from 0 to the number of trials")
    if not trials:
        return 0.0, 1.0
    z, share = float(ndtri((1 + confidence) / 2)), successes / trials
    middle = share + z * z / (2 * trials)
    reach = z * np.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    whole = 1 + z * z / trials
    return max(0.0, float((middle - reach) / whole)), min(1.0, float((middle + reach) / whole))


def bootstrap_by_query(
    parts: Int64[ndarray, " queries"],
    wholes: Int64[ndarray, " queries"],
    confidence: float = 0.95,
    draws: int = 2_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Bounds of `sum(parts) / sum(wholes)` where cases of one query go together (Efron, 1979: percentiles).

    Whole queries are drawn with replacement, so that whatever their cases have in common counts as chance. Draws
    without a case say nothing and are left out; NaN where no draw has one.

    Args:
        parts, wholes: what each query adds to both sums.
        confidence: how often such bounds hold the true share.
        draws: samples of as many queries as there are.
        seed: of the draws.
    """
    check_confidence(confidence)
    if len(parts) != len(wholes) or not len(parts) or draws < 1:
        raise MetricInputError(f"{len(parts)} parts of {len(wholes)} queries", "bootstrap", "give both of each query")
    rng = np.random.default_rng(seed)
    shares: list[Float64[ndarray, " draws"]] = []
    step = max(1, BLOCK // len(parts))
    for start in range(0, draws, step):
        drawn = rng.integers(0, len(parts), (min(step, draws - start), len(parts)))
        whole = wholes[drawn].sum(1)
        shares.append(parts[drawn].sum(1)[whole > 0] / whole[whole > 0])
    found = np.concatenate(shares)
    if not len(found):
        return float("nan"), float("nan")
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
