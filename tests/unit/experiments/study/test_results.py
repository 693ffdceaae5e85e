"""Results of a study: comparisons over queries and seeds, claims that held or did not, the table, the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from raytriever.evaluation.differences.differences_by_seed import (
    ABOVE,
    BELOW,
    NOISE,
    UNTESTED,
    SeedComparison,
    SeededResults,
    SeedMetrics,
    seeded_pair_rows,
)
from raytriever.evaluation.differences.system_significance import collect_marks
from raytriever.evaluation.result_tables import Cell, latex, printed
from raytriever.experiments.study.claims import (
    DID_NOT,
    HELD,
    NOT_EVALUATED,
    NOT_TESTED,
    WITHIN_NOISE,
    Claim,
    Judge,
    above,
    above_on_average,
    alike,
    best,
    every,
    larger_gain,
    mostly_above,
    no_worse_on_average,
    smallest,
    steadier,
)
from raytriever.experiments.study.study_page import page_text, study_tables

QUERIES = 40


def seed_metrics(mean: float, seed: int | None = 0, noise: float = 0.01, steps: float | None = None) -> SeedMetrics:
    """Values around a mean, the same queries hard for every row."""
    hard = np.random.default_rng(0).normal(0, 0.2, QUERIES)
    values = mean + hard - hard.mean() + np.random.default_rng([seed or 0, int(1e6 * mean)]).normal(0, noise, QUERIES)
    metrics = {"ndcg_at_10": float(values.mean())}
    return SeedMetrics(seed, metrics if steps is None else metrics | {"steps_to_best": steps}, {"ndcg_at_10": values})


def results(rows: Mapping[str, Sequence[float]], datasets: Sequence[str] = ("one",)) -> SeededResults:
    """Rows by the mean of each seed, the same on all data sets; a row of one mean is not trained."""
    return SeededResults(
        {
            (row, dataset): [seed_metrics(mean, seed if len(means) > 1 else None) for seed, mean in enumerate(means)]
            for row, means in rows.items()
            for dataset in datasets
        }
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        ([0.6], [0.5], ABOVE),
        ([0.5], [0.6], BELOW),
        ([0.6, 0.61, 0.59], [0.5, 0.5, 0.5], ABOVE),
        ([0.5001], [0.5], NOISE),
        # Above in every seed and no chance of queries; but the seeds differ as much.
        ([0.6, 0.9, 0.7], [0.5, 0.55, 0.52], NOISE),
        ([0.6], [0.5, 0.51, 0.5], ABOVE),
        ([0.6], [0.5, 0.59, 0.4], NOISE),
    ],
)
def test_a_difference_counts_over_queries_and_seeds(ours: list[float], theirs: list[float], outcome: str) -> None:
    assert results({"ours": ours, "theirs": theirs}).compare("ours", "theirs", "one", "ndcg_at_10").outcome == outcome


def test_the_interval_of_a_pair_agrees_with_its_test() -> None:
    rows = seeded_pair_rows(results({"a": [0.6, 0.61, 0.59], "b": [0.5, 0.5, 0.5], "c": [0.5001, 0.5, 0.5002]}))
    assert [(row.model, row.against) for row in rows] == [("a", "b"), ("a", "c"), ("c", "b")]
    for row in rows:
        assert row.low < row.difference < row.high
        assert (row.low > 0) == (row.p < 0.05)
        assert row.p_holm >= row.p
    assert [row.p_holm < 0.05 for row in rows] == [True, True, False]


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        ([100.0], [50.0], UNTESTED),
        ([100.0, 101.0, 99.0], [50.0, 51.0, 50.0], ABOVE),
        ([90.0, 10.0, 60.0], [50.0] * 3, NOISE),
    ],
)
def test_metrics_without_values_by_query_are_tested_over_seeds(
    ours: list[float], theirs: list[float], outcome: str
) -> None:
    rows = {
        (row, "one"): [seed_metrics(0.5, seed, steps=steps) for seed, steps in enumerate(values)]
        for row, values in (("ours", ours), ("theirs", theirs))
    }
    assert SeededResults(rows).compare("ours", "theirs", "one", "steps_to_best").outcome == outcome


NDCG = ("ndcg_at_10",)


@pytest.mark.parametrize(
    ("judge", "word"),
    [
        (above("high", "low", NDCG), HELD),
        (above("low", "high", NDCG), DID_NOT),
        (above("high", "near", NDCG), WITHIN_NOISE),
        (alike("high", "near", NDCG), HELD),
        (alike("high", "low", NDCG), DID_NOT),
        (best("high", NDCG, among=("high", "low")), HELD),
        (best("high", NDCG), WITHIN_NOISE),
        (best("low", NDCG), DID_NOT),
        (smallest("low", NDCG), HELD),
        (smallest("high", NDCG), DID_NOT),
        (above("high", "gone", NDCG), NOT_EVALUATED),
        (above("high", "low", NDCG, ("one", "gone")), NOT_EVALUATED),
    ],
)
def test_verdicts_follow_from_the_results(judge: Judge, word: str) -> None:
    rows = results({"high": [0.6, 0.6], "near": [0.5999, 0.6001], "low": [0.5, 0.5]}, ("one", "two"))
    verdict = Claim("it is so", "section 1", judge).verdict(rows)
    assert verdict.word == word
    assert verdict.because


def test_the_table_has_deviations_marks_and_results_of_the_paper() -> None:
    rows = results({"CL": [0.5, 0.5], "MW": [0.6, 0.605], "near": [0.5001, 0.4999]}, ("one", "two"))
    [table] = study_tables(rows, seeded_pair_rows(rows), ["CL"], {("MW", "one", "ndcg_at_10"): 0.45}, "Table 1")
    text = printed([table])
    lines = {line.split(" |")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    deviation = 100 * rows.deviation("MW", "one", "ndcg_at_10")
    cells = lines["MW"].split(" | ")
    assert cells[1] == f"**{100 * rows.mean('MW', 'one', 'ndcg_at_10'):.2f}**<sup>+</sup> ± {deviation:.2f} [45]"
    assert "[45]" not in cells[2]
    assert "<sup>" not in lines["near"]
    average = np.mean([rows.mean("MW", name, "ndcg_at_10") for name in ("one", "two")])
    assert cells[3].rstrip(" |") == f"{100 * average:.2f}"
    assert "over 2 seeds" in text
    assert "The result of the paper is in brackets" in text
    assert r"$\pm$" in latex([table])


def test_the_marks_are_corrected_over_data_sets() -> None:
    """A difference at p just below 0.05 on one data set of four is no finding."""
    rng = np.random.default_rng(3)
    base = rng.normal(0.5, 0.1, QUERIES)
    gains = rng.normal(0, 1, QUERIES)
    gains = (gains - gains.mean()) / gains.std(ddof=1)
    few = base + 0.01 * (gains + 2.1 / np.sqrt(QUERIES))  # t = 2.1, p = 0.042
    cells = {}
    for name in ("one", "two", "three", "four"):
        ours = few if name == "one" else base
        cells["base", name] = [SeedMetrics(None, {"ndcg_at_10": float(base.mean())}, {"ndcg_at_10": base})]
        cells["ours", name] = [SeedMetrics(None, {"ndcg_at_10": float(ours.mean())}, {"ndcg_at_10": ours})]
    whole = SeededResults(cells)
    assert whole.compare("ours", "base", "one", "ndcg_at_10").outcome == ABOVE
    assert not collect_marks(seeded_pair_rows(whole), ["base"])
    alone = SeededResults({key: value for key, value in cells.items() if key[1] == "one"})
    assert collect_marks(seeded_pair_rows(alone), ["base"]) == {("one", "ours", "ndcg_at_10"): "+"}


def test_bold_is_above_every_other_row() -> None:
    rng = np.random.default_rng(2)
    base = rng.random(60)

    def seeds(*shifts: float) -> list[SeedMetrics]:
        values = [base + shift + rng.normal(0, 0.02, 60) for shift in shifts]
        return [
            SeedMetrics(n, {"ndcg_at_10": float(value.mean())}, {"ndcg_at_10": value}) for n, value in enumerate(values)
        ]

    rows = ("low", "mid", "high")
    clear = {"low": seeds(0.0, 0.0), "mid": seeds(0.1, 0.1), "high": seeds(0.2, 0.2)}
    # The mean is higher by as much, and the seeds differ as much.
    mixed = {"low": seeds(0.0, 0.0), "mid": seeds(0.1, 0.1), "high": seeds(0.42, 0.08)}
    equal = {"low": seeds(0.1, 0.1), "mid": seeds(0.1, 0.1), "high": seeds(0.1, 0.1)}
    sets = {"clear": clear, "mixed": mixed, "equal": equal}
    whole = SeededResults({(row, name): cells[row] for name, cells in sets.items() for row in rows})
    [table] = study_tables(whole, seeded_pair_rows(whole), ["low"], {}, "Table 1")
    assert [[cell.rank for cell in row[1:4] if isinstance(cell, Cell)] for row in table.rows] == [
        [None, None, None],
        [1, None, None],
        [0, None, None],
    ]
    assert "A column without bold has no significant best. Means and standard deviations" in table.title


def test_many_data_sets_are_rows() -> None:
    names = [f"set-{number}" for number in range(5)]
    rows = results({"CL": [0.5], "MW": [0.6]}, names)
    [table] = study_tables(rows, seeded_pair_rows(rows), ["CL"], {}, "Table 2")
    assert table.columns == ["Data set", "CL", "MW"]
    assert [row[0] for row in table.rows] == [*names, "Average"]
    assert table.title.startswith("nDCG@10. Table 2")


def test_a_row_without_a_data_set_has_a_dash() -> None:
    cells = dict(results({"CL": [0.5], "MW": [0.6]}, ("one", "two")).cells)
    del cells["MW", "two"]
    [table] = study_tables(SeededResults(cells), [], ["CL"], {}, "Table 1")
    assert next(row[2] for row in table.rows if row[0] == "MW") == Cell("-")
    assert len(table.spans) == 2  # and so there is no average


def test_steps_are_not_printed_times_100() -> None:
    cells = {("CL", "one"): [seed_metrics(0.5, steps=1250.0)], ("MW", "one"): [seed_metrics(0.5, steps=2000.0)]}
    text = printed(study_tables(SeededResults(cells), [], ["CL"], {}, "Table 5"))
    assert "Steps to best" in text
    assert "| 1,250 |" in text
    assert "**2,000**" not in text


def test_the_page_shows_each_claim_with_its_verdict() -> None:
    rows = results({"CL": [0.5], "MW": [0.6]})
    claim = Claim("MW is higher | much", "section 5.2", above("MW", "CL", NDCG))
    tables = study_tables(rows, seeded_pair_rows(rows), ["CL"], {}, "Table 1")
    text = page_text(
        title="MW and CL",
        lines=["small"],
        tables=tables,
        claims=[(claim, claim.verdict(rows))],
        trainings=[["variant"], ["mw"]],
        paper=[["a"], ["1"]],
        figures={"figures/roc.png": "ROC"},
    )
    assert text.startswith("# MW and CL\n")
    assert "| MW is higher \\| much | section 5.2 | **held** | MW - CL: one ndcg_at_10 +0.1" in text
    assert "![ROC](figures/roc.png)" in text
    assert "## The paper's values\n\n| a |" in text


def results_of(means: dict[tuple[str, str], list[float]], deviation: float = 0.01, queries: int = 200) -> SeededResults:
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
    result = results_of({("a", "x"): [0.6], ("b", "x"): [0.5], ("a", "y"): [0.5], ("b", "y"): [0.54]})
    one = on_average(result)
    assert one.difference == pytest.approx(0.03)
    assert one.outcome == ABOVE
    rough = results_of({("a", "x"): [0.6], ("b", "x"): [0.5], ("a", "y"): [0.5], ("b", "y"): [0.54]}, deviation=1.0)
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
    agree = results_of({("a", "x"): [0.6, 0.6, 0.61], ("b", "x"): [0.5, 0.51, 0.52]})
    differ = results_of({("a", "x"): [0.6, 0.6, 0.7], ("b", "x"): [0.5, 0.51, 0.65]})
    assert above_on_average("a", "b", NDCG)(agree).word == HELD
    assert above_on_average("b", "a", NDCG)(agree).word == DID_NOT
    assert above_on_average("a", "b", NDCG)(differ).word == WITHIN_NOISE


def test_a_gap_of_a_size_is_tested_against_that_size() -> None:
    result = results_of({("a", "x"): [0.60, 0.61, 0.605], ("b", "x"): [0.50, 0.50, 0.50]})
    assert above_on_average("a", "b", NDCG, by=0.05)(result).word == HELD
    assert above_on_average("a", "b", NDCG, by=0.2)(result).word == DID_NOT
    near = above_on_average("a", "b", NDCG, by=0.102)(result)
    assert near.word == WITHIN_NOISE
    assert near.because.startswith("a - b, mean over data sets, against 0.102: ndcg_at_10 +0.1050")
    rough = results_of({("a", "x"): [0.60, 0.61, 0.605], ("b", "x"): [0.50, 0.50, 0.50]}, deviation=1.0)
    assert above_on_average("a", "b", NDCG, by=0.05)(rough).word == WITHIN_NOISE


def test_no_worse_holds_within_the_margin_and_above_it_but_not_below() -> None:
    cells = {("a", "x"): [0.5], ("b", "x"): [0.505], ("c", "x"): [0.6]}
    assert no_worse_on_average("a", "b", NDCG)(results_of(cells)).word == HELD
    assert no_worse_on_average("c", "a", NDCG)(results_of(cells)).word == HELD
    assert no_worse_on_average("a", "c", NDCG)(results_of(cells)).word == DID_NOT
    assert no_worse_on_average("a", "c", NDCG)(results_of(cells, deviation=3.0)).word == WITHIN_NOISE


def test_a_majority_is_more_than_half_of_the_cells() -> None:
    cells = {("a", item): [0.6] for item in "xyz"} | {("b", "x"): [0.5], ("b", "y"): [0.5], ("b", "z"): [0.7]}
    assert mostly_above(("a",), "b", NDCG)(results_of(cells)).word == HELD
    assert mostly_above(("b",), "a", NDCG)(results_of(cells)).word == DID_NOT
    half = {key: value for key, value in cells.items() if key[1] != "x"}
    assert mostly_above(("a",), "b", NDCG)(results_of(half)).word == WITHIN_NOISE
    with pytest.raises(KeyError):
        mostly_above(("a",), "missing", NDCG)(results_of(half))


def test_spreads_are_tested_over_seeds_and_one_seed_is_not_tested() -> None:
    def rows(seeds: list[float]) -> dict[tuple[str, str], list[float]]:
        near = {("a", "x"): [0.5 + 0.001 * s for s in seeds], ("b", "x"): [0.51 + 0.002 * s for s in seeds]}
        wide = {("c", "x"): [0.5 + 0.001 * s for s in seeds], ("d", "x"): [0.6 + 0.003 * s for s in seeds]}
        return near | wide

    three = results_of(rows([0.0, 1.0, 2.0]))
    assert steadier(("a", "b"), ("c", "d"), NDCG)(three).word == HELD
    assert steadier(("c", "d"), ("a", "b"), NDCG)(three).word == DID_NOT
    assert steadier(("a", "b"), ("c", "d"), NDCG)(results_of(rows([0.0]))).word == NOT_TESTED


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
    assert every(up, up)(results_of(cells)).word == HELD
    assert every(up, level)(results_of(cells)).word == WITHIN_NOISE
    assert every(up, down, level)(results_of(cells)).word == DID_NOT


def test_a_gain_is_compared_with_another_gain() -> None:
    means = {("a+", "x"): [0.60, 0.61], ("a", "x"): [0.50, 0.50], ("b+", "x"): [0.52, 0.525], ("b", "x"): [0.50, 0.50]}
    more, less = ("a+", "a"), ("b+", "b")
    assert larger_gain(more, less, NDCG, ("x",))(results_of(means)).word == HELD
    assert larger_gain(less, more, NDCG, ("x",))(results_of(means)).word == DID_NOT
    assert larger_gain(more, less, NDCG, ("x",))(results_of(means, deviation=2.0)).word == WITHIN_NOISE
    of_two_minds = results_of({**means, ("b+", "x"): [0.52, 0.63]})
    assert larger_gain(more, less, NDCG, ("x",))(of_two_minds).word == WITHIN_NOISE
