"""Interface between the training loop and the mining of a refresh: the plan, the pool that mines, and its result.

A rolling refresh encodes one share of the corpus in each round (`rolling_rows`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from raytriever.data.negatives import NegativesTable
from raytriever.training.parallel.model_state import Snapshot


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


@dataclass(frozen=True)
class Mined:
    """What became of a round in the pool.

    Args:
        measured: for the tracker.
        reason: why there is no table; empty where there is one.
    """

    measured: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


class Pool(Protocol):
    """Who mines; spoken to by the first worker alone."""

    def begin(self, number: int, snapshot: Snapshot) -> None:
        """Begin round `number` with the encoder of a snapshot. Its table is to stand at `refresh_ledger.round_path`,
        committed, in place of whatever stands there. Does not wait for it."""

    def answer(self) -> Mined | None:
        """What became of the round; None while it is under way. Does not wait."""


@dataclass(frozen=True)
class RefreshPlan:
    """How a run's hard negatives are refreshed.

    Args:
        every: steps between two rounds.
        waits: whether training waits for each.
        folder: where the rounds stand, seen by every worker.
        read: the table in a committed directory.
        pool: on the first worker; None on the others.
        told: the last step that an earlier call has told of. A round that is begun again is used from no step before
            it, so that what was told of a step stays true; the same on every worker.
    """

    every: int
    waits: bool
    folder: Path
    read: Callable[[Path], NegativesTable]
    pool: Pool | None
    told: int = 0
