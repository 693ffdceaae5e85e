"""The settings of a sweep. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.options import option
from raytriever.paths import SEARCH_SPACE

DEV_LOSS, BATCH_AUC = "dev_loss", "dev_batch_auc"
DEFAULT_TRIALS = 20


@dataclass(frozen=True)
class SearchConfig:
    """What is searched, how, and what the best is best by."""

    search_space: str = option(
        "loss,lambda,temperature",
        "what is searched: any of loss, lambda, temperature, learning-rate, batch, negatives, refresh, warmup, or a "
        "YAML file of settings with values or ranges",
        reads=SEARCH_SPACE,
        form="NAME,NAME|FILE",
    )
    searcher: str = option("grid", "which points are tried", choices=("grid", "random", "optuna"))
    trials: int | None = option(
        None,
        f"how many trials; by default the whole grid, or {DEFAULT_TRIALS}. A sweep goes on when more are asked for",
        minimum=1,
    )
    metric: str = option(
        "ndcg_at_10",
        "what the best trial is best by, on the dev split: ndcg_at_10, mrr_at_10, recall_at_100 or auc of searching "
        "the whole corpus, or dev_loss where all trials have one loss",
    )
    trials_at_once: int | None = option(
        None, "trials at a time; by default as many as the cluster has room for", minimum=1
    )
    asha: bool = option(False, "stop trials that are behind at the same step (asynchronous successive halving)")
    asha_metric: str = option(
        BATCH_AUC,
        "how trials are compared at a validation: dev_batch_auc (of dev batches), dev_loss where all have one loss, "
        "or a metric such as ndcg_at_10 where --eval-datasets or --best-metric measures it during training",
        needs="asha",
    )
    asha_grace: int = option(20, "steps that each trial runs at least", minimum=1, needs="asha")
    asha_factor: int = option(
        3,
        "at each rung one trial in this many continues; rungs are this many times further apart",
        minimum=2,
        needs="asha",
    )
