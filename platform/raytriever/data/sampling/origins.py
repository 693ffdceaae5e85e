"""How many of a group's negatives come from whom: shares by origin, held by every group as nearly as whole numbers can.

A group of n negatives gets floor or ceil of n times an origin's share, drawn so that the expectation is exact, for
n = 1 too: the shares are laid end to end on [0, n], and one number u in [0, 1), drawn for each (seed, epoch, example),
shifts the grid of whole numbers that counts them (systematic sampling, Madow 1949). An origin of which a query has
nothing leaves its share to the others, in proportion; random documents take it only where no other is left.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from raytriever.data.records import ORIGINS
from raytriever.errors import ConfigError
from raytriever.options import did_you_mean

RANDOM = ORIGINS.index("random")
_FLAG = "--negatives-mix"


def parse_mix(text: str) -> Float64[ndarray, " origins"] | None:
    """Shares in the order of `records.ORIGINS`, adding up to 1, out of `bm25=0.5,random=0.5`; None for no text.

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
        place = ORIGINS.index(name)
        if shares[place]:
            raise ConfigError(f"{name!r} is named twice", _FLAG, "give each origin one share")
        shares[place] = share
    return shares / shares.sum()


def counts_by_origin(
    shares: Float64[ndarray, " origins"],
    there: Bool[ndarray, "batch origins"],
    wanted: Int64[ndarray, " batch"],
    shift: Float64[ndarray, " batch"],
) -> Int64[ndarray, "batch origins"]:
    """How many negatives of each origin each group gets; a row adds up to what is wanted.

    Args:
        shares: adding up to 1.
        there: whether the query has any negative of the origin; of random documents there are always some.
        wanted: negatives of each group, at least 0.
        shift: in [0, 1), drawn.
    """
    mined = np.where(there, shares, 0.0)
    mined[:, RANDOM] = 0
    left = mined.sum(axis=1, keepdims=True)
    random = np.where(left > 0, shares[RANDOM], 1.0)
    of_query = mined * ((1 - random) / np.where(left > 0, left, 1.0))
    of_query[:, RANDOM] = random[:, 0]
    ends = np.cumsum(of_query, axis=1)
    # Whatever rounding made of them: a row must add up, and who has no share must get nothing.
    ends[ends > 1 - 1e-9] = 1.0
    marks = np.minimum(np.floor(ends * wanted[:, None] + shift[:, None]).astype(np.int64), wanted[:, None])
    return np.diff(marks, axis=1, prepend=0)
