"""What refreshing hard negatives needs from outside the loop: a folder, a reader, and someone who mines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from raytriever.data.negatives_table import NegativesTable
from raytriever.training.refresh_snapshot import Snapshot


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
