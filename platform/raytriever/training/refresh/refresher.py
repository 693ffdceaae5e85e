"""Refresh of hard negatives with the encoder that is being trained, during training.

1. When a round is due, the weights are copied and rank 0 passes them to the pool, which writes the table of the
   round. Training continues, or waits if the settings say so.
2. Only while a round runs, the workers exchange their states after every step in one small collective: whether the
   table is written, whether all workers have read the same table, whether it is recorded.
3. A thread reads the table. It is used from the first step that no loader can have prepared. That step is recorded
   in the ledger before any worker uses the table, so a resumed run does the same.

After a failed round the current table stays in use. Negatives by the encoder as it trains: ANCE (Xiong et al., 2021,
arXiv:2007.00808)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.negatives import NegativesTable
from raytriever.errors import StorageError, UserError
from raytriever.losses.engine.workers import Workers
from raytriever.training.batches import DEPTH, BatchSource
from raytriever.training.parallel.model_state import Snapshot
from raytriever.training.refresh.ledger import Round, Versions, read_ledger, round_path
from raytriever.training.refresh.plan import RefreshPlan


def overlap(table: NegativesTable, before: NegativesTable | None) -> float:
    """The share of a table's rows (query, document) that the table before it has too, in [0, 1]; 0 for no rows."""
    if before is None or not len(table) or not len(before):
        return 0.0
    size = 1 + max(int(table.documents.max()), int(before.documents.max()))
    return float(np.isin(_pairs(table, size), _pairs(before, size), assume_unique=True).mean())


def _pairs(table: NegativesTable, size: int) -> Int64[ndarray, " rows"]:
    return table.queries * size + table.documents


class News(IntEnum):
    """How a worker stands in a phase of a round."""

    BUSY, DONE, FAILED = range(3)


class Word(NamedTuple):
    """What a worker tells the others: how it stands, and the first 48 bits of the digest of what it has read."""

    news: News = News.BUSY
    digest: int = 0


def exchange(word: Word, workers: Workers, device: torch.device) -> list[Word]:
    """Every worker's word, in the order of the workers; one small collective, which all of them make.

    Args:
        word: this worker's.
        workers: the group.
        device: where its collectives take their tensors.
    """
    if workers.size == 1:
        return [word]
    own = torch.tensor([[int(word.news), word.digest]], dtype=torch.int64, device=device)
    return [Word(News(news), digest) for news, digest in workers.gather_values(own).tolist()]


def all_done(words: list[Word]) -> bool:
    """Whether all workers are done, and with the same thing."""
    return set(words) == {words[0]} and words[0].news is News.DONE


def any_failed(words: list[Word]) -> bool:
    """Whether a worker failed, or all are done with different things."""
    done = all(word.news is News.DONE for word in words)
    return any(word.news is News.FAILED for word in words) or (done and not all_done(words))


class Reading:
    """A thread that reads one round's table, and what it has come to: a late one tells no later round.

    Args:
        read: the table in a committed directory.
        path: of the table.
        before: the table in use.
    """

    def __init__(self, read: Callable[[Path], NegativesTable], path: Path, before: NegativesTable | None) -> None:
        self._read, self._path, self._before = read, path, before
        self._table: NegativesTable | None = None
        self.word = Word()
        self.overlap = 0.0
        self.reason = ""
        self._thread = Thread(target=self._run, name="refresh", daemon=True)
        self._thread.start()

    @property
    def table(self) -> NegativesTable:
        """What was read, when the word says so."""
        assert self._table is not None
        return self._table

    @property
    def reads(self) -> bool:
        """Whether the thread is still at it, be what it reads wanted or not."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._table = self._read(self._path)
            self.overlap = overlap(self._table, self._before)
            self.word = Word(News.DONE, int(self._table.digest[:12], 16))
        except Exception as error:
            self.reason, self.word = told(error), Word(News.FAILED)


def told(error: Exception) -> str:
    """A round's failure never ends the training, whatever it is; a person reads why in a line."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


WAIT_SECONDS = 0.02


class _Phase(IntEnum):
    """How far a round is, the same on all workers."""

    NONE, MINING, READING, RECORDING = range(4)


