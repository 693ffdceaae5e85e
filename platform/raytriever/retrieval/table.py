"""Systems as rows, metrics as columns, in plain text."""

from __future__ import annotations

from collections.abc import Mapping

TITLES = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10", "recall_at_100": "Recall@100", "auc": "AUC"}


def metrics_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """One line a system under a header line; four decimals."""
    names = list(next(iter(rows.values())))
    width = max(len(system) for system in rows)
    header = " " * width + "".join(f"{TITLES.get(name, name):>12}" for name in names)
    lines = [
        f"{system:<{width}}" + "".join(f"{metrics[name]:>12.4f}" for name in names) for system, metrics in rows.items()
    ]
    return "\n".join([header, *lines])
