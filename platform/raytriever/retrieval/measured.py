"""What was measured on one data set: every model's evaluation of every part, and what they come to together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.metrics.calibration import ScoredPools
from raytriever.retrieval.evaluate import Evaluation
from raytriever.retrieval.evaluation_sets import EvaluationSet
from raytriever.retrieval.evaluation_significance import tested_values


@dataclass(frozen=True)
class MeasuredPart:
    """A data set that is one whole, or a part of one.

    Args:
        name: of the part.
        dataset: opened with the splits measured.
        evaluations: of the judged split, by model.
        choosing: of the split on which thresholds are chosen, by model, where any are asked for.
    """

    name: str
    dataset: RetrievalDataset
    evaluations: dict[str, Evaluation]
    choosing: dict[str, Evaluation] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredSet:
    """One row of an evaluation, measured."""

    about: EvaluationSet
    parts: list[MeasuredPart]

    def label(self, part: MeasuredPart) -> str:
        """The part's name in file names: the data set's own where it is one whole."""
        return f"{self.about.name}-{part.name}" if self.about.is_divided else self.about.name

    def metrics(self, model: str) -> dict[str, float]:
        """Each metric's mean over the parts, whatever their sizes."""
        rows = [part.evaluations[model].metrics for part in self.parts]
        return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}

    def tested(self, model: str) -> dict[str, Float64[ndarray, " queries"]]:
        """Values of all queries, part by part, each weighed so that their mean is that of the parts' means.

        Tests of significance are of these: differences keep their signs, and add up to those of the table.
        """
        counts = [len(part.evaluations[model].queries) for part in self.parts]
        weights = np.repeat([sum(counts) / (len(counts) * count) for count in counts], counts)
        rows = [tested_values(part.evaluations[model]) for part in self.parts]
        return {name: weights * np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def pools(self, model: str) -> ScoredPools:
        """The scores of all parts' queries in one pool."""
        return pooled([part.evaluations[model] for part in self.parts])

    def choosing_pools(self, model: str) -> ScoredPools:
        """Those of the split on which thresholds are chosen."""
        return pooled([part.choosing[model] for part in self.parts])


def pooled(evaluations: Sequence[Evaluation]) -> ScoredPools:
    """Evaluations' scores in one pool, their queries counted on."""
    firsts = np.cumsum([0, *(len(one.queries) for one in evaluations)])
    return ScoredPools(
        np.concatenate([one.positive_scores for one in evaluations]),
        np.concatenate([one.negative_scores for one in evaluations]),
        np.concatenate([one.positive_queries + first for one, first in zip(evaluations, firsts, strict=False)]),
        np.concatenate([one.negative_queries + first for one, first in zip(evaluations, firsts, strict=False)]),
    )
