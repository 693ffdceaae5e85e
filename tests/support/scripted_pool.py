"""A pool that mines on the spot and reports it when its script says: what it writes depends on the checkpoint.

A real table in a real committed directory, so that all but the search is what a run meets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable, read_negatives, write_negatives
from raytriever.models.checkpoint import WEIGHTS
from raytriever.models.slices import read_slices
from raytriever.training.background import JobError
from raytriever.training.refresh import RefreshPlan, round_path

DEPTH = 4


def mined(dataset: RetrievalDataset, number: int, checkpoint: Path) -> NegativesTable:
    """Documents drawn by the digest of the weights, for every query."""
    state = sha256(b"".join(one.values.numpy().tobytes() for one in read_slices(checkpoint, WEIGHTS)))
    rng = np.random.default_rng(int(state.hexdigest()[:12], 16))
    documents = rng.permuted(np.tile(np.arange(len(dataset.documents)), (len(dataset.queries), 1)), axis=1)[:, :DEPTH]
    queries, ranks = np.divmod(np.arange(documents.size), DEPTH)
    return NegativesTable.of(dataset, queries, documents.reshape(-1), "dense", ranks, rounds=number)


@dataclass
class ScriptedPool:
    """Answers a round when it has been asked for the answer so often.

    Args:
        dataset: of the run.
        folder: of the rounds.
        patience: times it says nothing, one for each round begun here; the last for all that follow.
        fails: numbers of rounds that come to nothing.
    """

    dataset: RetrievalDataset
    folder: Path
    patience: Sequence[int] = (0,)
    fails: Sequence[int] = ()
    begun: list[int] = field(default_factory=list)
    asked: int = 0
    before: Callable[[int], None] = lambda number: None

    def submit(self, number: int, checkpoint: Path) -> None:
        self.begun.append(number)
        self.asked = 0
        if number not in self.fails:
            table = mined(self.dataset, number, checkpoint)
            write_negatives(round_path(self.folder, number), table, self.dataset, replace=True)

    def poll(self) -> Mapping[str, float] | None:
        self.asked += 1
        if self.asked <= self.patience[min(len(self.begun), len(self.patience)) - 1]:
            return None
        number = self.begun[-1]
        self.before(number)
        if number in self.fails:
            raise JobError("the pool is gone")
        return {"refresh_mined": float(number)}


def plan(pool: ScriptedPool, every: int, waits: bool, rank: int = 0, last_logged_step: int = 0) -> RefreshPlan:
    """A plan whose first worker has the pool."""

    def read(path: Path) -> NegativesTable:
        return read_negatives(path, pool.dataset)

    return RefreshPlan(
        every=every,
        waits=waits,
        folder=pool.folder,
        read=read,
        miner=pool if rank == 0 else None,
        last_logged_step=last_logged_step,
    )
