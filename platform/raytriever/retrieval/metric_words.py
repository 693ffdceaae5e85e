"""Metrics in the words users know, `ndcg@10`, `R@1000`, `P@5`, `acc@20`, and the names they have here and in print.

A metric that may have a cutoff and is written without one (`map`, `mrr`) has the cutoff of the run files, 100. So a
column names what it measures, and the run file next to it gives the same figure in trec_eval.
"""

from __future__ import annotations

import re

from raytriever.errors import ConfigError
from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.registry import ranking_metric, title
from raytriever.options import did_you_mean
from raytriever.retrieval.answer_accuracy import ACCURACY, cutoff_of
from raytriever.retrieval.protocol import AUC, QUERY_AUC, RUN_DEPTH

METRICS_FLAG = "--metrics"
# What a word before the cutoff means, in lower case, without blanks, dashes and underscores.
_WORDS = {
    "ndcg": "ndcg",
    "mrr": "mrr",
    "rr": "mrr",
    "reciprank": "mrr",
    "recall": "recall",
    "r": "recall",
    "map": "map",
    "ap": "map",
    "precision": "precision",
    "p": "precision",
    "rprec": "r_precision",
    "rprecision": "r_precision",
    "judged": "judged",
    "acc": "accuracy",
    "accuracy": "accuracy",
    "success": "success",
    "auc": AUC,
    "queryauc": QUERY_AUC,
}
_TITLES = {AUC: "AUC", QUERY_AUC: "AUC per query"}


def read_metrics(words: str) -> tuple[str, ...]:
    """Names of metrics from words separated by commas; raises `ConfigError` for a word that means none."""
    found = [_name(word.strip()) for word in words.split(",") if word.strip()]
    if not found:
        raise ConfigError("names no metric", METRICS_FLAG, "give some, such as ndcg@10,recall@100,auc")
    return tuple(dict.fromkeys(found))


def deciding_metric(best_metric: str) -> str:
    """The one metric that `--best-metric` means, by its name here: `recall_at_5` for `r_at_5`.

    Raises:
        ConfigError: there is no such metric, or it names several.
    """
    try:
        found = read_metrics(best_metric)
    except ConfigError as error:
        raise ConfigError(error.what, f"--best-metric {best_metric}", error.remedy) from error
    if len(found) != 1:
        raise ConfigError("names several metrics", f"--best-metric {best_metric}", "give one")
    return found[0]


def metric_title(name: str) -> str:
    """A metric's name in print: `nDCG@10`, `Acc@20`, `AUC`."""
    cutoff = cutoff_of(name)
    return _TITLES.get(name) or (f"Acc@{cutoff}" if cutoff else title(name))


def _name(word: str) -> str:
    family, at, cutoff = re.sub(r"_at_|_cut_", "@", word.lower()).partition("@")
    meant = _WORDS.get(re.sub(r"[-_ ]", "", family))
    if meant is None:
        raise ConfigError(f"unknown metric {word!r}", METRICS_FLAG, did_you_mean(family, _WORDS))
    name = f"{meant}_at_{cutoff}" if at else meant
    if meant in _TITLES and not at:
        return name
    if meant == "accuracy" and cutoff_of(name):
        return f"{ACCURACY}{cutoff_of(name)}"
    try:
        metric, _ = ranking_metric(name)
    except MetricInputError as error:
        right = f"{family} without a cutoff" if meant in (*_TITLES, "r_precision") else f"{family}@10"
        raise ConfigError(f"{word!r} has no such cutoff", METRICS_FLAG, f"write {right}") from error
    return name if at or metric.cutoff == "never" else f"{name}_at_{RUN_DEPTH}"
