"""Hard negatives are refreshed so that every step is a function of what is recorded, whenever a run is interrupted."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import Killed, Lives, assert_same, parameters
from scripted import ScriptedPool, mined, refresh_plan

from raytriever.core.errors import StorageError
from raytriever.data.dataset import Documents, Queries, RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable, read_negatives, write_negatives
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.training.batch_loader import BatchVersions
from raytriever.training.checkpoint import checkpoint_path, newest_checkpoint
from raytriever.training.loop import TrainingSetup
from raytriever.training.negative_refresh import ROUNDS, Ledger, Round, overlap, read_ledger, remove_tables, round_path
from raytriever.training.training_settings import RefreshConfig

STEPS, EVERY = 14, 5
SETTINGS = {
    "total_steps": STEPS,
    "batch_size": 8,
    "dev_batches": 1,
    "eval_steps": STEPS,
    "warmup_steps": 2,
    "dropout": 0.1,
}


class Run(Lives):
    """Lives of a run that mines its hard negatives again and again."""

    def __init__(self, make: Callable, dataset: RetrievalDataset, folder: Path) -> None:
        super().__init__(make, folder)
        self.dataset = dataset
        self.pools: list[ScriptedPool] = []

    @property
    def negatives(self) -> Path:
        return self.folder / "negatives"

    def live(
        self,
        *,
        waits: bool = False,
        die_at: int = 0,
        every: int = EVERY,
        saved: int = 2,
        late: bool = False,
        **script: object,
    ) -> TrainingSetup:
        """Run, saved every `saved` steps, and killed when step `die_at` is logged, before it can be saved; the
        run's end without it. A checkpoint is written by the next step. So is a table read, or `late`, when that may
        be."""
        pool = ScriptedPool(self.negatives, dataset=self.dataset, **script)
        self.pools.append(pool)
        work, recorder = self.make(folder=self.folder / "checkpoints", checkpoint_steps=saved, **SETTINGS)
        logged = max(self.logged, default=0)

        def listen(step: int, metrics: Mapping[str, float]) -> None:
            self.remember(step, metrics)
            if "loss" in metrics:  # nothing is used before it is on the disk
                assert read_ledger(self.negatives).version(step - 1) == metrics["negatives_round"]
            for thread in threads("saver") if late else threads("saver", "refresh"):
                thread.join()
            if step == die_at and "loss" in metrics:
                raise Killed

        work = dataclasses.replace(
            work, on_metrics=listen, refresh=refresh_plan(pool, every, waits, last_logged_step=logged)
        )
        self.train(work, recorder, dies=bool(die_at))
        return work

    def losses(self) -> list[float]:
        return list(self.curve("loss").values())

    def rounds_of_steps(self) -> list[float]:
        return list(self.curve("negatives_round").values())


def threads(*names: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


@pytest.fixture
def dataset(tiny_dataset: Path) -> RetrievalDataset:
    return open_dataset(tiny_dataset, ["train", "dev"])


@pytest.fixture
def begin(make_assignment, dataset: RetrievalDataset, tmp_path: Path) -> Callable[[str], Run]:
    return lambda name: Run(make_assignment, dataset, tmp_path / name)


def test_a_table_is_used_and_logged_from_the_recorded_step_on(begin: Callable[[str], Run]) -> None:
    run = begin("run")
    run.live(lag=(2,))
    [first] = read_ledger(run.negatives).rounds
    # Begun after 5 steps; its checkpoint is there after 6; asked after 7 and 8 in vain, after 9 it is there; then read,
    # recorded, and two batches drawn.
    assert (first.step, first.ended) == (5, 11)
    assert first.used_from == first.ended + 3
    earlier = first.used_from - 1
    assert run.rounds_of_steps() == [0.0] * earlier + [1.0] * (STEPS - earlier)
    logged = run.logged[first.used_from]
    assert logged["refresh_staleness_steps"] == earlier - 5
    assert logged["refresh_mined"] == 1
    assert logged["refresh_rows"] > 100
    assert 0 < logged["refresh_seconds"] < 60
    assert logged["refresh_overlap"] == 0  # it began without a table
    assert [step for step, metrics in run.logged.items() if "refresh_rows" in metrics] == [first.used_from]
    without = begin("without")
    without.live(lag=(99,))
    assert run.losses()[:earlier] == without.losses()[:earlier]
    assert run.losses()[earlier] != without.losses()[earlier]  # what is mined is learnt from


@pytest.mark.slow
@pytest.mark.parametrize("waits", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "deaths", [(6, 12), *(pytest.param((step,), marks=pytest.mark.slow) for step in (4, 5, 6, 7, 8, 9, 10, 11, 14))]
)
def test_all_logged_steps_agree_with_the_record(
    begin: Callable[[str], Run], waits: bool, deaths: tuple[int, ...]
) -> None:
    """A run without a pool that reads the record of a run that was killed repeatedly logs the same steps."""
    run = begin("killed")
    for number, step in enumerate(deaths):
        run.live(waits=waits, die_at=step, lag=(number % 2,))
    last = run.live(waits=waits, lag=(1, 0))
    assert sorted(run.logged) == list(range(1, STEPS + 1))

    straight = begin("straight")
    shutil.copytree(run.negatives, straight.negatives)
    followed = straight.live(waits=waits, fails=range(99))
    assert straight.losses() == run.losses()
    assert straight.rounds_of_steps() == run.rounds_of_steps()
    assert max(run.rounds_of_steps()) >= 1
    assert_same(parameters(followed.retriever), parameters(last.retriever))
    begun = [number for pool in straight.pools for number in pool.begun]
    assert not set(begun) & {adopted_round.number for adopted_round in read_ledger(run.negatives).adopted_rounds}


def test_waiting_is_the_same_run_whenever_it_is_killed_and_however_long_the_pool_takes(
    begin: Callable[[str], Run],
) -> None:
    whole, killed = begin("whole"), begin("killed")
    expected = whole.live(waits=True)
    killed.live(waits=True, die_at=11, lag=(3,))
    actual = killed.live(waits=True)
    assert killed.losses() == whole.losses()
    assert_same(parameters(actual.retriever), parameters(expected.retriever))
    assert [(item.step, item.used_from) for item in read_ledger(whole.negatives).rounds] == [(5, 6), (10, 11)]
    assert whole.rounds_of_steps() == [0.0] * 5 + [1.0] * 5 + [2.0] * 4
    assert whole.logged[11]["refresh_staleness_steps"] == 0


@pytest.mark.slow
def test_tables_that_no_checkpoint_leads_to_are_not_missed(begin: Callable[[str], Run]) -> None:
    whole, killed = begin("whole"), begin("killed")
    expected = whole.live(waits=True, every=3)
    killed.live(waits=True, every=3, die_at=14)
    remove_tables(killed.negatives, killed.folder / "nowhere")  # it may still begin again
    assert len(list(killed.negatives.glob("round-*"))) == 4
    oldest = min(int(path.name[5:]) for path in (killed.folder / "checkpoints").glob("step-*"))
    needed = read_ledger(killed.negatives).version(oldest)
    assert needed > 1
    remove_tables(killed.negatives, killed.folder / "checkpoints")
    assert [path.name for path in sorted(killed.negatives.glob("round-*"))] == [
        f"round-{number:04d}" for number in range(needed, 5)
    ]
    actual = killed.live(waits=True, every=3)
    assert killed.losses() == whole.losses()
    assert_same(parameters(actual.retriever), parameters(expected.retriever))


@pytest.mark.slow
@pytest.mark.parametrize(("die_at", "saved"), [(9, 2), (6, 2), (11, 7)])
def test_an_interrupted_round_starts_again_with_its_checkpoint(
    begin: Callable[[str], Run], dataset: RetrievalDataset, die_at: int, saved: int
) -> None:
    run = begin("run")
    run.live(die_at=die_at, saved=saved, lag=(99,))
    assert not read_ledger(run.negatives).rounds
    checkpoint = checkpoint_path(run.folder / "checkpoints", EVERY)
    expected = mined(dataset, 1, checkpoint).digest if checkpoint.is_dir() else None
    assert expected or die_at == 6  # killed before it was written: then the step is repeated
    run.live(saved=saved)
    first = read_ledger(run.negatives).rounds[0]
    assert (first.number, first.step) == (1, EVERY)
    assert expected in (None, first.digest)
    # A logged step stays true: the table is used from none of those.
    assert first.used_from > die_at


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_round_that_fails_leaves_the_table_in_use_and_says_so(begin: Callable[[str], Run], waits: bool) -> None:
    run, calm = begin("run"), begin("calm")
    run.live(waits=waits, fails=[1])
    calm.live(waits=waits, fails=[1, 2, 3])
    first, *_ = read_ledger(run.negatives).rounds
    assert (first.used_from, first.reason) == (0, "it is gone")
    assert (
        run.notices[0]
        == "Refresh round 1 of the hard negatives failed (it is gone). The current negatives stay in use."
    )
    assert calm.rounds_of_steps() == [0.0] * STEPS
    assert run.logged[10]["refresh_failures"] == 1
    assert run.losses()[:10] == calm.losses()[:10]
    if waits:
        assert run.rounds_of_steps() == [0.0] * 10 + [2.0] * 4


@pytest.mark.slow
def test_a_table_that_cannot_be_read_is_a_round_that_fails(begin: Callable[[str], Run]) -> None:
    run = begin("run")

    def tear(number: int) -> None:
        (round_path(run.negatives, number) / "part-00000.parquet").write_bytes(b"damaged")

    run.live(before=tear)
    assert run.rounds_of_steps() == [0.0] * STEPS
    assert "Refresh round 1 of the hard negatives failed" in run.notices[0]
    assert "incomplete" in run.notices[0]


@pytest.mark.slow
@pytest.mark.parametrize("die_at", [STEPS, pytest.param(0, marks=pytest.mark.slow)])
def test_no_table_is_still_read_when_training_has_ended(
    begin: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch, die_at: int
) -> None:
    """Else the process, when it ends at once, may be aborted in the middle of it."""

    def slowly(path: Path, dataset: RetrievalDataset) -> NegativesTable:
        time.sleep(1)
        return read_negatives(path, dataset)

    monkeypatch.setattr("scripted.read_negatives", slowly)
    begin("run").live(die_at=die_at, every=STEPS - 2, late=True)
    assert not threads("refresh")


@pytest.mark.slow
def test_a_recorded_table_that_is_gone_or_another_one_is_refused(
    begin: Callable[[str], Run], dataset: RetrievalDataset
) -> None:
    run = begin("run")
    run.live(die_at=13)
    other = mined(dataset, 1, newest_checkpoint(run.folder / "checkpoints")[0])
    shutil.rmtree(round_path(run.negatives, 1))
    with pytest.raises(Exception, match=r"round-0001: there is no negatives table"):
        run.live()
    write_negatives(round_path(run.negatives, 1), other, dataset)
    with pytest.raises(StorageError, match=r"round-0001: is not the table that the run used; restore"):
        run.live()
    (run.negatives / ROUNDS).write_text(json.dumps([{"numbr": 1}]))
    with pytest.raises(StorageError, match=r"rounds.json: is damaged or changed"):
        run.live()


def test_a_batch_of_another_table_than_the_recorded_one_is_never_learnt_from(
    begin: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand-over that forgets that the loader runs ahead is caught at the first batch it mixes."""
    monkeypatch.setattr("raytriever.training.negative_refresh.PREFETCH_DEPTH", 0)
    with pytest.raises(RuntimeError, match=r"has negatives of round 0, not 1"):
        begin("run").live()


