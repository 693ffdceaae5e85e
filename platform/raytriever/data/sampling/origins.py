"""Numbers of negatives by origin: every group follows the shares as closely as whole numbers allow.

A group of n negatives gets floor or ceil of n times the share of an origin, drawn so that the expectation is exact,
also for n = 1. The shares are laid end to end on [0, n]. One number u in [0, 1), drawn for each (seed, epoch, example),
shifts the integer grid that counts them (systematic sampling, Madow 1949). If a query has no negative of an origin, the
others share its part in proportion. Random documents get it only if no other origin is left.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from raytriever.data.records import ORIGINS
from raytriever.errors import ConfigError, setting
from raytriever.options import did_you_mean

RANDOM = ORIGINS.index("random")
_FLAG = setting("negatives_mix")


def parse_mix(text: str) -> Float64[ndarray, " origins"] | None:
    """Parse shares such as `bm25=0.5,random=0.5`, in the order of `records.ORIGINS` with the sum 1; None for "".

    Raises:
        ConfigError: an unknown origin, one named twice, or a share that is not above 0.
    """
    if not text.strip():
        return None
    shares = np.zeros(len(ORIGINS))
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in ORIGINS:
            raise ConfigError(f"unknown origin {name!r}", _FLAG, did_you_mean(name, ORIGINS))
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if not 0 < share < math.inf:
            raise ConfigError(f"the share of {name!r} is {number!r}", _FLAG, "give a number above 0, as in bm25=0.5")
        origin = ORIGINS.index(name)
        if shares[origin]:
            raise ConfigError(f"{name!r} is named twice", _FLAG, "give each origin one share")
        shares[origin] = share
    return shares / shares.sum()


def counts_by_origin(
    shares: Float64[ndarray, " origins"],
    there: Bool[ndarray, "batch origins"],
    wanted: Int64[ndarray, " batch"],
    shift: Float64[ndarray, " batch"],
) -> Int64[ndarray, "batch origins"]:
    """Return the number of negatives of each origin in each group; the sum of a row is `wanted`.

    Args:
        shares: shares with the sum 1.
        there: True if the query has a negative of the origin. Random documents always exist.
        wanted: number of negatives of each group, at least 0.
        shift: drawn number in [0, 1).
    """
    mined = np.where(there, shares, 0.0)
    mined[:, RANDOM] = 0
    left = mined.sum(axis=1, keepdims=True)
    random = np.where(left > 0, shares[RANDOM], 1.0)
    of_query = mined * ((1 - random) / np.where(left > 0, left, 1.0))
    of_query[:, RANDOM] = random[:, 0]
    ends = np.cumsum(of_query, axis=1)
    # Against rounding: the sum of a row must be exact, and an origin without a share must get no negative.
    ends[ends > 1 - 1e-9] = 1.0
    marks = np.minimum(np.floor(ends * wanted[:, None] + shift[:, None]).astype(np.int64), wanted[:, None])
    return np.diff(marks, axis=1, prepend=0)
