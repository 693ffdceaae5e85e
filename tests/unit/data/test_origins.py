from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raytriever.data.records import ORIGINS
from raytriever.data.sampling.examples import RANDOM, counts_by_origin, parse_mix
from raytriever.errors import ConfigError

SHARES = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 10)), min_size=5, max_size=5).filter(lambda row: sum(row) > 0)


def mix(**shares: float) -> np.ndarray:
    return np.array([shares.get(name.replace("-", "_"), 0.0) for name in ORIGINS])


def test_a_mix_is_read_and_adds_up_to_one() -> None:
    assert parse_mix("") is None
    assert parse_mix(" ") is None
    assert parse_mix("bm25=0.5,random=0.5").tolist() == mix(bm25=0.5, random=0.5).tolist()
    assert parse_mix(" cross-query = 1 , gold=3").tolist() == mix(cross_query=0.25, gold=0.75).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bm24=1", "--negatives-mix: unknown origin 'bm24'; did you mean 'bm25'?"),
        ("bm25", "the share of 'bm25' is ''; give a number above 0"),
        ("bm25=0", "the share of 'bm25' is '0'"),
        ("bm25=-1", "the share of 'bm25' is '-1'"),
        ("bm25=nan", "the share of 'bm25' is 'nan'"),
        ("bm25=inf", "the share of 'bm25' is 'inf'"),
        ("bm25=1,", "unknown origin ''"),
        ("bm25=1,bm25=2", "'bm25' is named twice"),
    ],
)
def test_a_wrong_mix_is_reported(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_mix(text)
    assert message in str(error.value)


@example([0.0, 0.0, 0.0, 0.0, 1.0], [False] * 5, 1, 1 - 2**-53)
@example([0.1, 0.2, 0.3, 0.0, 0.0], [True] * 5, 3, 0.0)
@settings(deadline=None)
@given(
    shares=SHARES,
    there=st.lists(st.booleans(), min_size=5, max_size=5),
    wanted=st.integers(0, 40),
    shift=st.floats(0, 1, exclude_max=True),
)
def test_a_group_is_whole_and_nearest_to_its_shares(
    shares: list[float], there: list[bool], wanted: int, shift: float
) -> None:
    parts = np.array(shares) / sum(shares)
    counts = counts_by_origin(parts, np.array([there]), np.array([wanted]), np.array([shift]))[0]
    assert counts.sum() == wanted
    assert (counts >= 0).all()
    absent = ~np.array(there)
    absent[RANDOM] = shares[RANDOM] == 0 and any(
        have and share for have, share in zip(there[:RANDOM], shares[:RANDOM], strict=True)
    )
    assert not counts[absent].any()
    if there[:RANDOM] == [True] * RANDOM and parts[:RANDOM].sum() > 0:
        assert (np.abs(counts - parts * wanted) < 1 + 1e-9).all()


@pytest.mark.parametrize("wanted", [1, 3, 7])
def test_shares_hold_in_expectation_even_for_one_negative(wanted: int) -> None:
    shares = mix(gold=0.05, bm25=0.5, dense=0.25, random=0.2)
    shift = (np.arange(10_000) + 0.5) / 10_000
    counts = counts_by_origin(shares, np.ones((10_000, 5), bool), np.full(10_000, wanted), shift)
    np.testing.assert_allclose(counts.mean(axis=0), shares * wanted, atol=1e-3)


def test_an_origin_without_negatives_leaves_its_share_to_the_others_and_random_comes_last() -> None:
    shares = mix(bm25=0.4, dense=0.4, random=0.2)
    there = np.array([[0, 1, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 1, 0]], dtype=bool)
    counts = counts_by_origin(shares, there, np.full(4, 10), np.full(4, 0.5))
    assert counts.tolist() == [[0, 4, 4, 0, 2], [0, 8, 0, 0, 2], [0, 0, 0, 0, 10], [0, 0, 0, 0, 10]]