# Used from step 11 (from 1), failed, used from step 35.
LEDGER = Ledger(
    (
        Round(1, 5, ended=8, used_from=11, digest="a"),
        Round(2, 10, ended=21, reason="gone"),
        Round(3, 25, ended=32, used_from=35, digest="b"),
    )
)


def test_a_step_has_the_table_of_the_last_round_taken_before_it_and_its_age_since_the_weights_that_found_it() -> None:
    versions = [LEDGER.version(step) for step in range(40)]
    assert versions == [0] * 10 + [1] * 24 + [3] * 6
    ages = [LEDGER.age(step) for step in (0, 9, 10, 33, 34, 39)]
    assert ages == [0, 9, 5, 28, 9, 14]
    assert Ledger().age(7) == 7


def test_a_round_begins_where_none_was_under_way_or_had_been() -> None:
    assert not any(LEDGER.is_due(step, 5) for step in range(22))
    # The second had ended after 21 steps, the third after 32.
    assert [step for step in range(40) if LEDGER.is_due(step, 6)] == [24, 36]
    assert [step for step in range(100) if Ledger().is_due(step, 30)] == [30, 60, 90]
    # At the step at which a round ended, no checkpoint was asked for.
    assert not Ledger((Round(1, 5, ended=10),)).is_due(10, 5)
    assert Ledger((Round(1, 5, ended=10),)).is_due(15, 5)


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_ledger(tmp_path) == Ledger()
    logged = LEDGER.with_round(36, ended=40, used_from=43, digest="c", metrics={"refresh_seconds": 1.25})
    assert logged.rounds[-1].number == 4
    logged.write(tmp_path)
    assert read_ledger(tmp_path) == logged


