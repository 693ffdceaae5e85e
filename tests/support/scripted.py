"""A pool that mines and an evaluator that reads a checkpoint on the spot, and report it when their scripts say.

Real tables, checkpoints and records in real committed directories, so that all but the search is what a run meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np

from raytriever.core.store.commit import read_manifest
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable, read_negatives, write_negatives
from raytriever.models.checkpoint_model import WEIGHTS, read_slices
from raytriever.training.background_jobs import JobError
from raytriever.training.dev_validation import Record, ValidationPlan, read_record, write_record
from raytriever.training.negative_refresh import RefreshPlan, round_path

DEPTH = 4


def mined(dataset: RetrievalDataset, number: int, checkpoint: Path) -> NegativesTable:
    """Documents drawn by the digest of the weights, for every query."""
    state = sha256(b"".join(item.values.numpy().tobytes() for item in read_slices(checkpoint, WEIGHTS)))
    rng = np.random.default_rng(int(state.hexdigest()[:12], 16))
    documents = rng.permuted(np.tile(np.arange(len(dataset.documents)), (len(dataset.queries), 1)), axis=1)[:, :DEPTH]
    queries, ranks = np.divmod(np.arange(documents.size), DEPTH)
    return NegativesTable.of(dataset, queries, documents.reshape(-1), "dense", ranks, rounds=number)


@dataclass
class Scripted:
    """Answers a job when it has been asked for the answer so often.

    Args:
        folder: of the results.
        lag: times it says nothing, one for each job begun here; the last for all that follow.
        fails: numbers of jobs that come to nothing.
        before: called with the number of a job before it is answered.
    """

    folder: Path
    lag: Sequence[int] = (0,)
    fails: Sequence[int] = ()
    begun: list[int] = field(default_factory=list)
    asked: int = 0
    before: Callable[[int], None] = lambda number: None

    def _begin(self, number: int) -> bool:
        """Return whether the job will not fail."""
        self.begun.append(number)
        self.asked = 0
        return number not in self.fails

    def _answered(self) -> int | None:
        """Return the job whose answer is there."""
        self.asked += 1
        if self.asked <= self.lag[min(len(self.begun), len(self.lag)) - 1]:
            return None
        self.before(self.begun[-1])
        if self.begun[-1] in self.fails:
            raise JobError("it is gone")
        return self.begun[-1]


@dataclass
class ScriptedPool(Scripted):
    """Mines for a run on `dataset`; what it writes depends on the checkpoint."""

    dataset: RetrievalDataset | None = None

    def submit(self, number: int, checkpoint: Path) -> None:
        if self._begin(number):
            table = mined(self.dataset, number, checkpoint)
            write_negatives(round_path(self.folder, number), table, self.dataset, replace=True)

    def poll(self) -> Mapping[str, float] | None:
        number = self._answered()
        return None if number is None else {"refresh_mined": float(number)}


@dataclass
class ScriptedEvaluator(Scripted):
    """Gives each step its value of `values`; where a step has none, a number that its weights decide."""

    values: Mapping[int, float] = field(default_factory=dict)

    def submit(self, step: int, checkpoint: Path) -> None:
        read_manifest(checkpoint)
        weights = sum(float(item.values.double().abs().sum()) for item in read_slices(checkpoint, WEIGHTS))
        if self._begin(step) and read_record(self.folder, step) is None:
            value = self.values.get(step, weights)
            write_record(self.folder, Record(step, value, {"dev/ndcg_at_10": value, "dev/weights": weights}))

    def poll(self) -> Record | None:
        step = self._answered()
        return None if step is None else read_record(self.folder, step)


def refresh_plan(pool: ScriptedPool, every: int, waits: bool, last_logged_step: int) -> RefreshPlan:
    """A plan whose worker has the pool."""
    return RefreshPlan(
        every=every,
        waits=waits,
        folder=pool.folder,
        read=lambda path: read_negatives(path, pool.dataset),
        miner=pool,
        last_logged_step=last_logged_step,
    )


def validation_plan(
    evaluator: ScriptedEvaluator,
    on_metrics: Callable[[int, Mapping[str, float]], None],
    behind: int,
    last_logged_step: int = 0,
) -> ValidationPlan:
    """A plan whose worker has the evaluator."""
    return ValidationPlan(
        folder=evaluator.folder,
        behind=behind,
        evaluator=evaluator,
        on_metrics=on_metrics,
        last_logged_step=last_logged_step,
        digest="letters",
    )
