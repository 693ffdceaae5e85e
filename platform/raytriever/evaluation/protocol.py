"""Protocol of an evaluation: metrics, the queries and judgements to use, and the parser of user input.

Users write `ndcg@10`, `R@1000`, `P@5` or `acc@20`. For a metric with an optional cutoff (`map`, `mrr`), the default is
100, the depth of run files. So trec_eval computes the same value from a run file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import get_args

import numpy as np
from jaxtyping import Bool, Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, DataError, setting
from raytriever.core.unknown_names import did_you_mean
from raytriever.data.dataset import AbsentDocuments, RetrievalDataset
from raytriever.metrics.answer_threshold import CONFORMAL, AnswerTarget
from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.pair_threshold import PairTarget
from raytriever.metrics.passage_threshold import KEPT, PassageTarget
from raytriever.metrics.ranking_metrics import DEFAULT_METRICS, Relevance, ranking_metric, title

RUN_DEPTH = 100
# Kinds of queries without an answer: marked in the data set, or added; see `evaluation.requested_models`.
GIVEN, REMOVED, FOREIGN = "given", "removed", "foreign"
AUC, QUERY_AUC, R_PRECISION, ACCURACY = "auc", "query_auc", "r_precision", "accuracy_at_"
METRICS_FLAG = setting("metrics")
# Names that users write, in lower case and without blanks, dashes and underscores -> metrics.
_FAMILIES = {
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
_NO_ABSENT = AbsentDocuments(np.zeros(0, np.int64), (), np.zeros(0, np.int64))
# Entry of `own_documents` for a query without an own document. Rankings, which are padded with -1, never contain it.
_NO_DOCUMENT = -2


@dataclass(frozen=True)
class Protocol:
    """Metrics of an evaluation, and the rules for judgements and results."""

    # Names of `metrics.ranking_metrics`, and `accuracy_at_K` (Acc@K), `auc` and `query_auc`.
    metrics: tuple[str, ...] = (*DEFAULT_METRICS, AUC)
    depth: int = RUN_DEPTH  # number of results per query in run files; a metric with a larger cutoff increases it
    level: int = 1  # lowest grade of a relevant document, at least 1. nDCG uses the grades themselves.
    drop_own: bool = True  # whether a document with the query's own id is left out of the query's results

    @property
    def ranking_metrics(self) -> tuple[str, ...]:
        """Metrics that are computed from a ranking and judgements."""
        return tuple(name for name in self.metrics if name not in (AUC, QUERY_AUC) and not accuracy_cutoff(name))

    @property
    def wants_answers(self) -> bool:
        """True if Acc@K is among the metrics; then every query needs answers."""
        return any(accuracy_cutoff(name) for name in self.metrics)

    @property
    def kept(self) -> int:
        """Number of results per query that all cutoffs and the run file need."""
        return max([self.depth, *(_cutoff(name) or 0 for name in self.metrics)])

    def kept_of(self, relevance: Relevance) -> int:
        """Return `kept`, or the largest number of relevant documents of a query if R-precision needs this depth."""
        if R_PRECISION not in self.metrics:
            return self.kept
        relevant = relevance.queries[relevance.scores >= self.level]
        return max(self.kept, int(np.bincount(relevant, minlength=1).max()))


@dataclass(frozen=True)
class JudgedQueries:
    """Queries of a split that have a relevant document, with all their judgements.

    Judged documents that the corpus lacks have the positions from `len(dataset.documents)` on. They are in no ranking,
    but are included in the number of relevant documents, as in trec_eval."""

    dataset: RetrievalDataset
    level: int
    drop_own: bool
    queries: Int64[ndarray, " queries"]  # positions in the data set, ascending
    relevance: Relevance  # judgements whose queries are indices into `queries`
    # Positions of the queries without an answer in the corpus, by kind; see `evaluation.requested_models`. Ranking
    # metrics leave them out.
    unanswerable: Mapping[str, Int64[ndarray, " unanswerable"]] = field(default_factory=dict)

    @cached_property
    def own_documents(self) -> Int64[ndarray, " queries"]:
        """Position of each query's own document (of the same id), which its results leave out; -2 if there is none."""
        if not self.drop_own:
            return np.full(len(self.queries), _NO_DOCUMENT)
        names = [self.dataset.queries.ids[query] for query in self.queries.tolist()]
        wanted_ids = set(names)
        positions = {name: position for position, name in enumerate(self.dataset.documents.ids) if name in wanted_ids}
        return np.array([positions.get(name, _NO_DOCUMENT) for name in names], dtype=np.int64)

    @property
    def is_relevant(self) -> Bool[ndarray, " judgements"]:
        """True for judgements whose grade is relevant."""
        return self.relevance.scores >= self.level

    @property
    def is_in_corpus(self) -> Bool[ndarray, " judgements"]:
        """True for judgements whose document is in the corpus."""
        return self.relevance.documents < len(self.dataset.documents)

    @property
    def is_own(self) -> Bool[ndarray, " judgements"]:
        """True for judgements of a query's own document."""
        return self.relevance.documents == self.own_documents[self.relevance.queries]

    def count_own(self) -> int:
        """Count the queries whose own document is judged relevant, although their results leave it out."""
        return int((self.is_relevant & self.is_own).sum())

    def count_absent(self) -> dict[str, int]:
        """Count relevant documents, the absent ones among them, and queries whose relevant documents are all absent."""
        relevant, present = int(self.is_relevant.sum()), self.is_relevant & self.is_in_corpus
        return {
            "absent_relevant": relevant - int(present.sum()),
            "relevant": relevant,
            "unanswerable_queries": len(self.queries) - len(np.unique(self.relevance.queries[present])),
        }


