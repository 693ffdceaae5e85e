"""Measures of one encoder with one seed: thresholds and curves from dev questions, figures on test questions.

Confidences are those of `metrics.confidence` that follow from the ranked scores. `cross-encoder`, the score that a
cross-encoder gives the best document, is a further confidence where one is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from raytriever.data.run_files import read_run_scores
from raytriever.errors import StorageError
from raytriever.evaluation.files import read_per_query
from raytriever.metrics.confidence import DEVIATION, MARGIN, SCORE, confidences
from raytriever.metrics.probability import ScoreMap, fit_isotonic, fit_platt, squared_calibration_error
from raytriever.metrics.selective import (
    Statistic,
    abstention_nauc,
    answer_f1,
    area_under_risk_coverage,
    best_answer_threshold,
    least_area,
    precision_at_coverage,
)
from raytriever.studies.definition import Evaluated
from raytriever.studies.evaluation_files import read_cross_scores

POOLED = "all"  # the data set of all questions
CROSS_ENCODER = "cross-encoder"
DEPTH = 100  # ranked scores of a query
COVERAGES = (0.25, 0.5)
# Confidences of MTEB's nAUC, by its names.
NAUC = {"nauc": SCORE, "nauc_std": DEVIATION, "nauc_diff1": MARGIN}


@dataclass(frozen=True)
class SystemAnswers:
    """Answers of a system to the questions of one or more data sets.

    Args:
        confidence: each confidence of each question.
        right: whether the best document is relevant.
        answerable: whether the corpus has a relevant document.
        ndcg: nDCG@10 of each question.
        counts: number of questions of each data set.
    """

    confidence: Mapping[str, Float64[ndarray, " questions"]]
    right: Bool[ndarray, " questions"]
    answerable: Bool[ndarray, " questions"]
    ndcg: Float64[ndarray, " questions"]
    counts: tuple[int, ...]

    @property
    def scores(self) -> Float64[ndarray, " questions"]:
        """Score of the best document of each question."""
        return self.confidence[SCORE]

    def threshold(self) -> float:
        """Return the score with the best F1 on these questions."""
        return best_answer_threshold(self.scores, self.right, self.answerable)


def read_answers(evaluated: Evaluated, temperature: float) -> SystemAnswers:
    """Read the answers of one evaluation.

    Raises:
        StorageError: a file was damaged or changed.
    """
    folder, remedy = evaluated.folder, f"remove {evaluated.folder}; it is measured again"
    content = read_per_query(folder / "per_query" / f"{evaluated.dataset}.json", remedy)
    try:
        metrics = content["models"][evaluated.model]["metrics"]
        right, ndcg = metrics["success_at_1"], metrics["ndcg_at_10"]
    except KeyError as error:
        raise StorageError(f"has no results of {evaluated.model}", str(folder), remedy) from error
    run = folder / "runs" / f"{evaluated.model}.{evaluated.dataset}.trec"
    confidence = confidences(read_run_scores(str(run), content["queries"], DEPTH), temperature)
    cross_scores = read_cross_scores(evaluated.cross_scores, len(right))
    return SystemAnswers(
        confidence if cross_scores is None else {**confidence, CROSS_ENCODER: cross_scores},
        np.array(right, np.float64) > 0,
        np.array([bool(documents) for documents in content["relevant"]]),
        np.array(ndcg, np.float64),
        (len(right),),
    )


def pooled(parts: Sequence[SystemAnswers]) -> SystemAnswers:
    """Return the answers to the questions of several data sets as one."""
    return SystemAnswers(
        {name: np.concatenate([part.confidence[name] for part in parts]) for name in parts[0].confidence},
        np.concatenate([part.right for part in parts]),
        np.concatenate([part.answerable for part in parts]),
        np.concatenate([part.ndcg for part in parts]),
        tuple(count for part in parts for count in part.counts),
    )


@dataclass(frozen=True)
class SystemMeasures:
    """Measures of an encoder with one seed, or of BM25.

    Args:
        dev, test: answers by data set, without the pool.
    """

    dev: Mapping[str, SystemAnswers]
    test: Mapping[str, SystemAnswers]

    @cached_property
    def all_dev(self) -> dict[str, SystemAnswers]:
        """Answers to dev questions by data set, the pool last."""
        return {**self.dev, POOLED: pooled(list(self.dev.values()))}

    @cached_property
    def all_test(self) -> dict[str, SystemAnswers]:
        """Answers to test questions by data set, the pool last."""
        return {**self.test, POOLED: pooled(list(self.test.values()))}

    @cached_property
    def thresholds(self) -> dict[str, float]:
        """Best threshold of the dev questions of each data set and of the pool."""
        return {name: answers.threshold() for name, answers in self.all_dev.items()}

    @cached_property
    def best_confidence(self) -> str:
        """Confidence with the lowest AURC on the dev questions of the pool."""
        return min(self._dev_areas, key=self._dev_areas.__getitem__)

    @cached_property
    def best_alternative(self) -> str:
        """The same among those other than the score."""
        return min((name for name in self._dev_areas if name != SCORE), key=self._dev_areas.__getitem__)

    @cached_property
    def _dev_areas(self) -> dict[str, float]:
        answers = self.all_dev[POOLED]
        return {
            name: float(area_under_risk_coverage(confidence, answers.right)[0])
            for name, confidence in answers.confidence.items()
        }

    def f1(self, dataset: str, source: str) -> Statistic:
        """Return the F1 on a data set at the threshold of the dev questions of another one."""
        answers = self.all_test[dataset]
        return partial(answer_f1, answers.scores, answers.right, answers.answerable, self.thresholds[source])

    def area(self, dataset: str, confidence: str) -> Statistic:
        """Return the AURC of a confidence on a data set."""
        answers = self.all_test[dataset]
        return partial(area_under_risk_coverage, answers.confidence[confidence], answers.right)

    @cached_property
    def statistics(self) -> dict[str, dict[str, Statistic]]:
        """Metrics by data set, the pool last, as functions of the weights of its questions."""
        return {dataset: self._statistics_of(dataset) for dataset in self.all_test}

    def value(self, dataset: str, metric: str) -> float:
        """Return a metric of all questions of a data set."""
        return float(self.statistics[dataset][metric](np.ones((1, len(self.all_test[dataset].right))))[0])

    def _statistics_of(self, dataset: str) -> dict[str, Statistic]:
        answers = self.all_test[dataset]
        scores, right = answers.scores, answers.right
        area, other = self.area(dataset, SCORE), self.area(dataset, self.best_alternative)
        metrics: dict[str, Statistic] = {
            "aurc": area,
            "excess_aurc": lambda weights: area(weights) - least_area(right, weights),
            "f1": self.f1(dataset, POOLED),
        }
        for coverage in COVERAGES:
            metrics[f"precision_at_coverage_{100 * coverage:.0f}"] = partial(
                precision_at_coverage, scores, right, coverage
            )
        dev = self.all_dev[POOLED]
        for name, fit in _MAPS.items():
            probabilities = fit(dev.scores, dev.right).probability(scores)
            metrics[f"squared_ece_{name}"] = partial(squared_calibration_error, probabilities, right)
        for name, confidence in NAUC.items():
            metrics[name] = partial(abstention_nauc, answers.confidence[confidence], answers.ndcg)
        if dataset != POOLED:
            metrics["transfer_loss"] = self._transfer_loss(dataset)
        metrics["advantage"] = lambda weights: other(weights) - area(weights)
        return metrics

    def _transfer_loss(self, dataset: str) -> Statistic:
        own = self.f1(dataset, dataset)
        others = [self.f1(dataset, source) for source in self.dev if source != dataset]
        return lambda weights: own(weights) - np.mean([other(weights) for other in others], axis=0)

    def at_threshold(self, dataset: str) -> dict[str, float]:
        """Return shares of the test questions at the threshold of the pool."""
        answers = self.all_test[dataset]
        shown = answers.scores >= self.thresholds[POOLED]
        return {
            "shown": float(shown.mean()),
            "right of those shown": float(answers.right[shown].mean()) if shown.any() else float("nan"),
            "answerable, right and shown": float((shown & answers.right)[answers.answerable].mean()),
            "without an answer, shown": float(shown[~answers.answerable].mean()),
            "answerable, best document right": float(answers.right[answers.answerable].mean()),
        }


_MAPS: Mapping[str, Callable[[ndarray, ndarray], ScoreMap]] = {"platt": fit_platt, "isotonic": fit_isotonic}
