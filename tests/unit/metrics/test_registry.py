"""Metrics by name."""

import pytest

from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.ranking import DEFAULT_METRICS, mrr, ranking_metric, title


def test_names_and_titles() -> None:
    assert ranking_metric("mrr_at_10")[0].measure is mrr
    assert ranking_metric("mrr_at_10")[1] == 10
    assert ranking_metric("map")[1] is None
    assert [title(name) for name in DEFAULT_METRICS] == ["nDCG@10", "MRR@10", "Recall@100"]
    assert title("r_precision") == "R-Prec"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ndgc_at_10", "did you mean 'ndcg'"),
        ("precision", "write it as 'precision_at_10'"),
        ("r_precision_at_3", "write it as 'r_precision'"),
        ("ndcg_at_0", "write it as 'ndcg_at_10'"),
        ("ndcg_at_", "write it as 'ndcg_at_10'"),
        ("ndcg_at_-1", "write it as 'ndcg_at_10'"),
    ],
)
def test_what_is_no_metric_is_an_error(name: str, message: str) -> None:
    with pytest.raises(MetricInputError, match=message):
        ranking_metric(name)