def select_judged_queries(dataset: RetrievalDataset, split: str, protocol: Protocol) -> JudgedQueries:
    """Select the queries of a split that have a relevant document."""
    rows, absent = dataset.judgements[split], dataset.absent.get(split, _NO_ABSENT)
    level = protocol.level
    queries = np.union1d(rows.queries[rows.scores >= level], absent.queries[absent.scores >= level])
    if not len(queries):
        what = "a relevant document" if level == 1 else f"a document of grade {level} or more"
        where, remedy = f"{dataset.name}, split {split!r}", "give a split with judgements above 0"
        raise DataError(f"no query has {what}", where, remedy if level == 1 else f"lower {setting('relevance_level')}")
    # Documents with lower grades are not relevant, but the ideal ranking of nDCG contains them.
    rows, absent = rows.where(np.isin(rows.queries, queries)), absent.where(np.isin(absent.queries, queries))
    owners = np.searchsorted(queries, np.concatenate([rows.queries, absent.queries]))
    documents = np.concatenate([rows.documents, len(dataset.documents) + np.arange(len(absent))])
    relevance = Relevance(owners, documents, np.concatenate([rows.scores, absent.scores]), len(queries))
    unanswerable = {GIVEN: dataset.unanswerable[split]} if split in dataset.unanswerable else {}
    return JudgedQueries(dataset, level, protocol.drop_own, queries, relevance, unanswerable)


def accuracy_cutoff(name: str) -> int | None:
    """Return K of the metric name `accuracy_at_K`; None for any other name."""
    cutoff = name.removeprefix(ACCURACY)
    return int(cutoff) if name.startswith(ACCURACY) and cutoff.isascii() and cutoff.isdecimal() else None


def check_answers(dataset: RetrievalDataset, split: str, queries: ndarray) -> None:
    """Raise `DataError` unless every query has an answer. Queries are given by position in the data set."""
    answered = dataset.answers.queries if dataset.answers is not None else np.zeros(0, np.int64)
    unanswered = np.setdiff1d(queries, answered)
    if len(unanswered):
        what = f"query {dataset.queries.ids[int(unanswered[0])]!r} has no answers"
        remedy = f"leave acc@K out of {METRICS_FLAG}, or add answers.jsonl (docs/reference/formats.md)"
        raise DataError(what, f"{dataset.name}, split {split!r}", remedy)


def read_metrics(text: str) -> tuple[str, ...]:
    """Read metrics that a user wrote, separated by commas, such as `ndcg@10,R@1000,auc`.

    Return the names of `Protocol.metrics` without repetitions: `map` becomes `map_at_100`."""
    names = [_read_metric(word.strip()) for word in text.split(",") if word.strip()]
    if not names:
        raise ConfigError("names no metric", METRICS_FLAG, "give one or more, such as ndcg@10,recall@100,auc")
    return tuple(dict.fromkeys(names))


def read_best_metric(best_metric: str) -> str:
    """Return the full name of the metric in `--best-metric`: `recall_at_5` for `r_at_5`."""
    try:
        names = read_metrics(best_metric)
    except ConfigError as error:
        raise error.at(setting("best_metric", best_metric)) from error
    if len(names) != 1:
        raise ConfigError("names several metrics", setting("best_metric", best_metric), "give one metric")
    return names[0]


