"""Refresh of hard negatives with the encoder that is being trained, as a background job of training.

1. When a round is due, a checkpoint is saved. The first worker passes it to the miner, which writes the table of
   negatives of the round. Meanwhile training continues, or waits if the settings say so.
2. A thread of each worker reads the table.
3. The first worker chooses the first step that uses the table, and records it in the ledger. No loader can have
   prepared the batch of that step yet. No worker uses an unrecorded table, so a resumed run makes the same batches.

After a failed round, the current table stays in use. An interrupted round starts again from its checkpoint, which is
kept until the round has ended. `raytriever mine --model RUN/checkpoints/step-N` finds the same negatives. Mining with
the encoder while it trains is the idea of ANCE (Xiong et al., 2021, arXiv:2007.00808)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from raytriever.core.errors import StorageError, setting
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import remove, write_atomically
from raytriever.data.hard_negatives import NegativesTable
from raytriever.losses.distributed import WorkerGroup
from raytriever.training.background_jobs import (
    RUNNING,
    BackgroundJob,
    JobClient,
    JobMessage,
    JobPhase,
    JobStatus,
    broadcast_json,
)
from raytriever.training.batch_loader import PREFETCH_DEPTH, Batch, BatchVersions
from raytriever.training.checkpoint import checkpoint_path
from raytriever.training.early_stopping import TrainerState

ROUNDS = "rounds.json"
_REMEDY = f"start a new run with another {setting('output')}"


@dataclass(frozen=True)
class Round:
    """Record of a refresh round that has ended."""

    number: int  # number of the round, from 1; 0 is the table that training began with
    step: int  # step of the checkpoint whose encoder mined, a multiple of `--refresh-every`
    ended: int  # number of training steps that were done when the round ended
    used_from: int = 0  # first step that uses the table, counted from 1 as in `steps.jsonl`; 0 if the round failed
    digest: str = ""  # digest of the table
    reason: str = ""  # reason for the failure of the round; empty otherwise
    metrics: Mapping[str, float] = field(default_factory=dict)  # metrics of the round, by name


@dataclass(frozen=True)
class Ledger:
    """Ledger of all ended rounds of a run, in order.

    It is stored in `negatives/rounds.json`, which is replaced as a whole before any worker uses the table of a round.
    The ledger determines the table of each step, so a resumed run makes the same batches. The tables are in folders
    such as `negatives/round-0001/`."""

    rounds: tuple[Round, ...] = ()

    @property
    def adopted_rounds(self) -> tuple[Round, ...]:
        """Rounds whose tables are used, in the order of the first step that uses each table."""
        return tuple(round_ for round_ in self.rounds if round_.used_from)

    def version(self, step: int) -> int:
        """Return the number of the round whose table the batch of `step` (from 0) uses; 0 for the initial table."""
        return max((round_.number for round_ in self.adopted_rounds if round_.used_from <= step + 1), default=0)

    def age(self, step: int) -> int:
        """Return how many steps ago the negatives of `step` were mined. For the initial table, this is `step`."""
        used = [round_.step for round_ in self.adopted_rounds if round_.number <= self.version(step)]
        return step - max(used, default=0)

    @property
    def failures(self) -> int:
        """Number of rounds that ended without a table."""
        return len(self.rounds) - len(self.adopted_rounds)

    def is_due(self, step: int, every: int) -> bool:
        """Return True if a round starts after `step` steps, provided that no other round is running.

        At most one round starts at a step, even if a resumed run repeats the step. No round starts at a step at which
        another round was running."""
        return step > 0 and step % every == 0 and not any(round_.step <= step <= round_.ended for round_ in self.rounds)

    def with_round(self, step: int, ended: int, **fields: Any) -> Ledger:
        """Return the ledger with one more round; `fields` are other fields of `Round`."""
        return Ledger((*self.rounds, Round(len(self.rounds) + 1, step, ended, **fields)))

    def write(self, folder: Path) -> None:
        """Replace the file; raises `StorageError` if it cannot be written."""
        write_atomically(folder / ROUNDS, json.dumps([asdict(round_) for round_ in self.rounds], indent=1) + "\n")


def read_ledger(folder: Path) -> Ledger:
    """Read the ledger of an interrupted run. Without a file, return an empty ledger.

    Raises:
        StorageError: the file is damaged.
    """
    file = folder / ROUNDS
    if not file.is_file():
        return Ledger()
    rounds = read_json(file, list[Round], _REMEDY)
    for number, round_ in enumerate(rounds, 1):
        if round_.number != number:
            raise StorageError(f"is damaged or changed: round {number} is missing", str(file), _REMEDY)
    return Ledger(tuple(rounds))


def round_path(folder: Path, number: int) -> Path:
    """Return the path of the table of a round."""
    return folder / f"round-{number:04d}"


def remove_tables(folder: Path, checkpoints: Path) -> None:
    """Remove the tables that a run does not need, even if it resumes from its oldest checkpoint."""
    steps = [int(path.name[5:]) for path in checkpoints.glob("step-*") if path.name[5:].isdigit()]
    needed = read_ledger(folder).version(min(steps, default=0))
    for path in folder.glob("round-*"):
        if path.name[6:].isdigit() and int(path.name[6:]) < needed:
            remove(path)


@dataclass(frozen=True, kw_only=True)
class RefreshPlan:
    """Plan of the refreshes of a run."""

    every: int  # steps between two rounds
    waits: bool  # True if training waits until each round ends
    folder: Path
    read: Callable[[Path], NegativesTable]
    # Client of the mining process on the first worker; None on the others. The process gets a round's number and a
    # checkpoint. It commits the table at `round_path`, replaces any older table there, and returns metrics.
    miner: JobClient[Mapping[str, float]] | None
    # Last step that an earlier process of the run has logged, equal on all workers. The table of a round that is
    # started again is used only after this step, so that metrics of already logged steps stay true.
    last_logged_step: int = 0


class RefreshJob(BackgroundJob):
    """Refresh rounds of one run, on one worker.

    Raises:
        StorageError: the ledger of an interrupted run is damaged.
    """

    def __init__(
        self,
        plan: RefreshPlan,
        versions: BatchVersions,
        total_steps: int,
        checkpoints: Path,
        workers: WorkerGroup,
        log: Callable[[str], None],
        log_status: Callable[[str], None] = lambda text: None,
    ) -> None:
        phases = [
            JobPhase(self._check_reading, self._start_reading, needs_all=True),
            JobPhase(lambda _: JobMessage(JobStatus.DONE) if self.is_first else RUNNING, self._record),
        ]
        super().__init__(plan.miner, checkpoints, workers, log, log_status, phases)
        self._plan, self._versions, self._total_steps = plan, versions, total_steps
        self._step = 0  # step of the checkpoint whose encoder mines in the running round
        self._ledger = read_ledger(plan.folder)
        self._readers: list[ThreadPoolExecutor] = []  # one thread per table; that of a failed round may still run
        self._reading: Future[tuple[NegativesTable, float]]
        self._metrics: dict[str, float] = {}
        self._ended = Ledger()  # the ledger with the running round added, ready to be recorded
        self._began = 0.0

    def start(self, trainer_state: TrainerState) -> TrainerState:
        """Recover the rounds of an interrupted run, unless training has ended."""
        if trainer_state.stopped or trainer_state.step >= self._total_steps:
            return trainer_state
        return self.after_step(super().start(trainer_state))

    def prefetch_limit(self, step: int, end: int) -> int:
        """Return the next step at which training waits for a round; `end` if it does not wait. See `BackgroundJob`."""
        return min(end, (step // self._plan.every + 1) * self._plan.every) if self._plan.waits else end

    def before_batch(self, step: int, batch: Batch) -> None:
        """Raise `RuntimeError` if a batch was not made from the table that the ledger records for its step."""
        if batch.version != (recorded := self._ledger.version(step)):
            raise RuntimeError(f"the batch of step {step} has negatives of round {batch.version}, not {recorded}")

    def after_step(self, trainer_state: TrainerState) -> TrainerState:
        """Poll the running round, start a round that is due, and wait for the round if the settings say so."""
        step = trainer_state.step
        if trainer_state.stopped or step >= self._total_steps:
            return trainer_state
        with self.count_wait():
            self._versions.forget_before(step)
            self.poll(step)
            if self.needs_checkpoint(step):
                self._start_round(step)
            if self._plan.waits:
                self.wait_while(lambda: self.is_running, step)
        return trainer_state

    def close(self) -> None:
        """Wait for the threads that read tables.

        A process that ends while a thread runs C++ code is aborted (pytorch#38228)."""
        for reader in self._readers:
            reader.shutdown()

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the metrics of the refresh at `step`.

        They are the round and age of the negatives, the number of failed rounds, and the seconds that training has
        waited since the last call. The first step that uses a table also has the metrics of that table's round."""
        new = [round_.metrics for round_ in self._ledger.adopted_rounds if round_.used_from == step + 1]
        return {
            **{name: value for metrics in new for name, value in metrics.items()},
            "negatives_round": float(self._ledger.version(step)),
            "refresh_age_steps": float(self._ledger.age(step)),
            "refresh_failures": float(self._ledger.failures),
            "refresh_wait_seconds": self.take_wait_seconds(),
        }

    def needs_checkpoint(self, step: int) -> bool:
        """Return True if a round starts after `step` steps."""
        return step < self._total_steps and not self.is_running and self._ledger.is_due(step, self._plan.every)

    @property
    def retained_steps(self) -> frozenset[int]:
        """Step of the checkpoint whose encoder mines in the running round; empty if no round is running."""
        return frozenset({self._step} if self.is_running else ())

    def recover(self, step: int) -> None:
        """Use the recorded tables, and restart an interrupted round from its checkpoint."""
        for round_ in self._ledger.adopted_rounds:
            if round_.number >= self._ledger.version(step):
                self._add_recorded(round_)
        every = self._plan.every
        due = [due_step for due_step in range(every, step + 1, every) if self._ledger.is_due(due_step, every)]
        interrupted = next((due_step for due_step in due if checkpoint_path(self._checkpoints, due_step).is_dir()), 0)
        interrupted = broadcast_json(interrupted, self.workers)
        if interrupted:
            self._start_round(interrupted)

    def receive(self, result: Mapping[str, float], step: int) -> float:
        """Keep the metrics that the miner returns."""
        self._metrics = dict(result)
        return 0.0

    def adopt(self, step: int, result: float) -> None:
        """Use the table from the recorded step on."""
        self._ledger = self._ended
        self._add_version(self._reading.result()[0], self._ledger.rounds[-1])

    def reject(self, step: int, reason: str) -> None:
        """Record the failure. The current table stays in use."""
        reason = reason or "another worker could not read the table, or read a different table"
        self._ledger = self._ledger.with_round(self._step, step, reason=reason)
        if self.is_first:
            with self._failing():  # if the failure cannot be recorded, a resumed run just starts the round again
                self._ledger.write(self._plan.folder)
            self.log(f"{self.describe().capitalize()} failed ({reason}). The current negatives stay in use.")

    def describe(self) -> str:
        """See `BackgroundJob.describe`."""
        return f"refresh round {self._number} of the hard negatives"

    def _start_round(self, step: int) -> None:
        self._step, self._began, self._metrics = step, time.monotonic(), {}
        self.submit(len(self._ledger.rounds) + 1, step)

    def _start_reading(self, step: int) -> None:
        path = round_path(self._plan.folder, self._number)
        current = self._versions.newest.examples.negatives

        def read() -> tuple[NegativesTable, float]:
            table = self._plan.read(path)
            return table, overlap(table, current)

        reader = ThreadPoolExecutor(1, "refresh")
        self._reading = reader.submit(read)
        reader.shutdown(wait=False)  # the thread ends when it has read the table
        self._readers.append(reader)

    def _check_reading(self, step: int) -> JobMessage:
        if not self._reading.done():
            return RUNNING
        table, _ = self._reading.result()
        return JobMessage(JobStatus.DONE, float(int(table.digest[:12], 16)))  # 48 bits

    def _record(self, step: int) -> None:
        """Choose the first step that uses the table; the first worker records it."""
        plan, (table, common) = self._plan, self._reading.result()
        ended = first = step
        if not plan.waits:
            # After the next step, all workers know that the table is recorded. By then their loaders may be
            # `PREFETCH_DEPTH` batches ahead.
            ended = step + 1
            after = max((round_.used_from for round_ in self._ledger.adopted_rounds), default=1)
            first = max(ended + PREFETCH_DEPTH, plan.last_logged_step, after)
        metrics = self._metrics | {
            "refresh_overlap": common,
            "refresh_rows": float(len(table)),
            "refresh_staleness_steps": float(first - self._step),
            "refresh_seconds": time.monotonic() - self._began,
        }
        self._ended = self._ledger.with_round(
            self._step, ended, used_from=first + 1, digest=table.digest, metrics=metrics
        )
        if self.is_first:
            self._ended.write(plan.folder)

    def _add_recorded(self, round_: Round) -> None:
        path = round_path(self._plan.folder, round_.number)
        table = self._plan.read(path)
        if table.digest != round_.digest:
            raise StorageError("is not the table that the run used", str(path), f"restore it, or {_REMEDY}")
        self._add_version(table, round_)

    def _add_version(self, table: NegativesTable, round_: Round) -> None:
        self._versions.add(round_.used_from - 1, self._versions.newest.with_negatives(table, round_.number))


def overlap(table: NegativesTable, before: NegativesTable | None) -> float:
    """Return the fraction of a table's (query, document) rows that are also in the previous table; 0 for no rows."""
    if before is None or not len(table) or not len(before):
        return 0.0
    size = 1 + max(int(table.documents.max()), int(before.documents.max()))
    own, others = (negatives.queries * size + negatives.documents for negatives in (table, before))
    return float(np.isin(own, others, assume_unique=True).mean())
