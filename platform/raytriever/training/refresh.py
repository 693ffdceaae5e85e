"""Hard negatives mined anew by the encoder that is being trained, while it is being trained.

1. When a round is due, the weights are copied and the first worker hands them to the pool, which writes the round's
   table; steps go on, or wait where that is asked for.
2. Only while a round is under way, the workers tell each other after every step, in one small collective, how they
   stand: whether the table is written, whether all have read it and the same one, whether it is recorded.
3. It is used from the first step that no worker's loader can have drawn. That step is recorded before anybody draws
   from the table, so a continued run does the same without asking anybody (`refresh_ledger`).

A round that fails leaves the table in use. Negatives by the encoder as it trains, some steps late: ANCE (Xiong et al.,
2021, arXiv:2007.00808).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import torch

from raytriever.errors import StorageError
from raytriever.losses.workers import Workers
from raytriever.training.batches import BatchSource
from raytriever.training.loader import DEPTH
from raytriever.training.refresh_ledger import Round, read_ledger, round_path
from raytriever.training.refresh_plan import RefreshPlan
from raytriever.training.refresh_reading import Reading, told
from raytriever.training.refresh_snapshot import Snapshot
from raytriever.training.refresh_versions import Versions
from raytriever.training.refresh_words import News, Word, all_done, any_failed, exchange

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