def metric_title(name: str) -> str:
    """Return a metric's name for tables, such as `nDCG@10`. An unknown name (from another version) is not changed."""
    if cutoff := accuracy_cutoff(name):
        return f"Acc@{cutoff}"
    try:
        return _TITLES.get(name) or title(name)
    except MetricInputError:
        return name


def _cutoff(name: str) -> int | None:
    if name in (AUC, QUERY_AUC):
        return None
    return accuracy_cutoff(name) or ranking_metric(name)[1]


def _read_metric(word: str) -> str:
    written, at, cutoff = re.sub(r"_at_|_cut_", "@", word.lower()).partition("@")
    family = _FAMILIES.get(re.sub(r"[-_ ]", "", written))
    if family is None:
        raise ConfigError(f"unknown metric {word!r}", METRICS_FLAG, did_you_mean(written, _FAMILIES))
    name = f"{family}_at_{cutoff}" if at else family
    if family in _TITLES and not at:
        return name
    if family == "accuracy" and accuracy_cutoff(name):
        return f"{ACCURACY}{accuracy_cutoff(name)}"
    try:
        metric, _ = ranking_metric(name)
    except MetricInputError as error:
        right = f"{written} without a cutoff" if family in (*_TITLES, "r_precision") else f"{written}@10"
        raise ConfigError(f"{word!r} does not have a valid cutoff", METRICS_FLAG, f"write {right}") from error
    return name if at or metric.cutoff == "never" else f"{name}_at_{RUN_DEPTH}"


CALIBRATE = setting("calibrate")
ANSWER_TARGETS: tuple[AnswerTarget, ...] = get_args(AnswerTarget)
PAIR_TARGETS: tuple[PairTarget, ...] = get_args(PairTarget)
# Target and its wanted value; the value is None for `f1`.
ThresholdTarget = tuple[AnswerTarget | PairTarget | PassageTarget, float | None]


def parse_targets(words: Sequence[str]) -> list[ThresholdTarget]:
    """Read targets such as `top-precision=0.9`, `f1`, `wrong-answers=0.05`, `kept=0.95` and `precision=0.9`."""
    targets: list[ThresholdTarget] = []
    for word in words:
        name, _, number = word.strip().lower().replace("-", "_").partition("=")
        target = next((target for target in (*ANSWER_TARGETS, *PAIR_TARGETS, KEPT) if target == name.strip()), None)
        try:
            wanted = float(number)
        except ValueError:
            wanted = float("nan")
        if target is None or (number if target == "f1" else not 0 < wanted <= 1):
            remedy = (
                "write top-precision=0.9, wrong-answers=0.05, missed=0.1, answered=0.8, f1, kept=0.95, precision=0.9 "
                "or recall=0.8, above 0 and at most 1"
            )
            raise ConfigError(f"{word!r} is not a target", CALIBRATE, remedy)
        if target in CONFORMAL and wanted == 1:
            raise ConfigError(f"{word!r} allows any result", CALIBRATE, "give a fraction below 1")
        if target == KEPT and wanted == 1:
            raise ConfigError(f"{word!r} cannot be promised", CALIBRATE, "give a fraction below 1")
        targets.append((target, None if target == "f1" else wanted))
    return targets


def asks_removed(word: str) -> bool:
    """Return whether a word of `--unanswerable` is `removed` or `removed=FRACTION`."""
    return word.partition("=")[0] == REMOVED


def removed_fraction(words: Iterable[str]) -> float:
    """Return the fraction of questions that lose their answers: 0.5 for `removed`, 0.2 for `removed=0.2`, else 0."""
    fraction = 0.0
    for word in filter(asks_removed, words):
        _, sign, number = word.partition("=")
        try:
            given = float(number) if sign else 0.5
        except ValueError:
            given = float("nan")
        if fraction or not 0 < given < 1:
            what = "is given twice" if fraction else "is not a fraction of the questions"
            remedy = "give one fraction above 0 and below 1, such as removed=0.2"
            raise ConfigError(what, setting("unanswerable", word), remedy)
        fraction = given
    return fraction


def is_missed(target: str, wanted: float | None, low: float | None, high: float | None) -> bool:
    """Return whether the 95 % interval of what a threshold achieves lies entirely on the wrong side of its target."""
    if wanted is None or low is None or high is None:
        return False
    return low > wanted if target in CONFORMAL else high < wanted


def target_text(target: str, wanted: float | None) -> str:
    """Format a target, such as `top-precision 0.9`."""
    return target.replace("_", "-") + ("" if wanted is None else f" {wanted:g}")
