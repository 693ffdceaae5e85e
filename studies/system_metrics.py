"""Measures of one encoder with one seed: what dev questions fit and choose, and figures on test questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from pathlib import Path
from urllib.parse import unquote

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from cuts import ADAPTIVE, BUFFERED, RANKS, TAIL, THRESHOLD, Rankings, best_threshold, cut, set_f1
from questions import ANSWERABLE, HARD
from raytriever.core.errors import StorageError
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.formats.trec_runs import run_lines
from raytriever.evaluation.evaluation_files import read_per_query
from raytriever.evaluation.protocol import FOREIGN, REMOVED
from raytriever.experiments.study.study_file import AFTER
from raytriever.metrics.answer_confidence import (
    COMBINED,
    DEPTH,
    NAMES,
    SCORE,
    Confidence,
    RankedQuestions,
    area_of,
    fit_confidence,
    held_out_confidence,
)
from raytriever.metrics.answer_threshold import choose_answer_threshold
from raytriever.metrics.selective_retrieval import Statistic, area_under_risk_coverage
from raytriever.retrieval.mining.bm25 import Bm25Index, compare_best
from selection import answer_f1

POOLED = "all"  # the data set of all questions
GAINS = {"over_adaptive": ADAPTIVE, "over_buffered": BUFFERED, "over_tail": TAIL}


class QuestionReader:
    """Reader of the answers of any system to the questions of a data set. BM25 is asked about its corpus."""

    def __init__(self, dataset: RetrievalDataset) -> None:
        self._index = Bm25Index.of(dataset.documents)
        self._position = {name: row for row, name in enumerate(dataset.documents.ids)}

    def read(self, folder: Path, dataset: str) -> tuple[RankedQuestions, Rankings]:
        """Read the answers in an evaluation directory; for BM25 itself its features are those of its own ranking."""
        remedy = f"remove {folder}; it is measured again"
        content = read_per_query(folder / "per_query" / f"{dataset}.json", remedy)
        try:
            results = content["models"][AFTER]
            right, tops = results["metrics"]["success_at_1"], results["top"]
        except KeyError as error:
            raise StorageError(f"has no results on {dataset}", str(folder), remedy) from error
        best = np.array([self._position[top[0][0]] if top else -1 for top in tops], np.int64)
        kinds = [name.partition(":")[0] for name in content["queries"]]
        relevant = [{str(row[0]) for row in rows} for rows in content["relevant"]]
        rankings = _rankings(str(folder / "runs" / AFTER / f"{dataset}.trec"), content["queries"], relevant)
        questions = RankedQuestions(
            rankings.scores[:, :DEPTH],
            np.array(right, np.float64)[:, None] > 0,
            np.array(["" if kind == ANSWERABLE else kind for kind in kinds]),
            *compare_best(self._index, content["texts"], best),
        )
        return questions, rankings


@dataclass(frozen=True)
class SystemMetrics:
    """Measures of an encoder with one seed, or of BM25, from questions by data set, without the pool."""

    dev: Mapping[str, RankedQuestions]
    test: Mapping[str, RankedQuestions]
    dev_rankings: Mapping[str, Rankings]
    test_rankings: Mapping[str, Rankings]

    @cached_property
    def all_dev(self) -> dict[str, RankedQuestions]:
        """Dev questions by data set, the pool last."""
        return _with_pool(self.dev)

    @cached_property
    def all_test(self) -> dict[str, RankedQuestions]:
        """Test questions by data set, the pool last."""
        return _with_pool(self.test)

    @property
    def counts(self) -> dict[str, Sequence[int]]:
        """Numbers of test questions that are resampled together, by data set."""
        sizes = {name: [len(questions)] for name, questions in self.test.items()}
        return {**sizes, POOLED: [size for group in sizes.values() for size in group]}

    @cached_property
    def fitted(self) -> dict[str, Confidence]:
        """Every confidence, fitted on the dev questions of the pool."""
        return {name: fit_confidence(name, self.all_dev[POOLED]) for name in NAMES}

    @cached_property
    def best(self) -> str:
        """Name of the confidence with the lowest AURC on the dev questions of the pool, out of fold."""
        dev = self.all_dev[POOLED]
        return min(NAMES, key=lambda name: area_of(held_out_confidence(name, dev), dev))

    @cached_property
    def _dev_values(self) -> Float64[ndarray, " questions"]:
        """Best confidence of the dev questions of the pool, out of fold."""
        return held_out_confidence(self.best, self.all_dev[POOLED])

    @property
    def dev_area(self) -> float:
        """AURC by the best confidence on the dev questions of the pool: what a variant is chosen by."""
        return area_of(self._dev_values, self.all_dev[POOLED])

    @cached_property
    def threshold(self) -> float:
        """Threshold of the best confidence with the highest F1 on the dev questions of the pool."""
        dev = self.all_dev[POOLED]
        return choose_answer_threshold(self._dev_values, dev.right, dev.answerable, "f1", None).score

    @cached_property
    def score_thresholds(self) -> dict[str, float]:
        """Threshold of the score with the highest F1 on the dev questions of each data set and of the pool."""
        return {
            name: choose_answer_threshold(self.fitted[SCORE].of(dev), dev.right, dev.answerable, "f1", None).score
            for name, dev in self.all_dev.items()
        }

    @cached_property
    def kept(self) -> dict[str, dict[str, Int64[ndarray, "questions 3"]]]:
        """What each rule of `cuts` keeps of the test questions, by data set, the pool last; dev chooses a threshold."""
        threshold = best_threshold(reduce(Rankings.joined, self.dev_rankings.values()))
        kept = {name: cut(rankings, threshold) for name, rankings in self.test_rankings.items()}
        rules = next(iter(kept.values()))
        return {**kept, POOLED: {rule: np.concatenate([value[rule] for value in kept.values()]) for rule in rules}}

    def values(self, dataset: str, name: str) -> Float64[ndarray, " questions"]:
        """Return a confidence of the test questions of a data set."""
        return self.fitted[name].of(self.all_test[dataset])

    def area(self, dataset: str, name: str) -> Statistic:
        """Return the AURC of a confidence on a data set."""
        return partial(area_under_risk_coverage, self.values(dataset, name), self.all_test[dataset].right)

    def score_f1(self, dataset: str, source: str) -> Statistic:
        """Return the F1 on a data set at the threshold of the score of the dev questions of another one."""
        test = self.all_test[dataset]
        return partial(
            answer_f1, self.values(dataset, SCORE), test.right, test.answerable, self.score_thresholds[source]
        )

    @cached_property
    def statistics(self) -> dict[str, dict[str, Statistic]]:
        """Metrics by data set, the pool last, as functions of the weights of its questions."""
        return {dataset: self._statistics_of(dataset) for dataset in self.all_test}

    def value(self, dataset: str, metric: str) -> float:
        """Return a metric of all questions of a data set."""
        return of_all(self.statistics[dataset][metric], len(self.all_test[dataset]))

    def _statistics_of(self, dataset: str) -> dict[str, Statistic]:
        test, values = self.all_test[dataset], self.values(dataset, self.best)
        score, combined, shown = self.area(dataset, SCORE), self.area(dataset, COMBINED), values >= self.threshold
        metrics: dict[str, Statistic] = {
            "aurc": score,
            "aurc_best": self.area(dataset, self.best),
            "combined_gain": _minus(score, combined),
            "f1": partial(answer_f1, values, test.right, test.answerable, self.threshold),
            "answered": _fraction(shown & test.right, test.answerable),
            "passages_f1": set_f1(self.kept[dataset][THRESHOLD]),
        }
        for metric, rule in GAINS.items():
            metrics[metric] = _minus(metrics["passages_f1"], set_f1(self.kept[dataset][rule]))
        for kind in (REMOVED, FOREIGN, HARD):
            if (test.kinds == kind).any():
                metrics[f"shown_{kind}"] = _fraction(shown, test.kinds == kind)
        if dataset != POOLED:
            own = self.score_f1(dataset, dataset)
            others = [self.score_f1(dataset, source) for source in self.dev if source != dataset]
            metrics["transfer_loss"] = lambda weights: (
                own(weights) - np.mean([other(weights) for other in others], axis=0)
            )
        return metrics


def of_all(statistic: Statistic, count: int) -> float:
    """Return a statistic of all of some questions."""
    return float(statistic(np.ones((1, count)))[0])


def _rankings(where: str, queries: Sequence[str], relevant: Sequence[set[str]]) -> Rankings:
    """Return the ranked passages of the queries of a run, given by id; others are skipped."""
    row_of = {query: row for row, query in enumerate(queries)}
    ranked: list[list[tuple[float, bool]]] = [[] for _ in queries]
    for _, query, document, score in run_lines(where):
        row = row_of.get(query, row_of.get(unquote(query)))
        if row is not None:
            ranked[row].append((score, document in relevant[row] or unquote(document) in relevant[row]))
    shape = len(queries), RANKS
    scores, is_relevant = np.full(shape, np.nan), np.zeros(shape, bool)
    for row, unsorted in enumerate(ranked):
        passages = sorted(unsorted, key=lambda passage: -passage[0])[:RANKS]
        scores[row, : len(passages)] = [score for score, _ in passages]
        is_relevant[row, : len(passages)] = [item for _, item in passages]
    return Rankings(scores, is_relevant, np.array([len(item) for item in relevant], np.int64))


def _with_pool(parts: Mapping[str, RankedQuestions]) -> dict[str, RankedQuestions]:
    return {**parts, POOLED: reduce(RankedQuestions.joined, parts.values())}


def _minus(one: Statistic, other: Statistic) -> Statistic:
    return lambda weights: one(weights) - other(weights)


def _fraction(part: Bool[ndarray, " questions"], whole: Bool[ndarray, " questions"]) -> Statistic:
    """Return the fraction of some questions; NaN for a sample without any."""

    def fraction(weights: ndarray) -> ndarray:
        with np.errstate(invalid="ignore"):
            return np.asarray((weights @ (part & whole)) / (weights @ whole))

    return fraction
