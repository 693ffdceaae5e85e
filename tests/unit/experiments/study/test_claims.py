"""Claims about averages, majorities and spreads: held, did not hold, and within noise."""

from __future__ import annotations

import numpy as np
import pytest

from raytriever.evaluation.differences.differences_by_seed import (
    ABOVE,
    NOISE,
    SeedComparison,
    SeededResults,
    SeedMetrics,
    seeded_pair_rows,
)
from raytriever.experiments.study.claims import (
    DID_NOT,
    HELD,
    NOT_TESTED,
    WITHIN_NOISE,
    above,
    above_on_average,
    alike,
    best,
    every,
    larger_gain,
    mostly_above,
    no_worse_on_average,
    steadier,
)

NDCG = ("ndcg_at_10",)


def results(means: dict[tuple[str, str], list[float]], deviation: float = 0.01, queries: int = 200) -> SeededResults:
    """Return results with one mean per seed for each row and data set; a row of one mean is not trained.

    Queries of the rows differ by chance."""
    result = {}
    for index, (cell, values) in enumerate(means.items()):
        drawn = np.random.default_rng(index).normal(0, deviation, queries)
        drawn -= drawn.mean()
        result[cell] = [
            SeedMetrics(seed if len(values) > 1 else None, {NDCG[0]: value}, {NDCG[0]: value + drawn})
            for seed, value in enumerate(values)
        ]
    return SeededResults(result)


def test_a_mean_over_data_sets_weighs_each_alike_and_is_tested_by_queries() -> None:
    result = results({("a", "x"): [0.6], ("b", "x"): [0.5], ("a", "y"): [0.5], ("b", "y"): [0.54]})
    one = on_average(result)
    assert one.difference == pytest.approx(0.03)
    assert one.outcome == ABOVE
    rough = results({("a", "x"): [0.6], ("b", "x"): [0.5], ("a", "y"): [0.5], ("b", "y"): [0.54]}, deviation=1.0)
    assert on_average(rough).outcome == NOISE
    error = np.sqrt(sum(np.var(d, ddof=1) / 200 for d in _differences(rough))) / 2
    assert on_average(rough).p == pytest.approx(_two_sided(0.03 / error), rel=1e-2)


def on_average(result: SeededResults) -> SeedComparison:
    return result.contrast({"a": 1, "b": -1}, ["x", "y"], NDCG[0])


def _differences(result: SeededResults) -> list[np.ndarray]:
    return [
        result.cells["a", name][0].per_query[NDCG[0]] - result.cells["b", name][0].per_query[NDCG[0]]
        for name in ("x", "y")
    ]


def _two_sided(z: float) -> float:
    from scipy.stats import norm

    return float(2 * norm.sf(z))


def test_seeds_that_disagree_make_an_average_noise() -> None:
    agree = results({("a", "x"): [0.6, 0.6, 0.61], ("b", "x"): [0.5, 0.51, 0.52]})
    differ = results({("a", "x"): [0.6, 0.6, 0.7], ("b", "x"): [0.5, 0.51, 0.65]})
    assert above_on_average("a", "b", NDCG)(agree).word == HELD
    assert above_on_average("b", "a", NDCG)(agree).word == DID_NOT
    assert above_on_average("a", "b", NDCG)(differ).word == WITHIN_NOISE


def test_a_gap_of_a_size_is_tested_against_that_size() -> None:
    result = results({("a", "x"): [0.60, 0.61, 0.605], ("b", "x"): [0.50, 0.50, 0.50]})
    assert above_on_average("a", "b", NDCG, by=0.05)(result).word == HELD
    assert above_on_average("a", "b", NDCG, by=0.2)(result).word == DID_NOT
    near = above_on_average("a", "b", NDCG, by=0.102)(result)
    assert near.word == WITHIN_NOISE
    assert near.because.startswith("a - b, mean over data sets, against 0.102: ndcg_at_10 +0.1050")
    rough = results({("a", "x"): [0.60, 0.61, 0.605], ("b", "x"): [0.50, 0.50, 0.50]}, deviation=1.0)
    assert above_on_average("a", "b", NDCG, by=0.05)(rough).word == WITHIN_NOISE


