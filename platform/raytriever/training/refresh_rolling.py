"""Which documents a rolling refresh re-encodes: one share of the corpus after another, then from the start again."""

from __future__ import annotations

import math


def rolling_rows(documents: int, share: float, turn: int) -> range:
    """The documents of one turn: contiguous, and after `ceil(1 / share)` turns all of them.

    Args:
        documents: of the corpus.
        share: in (0, 1].
        turn: counted from 0.
    """
    turns = math.ceil(1 / share)
    place = turn % turns
    return range(place * documents // turns, (place + 1) * documents // turns)
