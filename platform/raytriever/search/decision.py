"""Decision to answer in a search: the confidence of each query, by the calibration of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.data.dataset import Documents, Passages
from raytriever.errors import ConfigError, setting
from raytriever.metrics.confidence import RankedQuestions
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.comparison import compare_best
from raytriever.search.calibration import Calibration


@dataclass(frozen=True)
class Decider:
    """Confidence of the queries of a corpus.

    Args:
        calibration: says which confidence it is; None without one.
        documents: the corpus, which BM25 indexes if the confidence asks it.
        built: index of the corpus for BM25, if there is one already.
    """

    calibration: Calibration | None
    documents: Documents
    built: Bm25Index | None = None

    @property
    def depth(self) -> int:
        """Number of passages that the confidence reads; 0 without a calibration."""
        return 0 if self.calibration is None else self.calibration.confidence.depth

    @cached_property
    def bm25(self) -> Bm25Index | None:
        """Index of the passages; None if BM25 is not asked."""
        if self.calibration is None or not self.calibration.confidence.reads_bm25:
            return None
        return Bm25Index.of(self.documents) if self.built is None else self.built

    def edited(self, keep: Int64[ndarray, " kept"], added: Documents) -> Bm25Index | None:
        """Return BM25's index of the edited corpus; None if that of the corpus does not exist or cannot be edited."""
        index: Bm25Index | None = vars(self).get("bm25")
        return index and index.edited(keep, Passages(added))

    def confidence(
        self,
        queries: Sequence[str],
        scores: Float32[ndarray, "queries passages"],
        ranking: Int64[ndarray, "queries passages"],
    ) -> Float64[ndarray, " queries"] | None:
        """Return the confidence of each query, -inf without a passage; None without a calibration.

        Args:
            queries: their texts, without a prompt.
            scores, ranking: the best passages, best first, -1 for none; `depth` of them if there are so many.

        Raises:
            ConfigError: an approximate index has found too few.
        """
        if self.calibration is None:
            return None
        depth, count = self.depth, len(queries)
        if len(self.documents) >= depth and (missing := int((ranking[:, :depth] < 0).sum(axis=1).max(initial=0))):
            name = self.calibration.confidence.name
            raise ConfigError(
                f"the index finds {depth - missing} of the {depth} passages that {name} reads",
                setting("effort"),
                "give more, or choose thresholds of the score",
            )
        ranked = np.full((count, depth), np.nan, np.float32)
        ranked[:, : scores.shape[1]] = np.where(ranking >= 0, scores, np.nan)[:, :depth]
        bm25 = agrees = None
        if self.bm25 is not None:
            best = ranking[:, 0] if ranking.shape[1] else np.full(count, -1)
            bm25, agrees = compare_best(self.bm25, queries, best)
        asked = RankedQuestions(ranked, np.zeros(count, bool), np.full(count, ""), bm25, agrees)
        return self.calibration.confidence.of(asked)
