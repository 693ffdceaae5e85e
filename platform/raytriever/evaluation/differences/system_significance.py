"""Significance tests between all pairs of systems of an evaluation, and the resulting marks and best systems.

There is one family of tests: two-sided paired t-tests over queries for every pair, on every data set and on their mean.
Holm's correction is over all tests of a metric. All marks and bold numbers come from these tests, so no two tables of a
page disagree. The pooled AUC has no value per query; its pseudo-values are used instead (`metrics.auc`)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.core.progress import activity
from raytriever.evaluation.evaluate_split import Evaluation
from raytriever.evaluation.protocol import AUC, metric_title
from raytriever.evaluation.results import TestedPair, datasets_of, finite, metrics_of
from raytriever.metrics.auc import auc_pseudo_values
from raytriever.metrics.significance_tests import FIRST_MARKS, LEVEL, SECOND_MARKS, holm, paired_t_test

MOST_LINES = 40  # largest number of lines about pairs on a terminal
MEAN = "the mean over the data sets"
CORRECTED = f"p < {LEVEL} after Holm's correction over the pairs and data sets of a metric"
# Values of each query, and means over the queries, both by model, data set and metric.
Values = Mapping[str, Mapping[str, Mapping[str, ndarray]]]
Metrics = Mapping[str, Mapping[str, Mapping[str, float | None]]]
# The best model, or the best and the second, by data set (None for the mean over them) and metric.
Best = Mapping[tuple[str | None, str], Sequence[str]]


def best_rule(test: str) -> str:
    """Return the sentence that explains bold and underlined numbers, with the name of the test."""
    return (
        f"Bold is significantly above every other number of its column, underlined above all but the bold one: {test}, "
        f"{CORRECTED}. A column without bold has no significant best."
    )


@activity("testing the differences")
def pair_rows(values: Values) -> list[TestedPair]:
    """Test every pair of systems, on every metric that has a value for each query.

    Queries without a value (such as the AUC of a query whose documents are all relevant) are left out for both systems.
    Data sets with fewer than two queries are left out too, because they allow no test. The mean over several data sets
    is tested if both systems have all of them. Holm's correction covers all tests of a metric, so the probability of
    any false difference of the metric stays at 5 %.

    Args:
        values: values of each query by model, data set and metric; on a data set all models have the same queries.
    """
    datasets, rows = datasets_of(values), list[TestedPair]()
    for metric in metrics_of(values):
        tested: list[TestedPair] = []
        for pair in itertools.combinations(values, 2):
            columns = _pairs(values, metric, *pair)
            if len(datasets) > 1 and len(columns) == len(datasets):
                ours, theirs = zip(*columns.values(), strict=True)
                columns[None] = _weighted(ours), _weighted(theirs)
            tested += [_test(dataset, metric, pair, *both) for dataset, both in columns.items()]
        rows += corrected(tested)
    return rows


def corrected(pairs: Sequence[TestedPair]) -> list[TestedPair]:
    """Return `pairs`, which must be all tests of one metric, with p-values after Holm's correction."""
    return [replace(row, p_holm=float(p)) for row, p in zip(pairs, holm([row.p for row in pairs]), strict=True)]


def _pairs(values: Values, metric: str, model: str, other: str) -> dict[str | None, tuple[ndarray, ndarray]]:
    """Return, by data set, the values of two models for the queries with both values, if there are at least two."""
    pairs: dict[str | None, tuple[ndarray, ndarray]] = {}
    for dataset in values[model]:
        ours, theirs = (values.get(name, {}).get(dataset, {}).get(metric) for name in (model, other))
        if (
            ours is None or theirs is None or len(ours) != len(theirs)
        ):  # finished runs may have evaluated different queries
            continue
        valued = np.isfinite(ours) & np.isfinite(theirs)
        if valued.sum() >= 2:
            pairs[dataset] = ours[valued], theirs[valued]
    return pairs


def _test(dataset: str | None, metric: str, pair: tuple[str, str], ours: ndarray, theirs: ndarray) -> TestedPair:
    if ours.mean() < theirs.mean():
        pair, ours, theirs = pair[::-1], theirs, ours  # so that the difference is at least 0
    test = paired_t_test(ours, theirs)
    effect = finite(test.effect)  # JSON has no infinity
    numbers = test.difference, test.low, test.high, test.p_value, test.p_value
    return TestedPair(dataset, metric, *pair, *numbers, effect, len(ours))


def _weighted(columns: Sequence[ndarray]) -> ndarray:
    """Concatenate the values of all data sets, scaled so that their mean is the mean of the data sets' means."""
    total = sum(map(len, columns))
    return np.concatenate([column * (total / (len(columns) * len(column))) for column in columns])


def pairs_with(pairs: Sequence[TestedPair], baseline: str) -> list[TestedPair]:
    """Return the tests of all other systems against `baseline`. Each `difference` is `model` - `baseline`."""
    return [row if row.against == baseline else _turned(row) for row in pairs if baseline in (row.model, row.against)]


