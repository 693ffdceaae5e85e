"""The parts a refresh is made of: the record, versions by step, figures, settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raytriever.data.dataset import Documents, Queries, RetrievalDataset
from raytriever.data.negatives import NegativesTable
from raytriever.training.config import RefreshConfig
from raytriever.training.loader import SourceVersions
from raytriever.training.refresh import Ledger, Round, overlap, read_ledger

# Used from step 11 (from 1), failed, used from step 35.
LEDGER = Ledger(
    (
        Round(1, 5, ended=8, used_from=11, digest="a"),
        Round(2, 10, ended=21, reason="gone"),
        Round(3, 25, ended=32, used_from=35, digest="b"),
    )
)


def test_the_table_of_a_step_is_that_of_the_last_round_taken_before_it() -> None:
    versions = [LEDGER.version(step) for step in range(40)]
    assert versions == [0] * 10 + [1] * 24 + [3] * 6


def test_negatives_age_with_every_step_from_the_weights_that_found_them() -> None:
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
    logged = LEDGER.with_round(36, ended=40, used_from=43, digest="c", measured={"refresh_seconds": 1.25})
    assert logged.rounds[-1].number == 4
    logged.write(tmp_path)
    assert read_ledger(tmp_path) == logged


class _Source:
    """Stands for a `BatchSource`."""


def test_versions_hold_from_their_step_on_and_are_forgotten_behind_the_steps() -> None:
    sources: list[Any] = [_Source() for _ in range(4)]
    versions = SourceVersions(sources[0])
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
