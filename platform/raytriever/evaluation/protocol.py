"""Protocol of an evaluation: its metrics, which queries and judgements count, and the names of metrics for users.

Users write `ndcg@10`, `R@1000`, `P@5` or `acc@20`. A metric that may have a cutoff and is written without one (`map`,
`mrr`) has the cutoff of the run files, 100, so the run file gives the same figure in trec_eval."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.dataset import AbsentDocuments, RetrievalDataset
from raytriever.errors import ConfigError, DataError
from raytriever.evaluation.answers import ACCURACY, cutoff_of
from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.ranking import DEFAULT_METRICS, ranking_metric, title
from raytriever.metrics.relevance import Relevance
from raytriever.options import did_you_mean

RUN_DEPTH = 100
AUC, QUERY_AUC, R_PRECISION = "auc", "query_auc", "r_precision"
NONE_ABSENT = AbsentDocuments(np.zeros(0, np.int64), (), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Protocol:
    """What is measured, and what counts.

    Args:
        metrics: names as in `metrics.registry`, and `accuracy_at_K` (Acc@K), `auc` and `query_auc`.
        depth: how many results a query keeps, for run files; metrics with a larger cutoff get more.
        level: the grade from which on a document is relevant, at least 1; nDCG takes grades as they are.
        drop_own: whether a document that bears the query's own id is left out.
    """

    metrics: tuple[str, ...] = (*DEFAULT_METRICS, AUC)
    depth: int = RUN_DEPTH
    level: int = 1
    drop_own: bool = True

    @property
    def ranking_metrics(self) -> tuple[str, ...]:
        """Those that a ranking and judgements decide."""
        return tuple(name for name in self.metrics if name not in (AUC, QUERY_AUC) and not cutoff_of(name))

    @property
    def wants_answers(self) -> bool:
        """Whether Acc@K is among them, for which every query needs answers."""
        return any(cutoff_of(name) for name in self.metrics)

    @property
    def kept(self) -> int:
        """How deep a ranking must be for all metrics with a cutoff, and for the run file."""
        return max([self.depth, *(_cutoff(name) or 0 for name in self.metrics)])

    def kept_of(self, relevance: Relevance) -> int:
        """Return `kept`, or the largest number of relevant documents of a query where R-precision needs more."""
        if R_PRECISION not in self.metrics:
            return self.kept
        relevant = relevance.queries[relevance.scores >= self.level]
        return max(self.kept, int(np.bincount(relevant, minlength=1).max()))


def select_judged_queries(
    dataset: RetrievalDataset, split: str, protocol: Protocol
) -> tuple[Int64[ndarray, " queries"], Relevance]:
    """The queries of a split that have a relevant document, as positions, and all that is judged for them.

    Relevant documents that are not in the corpus are among the judgements, with positions from `len(dataset.documents)`
    on: they are never in a ranking and count among the relevant ones, as in trec_eval.

    Raises:
        DataError: there is none.
    """
    rows, lost = dataset.judgements[split], dataset.absent.get(split, NONE_ABSENT)
    level = protocol.level
    queries = np.union1d(rows.queries[rows.scores >= level], lost.queries[lost.scores >= level])
    if not len(queries):
        what = "a relevant document" if level == 1 else f"a document of grade {level} or more"
        where, remedy = f"{dataset.name}, split {split!r}", "give a split with judgements above 0"
        raise DataError(f"no query has {what}", where, remedy if level == 1 else "lower --relevance-level")
    # A document of a lower grade is no relevant one, and counts in the best order of nDCG.
    rows, lost = rows.where(np.isin(rows.queries, queries)), lost.where(np.isin(lost.queries, queries))
    owners = np.searchsorted(queries, np.concatenate([rows.queries, lost.queries]))
    documents = np.concatenate([rows.documents, len(dataset.documents) + np.arange(len(lost))])
    return queries, Relevance(owners, documents, np.concatenate([rows.scores, lost.scores]), len(queries))


def count_absent(dataset: RetrievalDataset, split: str, protocol: Protocol) -> dict[str, int]:
    """Count the relevant documents that are not in the corpus, all relevant ones, and queries with absent ones only.

    Returns:
        `{"absent_relevant", "relevant", "unanswerable_queries"}`.
    """
    queries, relevance = select_judged_queries(dataset, split, protocol)
    relevant = relevance.scores >= protocol.level
    there = relevant & (relevance.documents < len(dataset.documents))
    return {
        "absent_relevant": int(relevant.sum() - there.sum()),
        "relevant": int(relevant.sum()),
        "unanswerable_queries": len(queries) - len(np.unique(relevance.queries[there])),
    }


def format_absent(counts: Mapping[str, Any]) -> str:
    """Describe `count_absent` in one line; an empty text where every relevant document is in the corpus."""
    if not counts.get("absent_relevant"):
        return ""
    alone = counts["unanswerable_queries"]
    line = (
        f"{counts['absent_relevant']:,} of {counts['relevant']:,} relevant documents are not in the corpus. They count "
        "as not found, as in trec_eval"
    )
    return f"{line}; {alone:,} queries have no other and score 0." if alone else f"{line}."


def count_own_judgements(dataset: RetrievalDataset, split: str, protocol: Protocol) -> int:
    """How many queries are judged relevant to the document with their own id, which is not to be found."""
    queries, relevance = select_judged_queries(dataset, split, protocol)
    own = own_documents(dataset, queries) if protocol.drop_own else np.full(len(queries), -2)
    return int(((relevance.scores >= protocol.level) & (relevance.documents == own[relevance.queries])).sum())


def own_documents(dataset: RetrievalDataset, queries: Iterable[int]) -> Int64[ndarray, " queries"]:
    """For each query the document with the same id, or -2, which stands for none and is never ranked."""
    names = [dataset.queries.ids[int(query)] for query in queries]
    wanted = set(names)
    place = {name: position for position, name in enumerate(dataset.documents.ids) if name in wanted}
    return np.array([place.get(name, -2) for name in names], dtype=np.int64)


def _cutoff(name: str) -> int | None:
    if name in (AUC, QUERY_AUC):
        return None
    return cutoff_of(name) or ranking_metric(name)[1]


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


def read_best_metric(best_metric: str) -> str:
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