def _turned(row: TestedPair) -> TestedPair:
    return replace(
        row,
        model=row.against,
        against=row.model,
        difference=-row.difference,
        low=-row.high,
        high=-row.low,
        effect=None if row.effect is None else -row.effect,
    )


def collect_marks(pairs: Sequence[TestedPair], baselines: Sequence[str]) -> dict[tuple[str | None, str, str], str]:
    """Return the marks of significance by (data set, model, metric).

    Marks are `+` and `-` for above and below the first baseline, `◆` and `◇` for the second."""
    marks: dict[tuple[str | None, str, str], str] = {}
    for baseline, (above, below) in zip(baselines, (FIRST_MARKS, SECOND_MARKS), strict=False):
        for row in pairs_with(pairs, baseline):
            if row.p_holm < LEVEL:
                key = (row.dataset, row.model, row.metric)
                marks[key] = marks.get(key, "") + (below if row.difference < 0 else above)
    return marks


def marks_legend(baselines: Sequence[str]) -> str:
    """Return a text that explains the marks of significance."""
    signs = zip(baselines, (FIRST_MARKS, SECOND_MARKS), strict=False)
    return "; ".join(f"{above} and {below}: significantly above and below {name}" for name, (above, below) in signs)


def best_models(pairs: Sequence[TestedPair], metrics: Metrics) -> Best:
    """Find the significantly best model of each column, and the second best if it is significant too.

    The best is significantly above every other model that the column shows, and the second above all but the best. A
    column is a data set and a metric; the data set None is the mean over the data sets."""
    above = Counter((row.dataset, row.metric, row.model) for row in pairs if row.p_holm < LEVEL)
    best: dict[tuple[str | None, str], list[str]] = {}
    for dataset, metric in dict.fromkeys((row.dataset, row.metric) for row in pairs):
        shown = [
            model for model, sets in metrics.items() if dataset is None or sets.get(dataset, {}).get(metric) is not None
        ]
        if len(shown) < 2:
            continue
        ranks = {len(shown) - 1 - above[dataset, metric, model]: model for model in shown}
        if 0 in ranks:
            best[dataset, metric] = [ranks[0], *([ranks[1]] if 1 in ranks and len(shown) > 2 else [])]
    return best


def testable_values(evaluation: Evaluation) -> dict[str, Float64[ndarray, " queries"]]:
    """Return the values of each query for every metric that can be tested; pseudo-values for the pooled AUC."""
    values = dict(evaluation.per_query)
    if np.isfinite(evaluation.metrics.get(AUC, np.nan)):
        values[AUC] = auc_pseudo_values(
            evaluation.positive_scores,
            evaluation.negative_scores,
            evaluation.positive_queries,
            evaluation.negative_queries,
            len(evaluation.queries),
        )
    return values


def _best_sentence(rows: Sequence[TestedPair]) -> str:
    wins = Counter(row.model for row in rows)
    best = wins.most_common(1)[0][0]
    near = [row for row in rows if row.model == best and row.p_holm >= LEVEL]
    title = metric_title(rows[0].metric)
    if not near:
        return f"{title}: {best} is the best, significantly above every other"
    others = " and ".join(f"{row.against} ({format_p(row.p_holm)})" for row in near)
    return f"{title}: {best} has the highest mean, not significantly above {others}"


def format_p(p: float) -> str:
    """Format a p-value."""
    return "p < 0.0001" if p < 1e-4 else f"p {p:.4f}"


def pair_lines(rows: Sequence[TestedPair], most: int | None = MOST_LINES, test: str = "paired t-test") -> list[str]:
    """Describe all pairs: for each metric the best system, then a line for each pair, the largest difference first.

    If there are more than `most` pairs, return only the sentences about the best systems."""
    if not rows:
        return []
    several = len({row.dataset for row in rows}) > 1
    over = f"the pairs{' and data sets' * several}"
    lines = [f"All pairs: {test}; p after Holm's correction over {over}, intervals without it"]
    columns: dict[tuple[str | None, str], list[TestedPair]] = {}
    for row in rows:
        columns.setdefault((row.dataset, row.metric), []).append(row)
    for (dataset, _), column in columns.items():
        lines.append(f"  {_best_sentence(column)}" + (f" on {dataset or MEAN}" if several else ""))
        if most is not None and len(rows) > most:
            continue
        pairs = [f"{row.model} - {row.against}" for row in column]
        width = max(map(len, pairs))
        for pair, row in sorted(zip(pairs, column, strict=True), key=lambda item: -item[1].difference):
            interval = f"95 % {row.low:+.4f} to {row.high:+.4f}"
            outcome = "significant" if row.p_holm < LEVEL else "not significant"
            p = format_p(row.p_holm)
            lines.append(f"    {pair:<{width}}  {row.difference:+.4f}  {interval}  {p}  {outcome}")
    return lines