def test_no_worse_holds_within_the_margin_and_above_it_but_not_below() -> None:
    cells = {("a", "x"): [0.5], ("b", "x"): [0.505], ("c", "x"): [0.6]}
    assert no_worse_on_average("a", "b", NDCG)(results(cells)).word == HELD
    assert no_worse_on_average("c", "a", NDCG)(results(cells)).word == HELD
    assert no_worse_on_average("a", "c", NDCG)(results(cells)).word == DID_NOT
    assert no_worse_on_average("a", "c", NDCG)(results(cells, deviation=3.0)).word == WITHIN_NOISE


def test_a_majority_is_more_than_half_of_the_cells() -> None:
    cells = {("a", item): [0.6] for item in "xyz"} | {("b", "x"): [0.5], ("b", "y"): [0.5], ("b", "z"): [0.7]}
    assert mostly_above(("a",), "b", NDCG)(results(cells)).word == HELD
    assert mostly_above(("b",), "a", NDCG)(results(cells)).word == DID_NOT
    half = {key: value for key, value in cells.items() if key[1] != "x"}
    assert mostly_above(("a",), "b", NDCG)(results(half)).word == WITHIN_NOISE
    with pytest.raises(KeyError):
        mostly_above(("a",), "missing", NDCG)(results(half))


def test_spreads_are_tested_over_seeds_and_one_seed_is_not_tested() -> None:
    def rows(seeds: list[float]) -> dict[tuple[str, str], list[float]]:
        near = {("a", "x"): [0.5 + 0.001 * s for s in seeds], ("b", "x"): [0.51 + 0.002 * s for s in seeds]}
        wide = {("c", "x"): [0.5 + 0.001 * s for s in seeds], ("d", "x"): [0.6 + 0.003 * s for s in seeds]}
        return near | wide

    three = results(rows([0.0, 1.0, 2.0]))
    assert steadier(("a", "b"), ("c", "d"), NDCG)(three).word == HELD
    assert steadier(("c", "d"), ("a", "b"), NDCG)(three).word == DID_NOT
    assert steadier(("a", "b"), ("c", "d"), NDCG)(results(rows([0.0]))).word == NOT_TESTED


def test_claims_on_trainings_of_one_seed_are_not_tested() -> None:
    means = {"a": 0.7, "b": 0.5, "c": 0.5}
    one = SeededResults(
        {
            (row, "x"): [SeedMetrics(0, {NDCG[0]: mean}, {NDCG[0]: mean + np.linspace(-0.1, 0.1, 20)})]
            for row, mean in means.items()
        }
    )
    judges = [
        above("a", "b", NDCG),
        alike("b", "c", NDCG),
        best("a", NDCG),
        mostly_above(("a",), "b", NDCG),
        no_worse_on_average("a", "b", NDCG),
        every(above("a", "b", NDCG)),
    ]
    assert {judge(one).word for judge in judges} == {NOT_TESTED}
    assert seeded_pair_rows(one) == []


def test_several_claims_at_once_hold_together() -> None:
    cells = {("a", "x"): [0.6], ("b", "x"): [0.5], ("c", "x"): [0.6]}
    up, down, level = above("a", "b", NDCG), above("b", "a", NDCG), above("a", "c", NDCG)
    assert every(up, up)(results(cells)).word == HELD
    assert every(up, level)(results(cells)).word == WITHIN_NOISE
    assert every(up, down, level)(results(cells)).word == DID_NOT


def test_a_gain_is_compared_with_another_gain() -> None:
    means = {("a+", "x"): [0.60, 0.61], ("a", "x"): [0.50, 0.50], ("b+", "x"): [0.52, 0.525], ("b", "x"): [0.50, 0.50]}
    more, less = ("a+", "a"), ("b+", "b")
    assert larger_gain(more, less, NDCG, ("x",))(results(means)).word == HELD
    assert larger_gain(less, more, NDCG, ("x",))(results(means)).word == DID_NOT
    assert larger_gain(more, less, NDCG, ("x",))(results(means, deviation=2.0)).word == WITHIN_NOISE
    of_two_minds = results({**means, ("b+", "x"): [0.52, 0.63]})
    assert larger_gain(more, less, NDCG, ("x",))(of_two_minds).word == WITHIN_NOISE