class Refresher:
    """The rounds of one run on one worker; all workers make every call but `source` alike, in the same order.

    Args:
        plan: how to refresh.
        source: what the first steps draw from.
        workers: the group.
        device: where its collectives take their tensors.
        snapshot: copies the weights; called by all workers.
        notice: hears on the first worker what a person should know.

    Raises:
        StorageError: what an interrupted run recorded is torn.
    """

    def __init__(
        self,
        plan: RefreshPlan,
        source: BatchSource,
        workers: Workers,
        device: torch.device,
        snapshot: Callable[[], Snapshot],
        notice: Callable[[str], None],
    ) -> None:
        self._plan, self._workers, self._device = plan, workers, device
        self._snapshot, self._notice = snapshot, notice
        self._versions, self._ledger = Versions(source), read_ledger(plan.folder)
        self._phase, self._word = _Phase.NONE, Word()
        self._reading: Reading | None = None
        self._readings: list[Reading] = []
        self._found: dict[str, Any] = {}
        self._measured: dict[str, float] = {}
        self._reason, self._began, self._waited = "", 0.0, 0.0

    def start(self, step: int) -> None:
        """Go on after `step` steps: with the tables that were recorded, and with the round that was under way, begun
        again with the weights as they are now.

        Raises:
            StorageError: a recorded table is not there or is another one.
        """
        self._ledger = self._ledger.without_later(step)
        for one in self._ledger.taken:
            if one.number >= self._ledger.version(step):
                self._versions.add(*self._recorded(one))
        if self._ledger.under_way is not None:
            self._begin(step, self._ledger.under_way.due)
        self.after(step)

    def source(self, step: int) -> BatchSource:
        """What the batch of `step`, counted from 0, is made of; may be called from any thread."""
        return self._versions.at(step)

    def version(self, step: int) -> int:
        """The round whose table that batch draws from, by what is recorded; 0 for the first table."""
        return self._ledger.version(step)

    def until(self, step: int) -> int | None:
        """The step that no batch may be drawn for before `step` steps were done and `after` it was called; None where
        batches may be drawn as far ahead as the loader likes."""
        every = self._plan.every
        return (step // every + 1) * every if self._plan.waits else None

    def after(self, step: int) -> None:
        """What is to be done when `step` steps are done and more are to come."""
        began = time.monotonic()
        self._versions.forget(step)
        self._advance(step)
        if self._phase is _Phase.NONE and self._ledger.is_due(step, self._plan.every):
            self._begin(step, step)
        while self._plan.waits and self._phase is not _Phase.NONE:
            time.sleep(WAIT_SECONDS)
            self._advance(step)
        self._waited += time.monotonic() - began

    def close(self) -> None:
        """Wait for tables that are still being read, though nobody will draw from them: a process that ends beside a
        thread in C++ code is aborted (pytorch#38228)."""
        for reading in self._readings:
            reading.join()

    def told(self, step: int) -> Mapping[str, float]:
        """For the tracker, of step `step`, counted from 0: its round, what was measured of a round that it is the first
        to use, how old its negatives are, how many rounds failed, and the seconds that rounds kept steps waiting since
        this was asked."""
        new = {
            name: value for one in self._ledger.taken if one.used_from == step for name, value in one.measured.items()
        }
        waited, self._waited = self._waited, 0.0
        return {
            **new,
            "negatives_round": float(self.version(step)),
            "refresh_age_steps": float(self._ledger.age(step)),
            "refresh_failures": float(self._ledger.failures),
            "refresh_wait_seconds": waited,
        }

    def _recorded(self, one: Round) -> tuple[int, BatchSource]:
        """A version as it was recorded."""
        path = round_path(self._plan.folder, one.number)
        table = self._plan.read(path)
        if table.digest != one.digest:
            raise StorageError("is not the table that the run used", str(path), "train anew with --fresh")
        assert one.used_from is not None
        return one.used_from, self._versions.newest.with_negatives(table, one.number)

    def _begin(self, step: int, due: int) -> None:
        """Record that a round begins, and hand the pool the weights."""
        self._ledger = self._ledger.begun(due, step)
        self._phase, self._word, self._began = _Phase.MINING, Word(), time.monotonic()
        weights = self._snapshot()
        if self._plan.pool is not None:
            with _Failing(self):
                self._ledger.write(self._plan.folder)
                self._plan.pool.begin(self._ledger.rounds[-1].number, weights)

    def _advance(self, step: int) -> None:
        """Hear how all workers stand, and go on to the next phase where this one is done."""
        if self._phase is _Phase.NONE:
            return
        self._look_at_pool()
        words = self._exchange()
        if any_failed(words):
            self._fail(step)
        elif self._phase is _Phase.MINING and words[0].news is News.DONE:
            path = round_path(self._plan.folder, self._ledger.rounds[-1].number)
            self._reading = Reading(self._plan.read, path, self._versions.newest.examples.negatives)
            self._readings = [self._reading, *(one for one in self._readings if one.reads)]
            self._phase = _Phase.READING
        elif self._reading is not None and self._phase is _Phase.READING and all_done(words):
            self._phase, self._word = _Phase.RECORDING, Word()
            self._record(step, self._reading)
        elif self._reading is not None and self._phase is _Phase.RECORDING and words[0].news is News.DONE:
            self._take(self._reading)

    def _look_at_pool(self) -> None:
        pool = self._plan.pool
        if pool is None or self._phase is not _Phase.MINING or self._word.news is not News.BUSY:
            return
        with _Failing(self):
            answer = pool.answer()
            if answer is not None:
                self._measured, self._reason = dict(answer.measured), answer.reason
                self._word = Word(News.FAILED if answer.reason else News.DONE)

    def _record(self, step: int, reading: Reading) -> None:
        """Settle the first step that draws from the table; the first worker writes it down."""
        plan, ledger, one = self._plan, self._ledger, self._ledger.rounds[-1]
        ended = first = step
        if not plan.waits:
            # All hear after the next step that it is written down; their loaders may then have drawn `DEPTH` more.
            ended = step + 1
            before = max((taken.used_from for taken in ledger.taken if taken.used_from is not None), default=0)
            first = max(ended + DEPTH, plan.told, before + 1)
        self._found = {"ended": ended, "used_from": first, "digest": reading.table.digest}
        if plan.pool is not None:
            self._measured["refresh_overlap"] = reading.overlap
            self._measured["refresh_rows"] = float(len(reading.table))
            self._measured["refresh_staleness_steps"] = float(first - one.snapshot)
            self._measured["refresh_seconds"] = time.monotonic() - self._began
            self._found["measured"] = self._measured
            with _Failing(self):
                ledger.ended(**self._found).write(plan.folder)
                self._word = Word(News.DONE)

    def _take(self, reading: Reading) -> None:
        """The table is used from its step on."""
        self._ledger = self._ledger.ended(**self._found)
        source = self._versions.newest.with_negatives(reading.table, self._ledger.rounds[-1].number)
        self._versions.add(self._found["used_from"], source)
        self._phase, self._reading = _Phase.NONE, None

    def _fail(self, step: int) -> None:
        reason = self._reason or (self._reading.reason if self._reading else "")
        reason = reason or "another worker could not read its table, or read another one"
        self._ledger = self._ledger.ended(ended=step, reason=reason)
        self._phase, self._reading, self._reason = _Phase.NONE, None, ""
        if self._plan.pool is not None:
            with _Failing(self):  # what is not written down is begun again by a continued run
                self._ledger.write(self._plan.folder)
            one = self._ledger.rounds[-1]
            self._notice(f"hard negatives: round {one.number} failed ({reason}); those in use stay in use")

    def _exchange(self) -> list[Word]:
        """Every worker's word."""
        word = self._reading.word if self._reading and self._phase is _Phase.READING else self._word
        return exchange(word, self._workers, self._device)

    def failed(self, error: Exception) -> None:
        """Say so with the next word."""
        self._reason, self._word = told(error), Word(News.FAILED)


class _Failing:
    """A block whose errors are the round's."""

    def __init__(self, refresher: Refresher) -> None:
        self._refresher = refresher

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._refresher.failed(error)
        return True