class _Source:
    """Stands for a `Batches`."""


def test_versions_hold_from_their_step_on_and_are_forgotten_behind_the_steps() -> None:
    sources: list[Any] = [_Source() for _ in range(4)]
    versions = BatchVersions(sources[0])
    versions.add(3, sources[1])
    versions.add(7, sources[2])
    assert [sources.index(versions.at(step)) for step in range(9)] == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    versions.forget_before(6)
    assert [sources.index(versions.at(step)) for step in range(6, 9)] == [1, 2, 2]
    with pytest.raises(StopIteration):
        versions.at(2)
    versions.add(7, sources[3])  # the same step again: the later one holds
    assert versions.at(7) is versions.newest is sources[3]
    with pytest.raises(ValueError, match="from step 4 cannot follow a version from step 7"):
        versions.add(4, sources[0])


def test_overlap_is_the_share_of_rows_that_were_there_before() -> None:
    dataset = RetrievalDataset("n", Documents(*[[str(n) for n in range(9)]] * 3), Queries(["a", "b"], ["a", "b"]), {})

    def table(*pairs: tuple[int, int]) -> NegativesTable:
        queries, documents = np.array(pairs).reshape(-1, 2).T
        return NegativesTable.of(dataset, queries, documents, "dense")

    one = table((0, 1), (0, 2), (1, 1), (1, 8))
    assert overlap(one, one) == 1
    assert overlap(one, table((0, 1), (1, 2), (1, 8))) == 0.5  # the pair (1, 2) is not the pair (0, 2)
    assert overlap(table((0, 1), (1, 2), (1, 8)), one) == pytest.approx(2 / 3)
    assert overlap(one, None) == overlap(one, table()) == overlap(table(), one) == 0


def test_the_settings_of_mining_are_those_asked_for() -> None:
    config = RefreshConfig(5, refresh_negatives=7, refresh_relative_margin=0.05)
    mining = config.mining
    assert (mining.method, mining.range_min, mining.depth, mining.num_negatives) == ("dense", 0, 70, 7)
    assert (mining.relative_margin, mining.absolute_margin, mining.max_score) == (0.05, None, None)
    assert RefreshConfig(refresh_pool="2:5").pool == (2, 5)
    assert RefreshConfig(refresh_pool=3).pool == (3, 3)
